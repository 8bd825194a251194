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


def is_writable(path: Path) -> bool:
    try:
        with path.open("r+b"):
            return True
    except OSError:
        return False


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
    lines = Path("/etc/batuta/share/limits").read_text().splitlines()
    cards = Path(next(line.split(" ", 1)[1] for line in lines if line.startswith("cards ")))
    found = {
        "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
        "gpus": count.value,
        "total_mib": total.value // MIB,
        "half": allocate(cuda, limit_mib // 2),
        "more": allocate(cuda, limit_mib + 1),
        "limits": lines[-1],
        "cards": {path.name: is_writable(path) for path in cards.iterdir()},
    }
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
