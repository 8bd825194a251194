"""What a program in a container can have of its GPU, in one line of JSON; then it waits for its end."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

MIB = 1 << 20


def allocate(cuda: ctypes.CDLL, mib: int) -> int:
    """The driver's answer to a wish for memory; what was given is given back."""
    pointer = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
    if code == 0:
        cuda.cuMemFree_v2(pointer)
    return code


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    cuda = ctypes.CDLL("libcuda.so.1")
    count, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    limit_mib = int(os.environ["LIMIT_MIB"])
    found = {
        "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
        "gpus": count.value,
        "total_mib": total.value // MIB,
        "half": allocate(cuda, limit_mib // 2),
        "more": allocate(cuda, limit_mib + 1),
        "limits": Path("/etc/batuta/share/limits").read_text().splitlines()[-1],
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
