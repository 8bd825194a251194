"""Burn-in: test that a GPU works before jobs may have it again. Run as a program.

    python -m batuta.gpu.health.burn_in --gpu 0 --seconds 30

`--gpu` is NVML's number or a UUID, and repeatable: several GPUs are tested one after the other, and the paths
between them. One line of JSON reports the outcome; the exit code is 0 when all checks passed and 1 when not.

A virtual GPU keeps what is written to it in the host's memory and computes nothing: there only a part of the
memory is filled, results of kernels are not compared, and the outcome says so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any, Final

from batuta.gpu.devices import NvmlUnavailable, ask_nvml, nvml_text, open_nvml
from batuta.gpu.health.nvml_source import MAX_LINKS

_MIB: Final = 1 << 20
_CHUNK: Final = 64 * _MIB
_SHARE: Final = 0.9  # of the memory that is free: the driver wants some for itself
VIRTUAL_MIB: Final = 16
_PATTERNS: Final = (0xAAAAAAAA, 0x55555555, 0xDEADBEEF)
_BLOCKS, _THREADS, _ROUNDS = 256, 256, 1 << 16
_A, _C = 1664525, 1013904223
_KERNEL: Final = b"""\
.version 6.0
.target sm_50
.address_size 64
.visible .entry burn(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mov.u32 %r6, %r5;
AGAIN:
    setp.eq.u32 %p, %r1, 0;
    @%p bra DONE;
    mad.lo.u32 %r6, %r6, 1664525, 1013904223;
    sub.u32 %r1, %r1, 1;
    bra AGAIN;
DONE:
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.u64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r6;
    ret;
}
\0"""
"""Each thread goes through a random number generator; where it arrives can be worked out in advance."""


class CudaError(Exception):
    """A call that failed, with the driver's own text."""


class Cuda:
    """The driver, initialised."""

    def __init__(self) -> None:
        try:
            self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"libcuda cannot be loaded: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = c_char_p()
            self._cuda.cuGetErrorString(code, byref(text))
            reason = text.value.decode(errors="replace") if text.value else "unknown error"
            raise CudaError(f"{name}: {reason} (CUDA error {code})")

    def device(self, gpu_uuid: str) -> int:
        """Return the number by which CUDA knows a GPU."""
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        for number in range(count.value):
            found = (c_ubyte * 16)()
            self.call("cuDeviceGetUuid", found, number)
            if f"GPU-{uuid.UUID(bytes=bytes(found))}" == gpu_uuid.lower().replace("gpu-", "GPU-"):
                return number
        raise CudaError(f"CUDA does not know {gpu_uuid}, of {count.value} GPUs")

    def open(self, device: int) -> Context:
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        return Context(self, context)


class Context:
    """One GPU to work on."""

    def __init__(self, cuda: Cuda, handle: c_void_p) -> None:
        self._cuda, self._handle = cuda, handle

    def call(self, name: str, *arguments: object) -> None:
        self._cuda.call("cuCtxSetCurrent", self._handle)
        self._cuda.call(name, *arguments)

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    @contextmanager
    def holding(self, size: int) -> Iterator[int]:
        """Hold memory of the GPU, as long as the block lasts; gives its address."""
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        try:
            yield address.value
        finally:
            with suppress(CudaError):
                self.call("cuMemFree_v2", address)

    def fill(self, address: int, word: int, count: int) -> None:
        self.call("cuMemsetD32_v2", c_uint64(address), c_uint(word), c_size_t(count))

    def read(self, address: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, c_uint64(address), c_size_t(size))
        return buffer.raw

    def copy_from(self, other: Context, to: int, source: int, size: int) -> None:
        """Copy from another GPU, by the shortest path there is."""
        self.call("cuMemcpyPeer", c_uint64(to), self._handle, c_uint64(source), other._handle, c_size_t(size))
        self.call("cuCtxSynchronize")

    def kernel(self, image: bytes, name: bytes) -> c_void_p:
        module, kernel = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        self.call("cuModuleGetFunction", byref(kernel), module, name)
        return kernel

    def launch(self, kernel: c_void_p, blocks: int, threads: int, *arguments: ctypes._SimpleCData[Any]) -> None:
        places = (c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        self.call("cuLaunchKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, None, places, None)
        self.call("cuCtxSynchronize")


class CheckFailed(Exception):
    """A check that did not pass, and why."""


@dataclass(frozen=True, slots=True)
class BurnInPlan:
    """How much is tested."""

    seconds: float
    most_mib: int | None  # of memory that is written; None: all
    is_virtual: bool


def check_memory(context: Context, plan: BurnInPlan) -> str:
    """Check that all free memory can be allocated, and keeps what is written to it."""
    free, _ = context.memory()
    wanted = int(free * _SHARE)
    writes = left = wanted if plan.most_mib is None else min(wanted, plan.most_mib * _MIB)
    with ExitStack() as stack:
        sizes = [min(_CHUNK, wanted - start) // 4 * 4 for start in range(0, wanted, _CHUNK)]
        held = [(stack.enter_context(context.holding(size)), size) for size in sizes if size]
        for address, size in held:
            part = min(size, left) // 4 * 4
            left -= part
            for word in _PATTERNS if part else ():
                context.fill(address, word, part // 4)
                if context.read(address, part) != word.to_bytes(4, "little") * (part // 4):
                    raise CheckFailed("memory does not keep what is written to it")
    return f"{wanted // _MIB} MiB held, {writes // _MIB} MiB written and read back"


def check_compute(context: Context, plan: BurnInPlan) -> str:
    """Check that every core computes the expected numbers, again and again."""
    count = _BLOCKS * _THREADS
    kernel = context.kernel(_KERNEL, b"burn")
    ends_s, launches = time.monotonic() + plan.seconds, 0
    expected = b"".join(number.to_bytes(4, "little") for number in expected_results(count, _ROUNDS))
    with context.holding(4 * count) as out:
        while launches == 0 or time.monotonic() < ends_s:
            context.launch(kernel, _BLOCKS, _THREADS, c_uint64(out), c_uint32(_ROUNDS))
            launches += 1
            if not plan.is_virtual and context.read(out, 4 * count) != expected:
                raise CheckFailed("a kernel came to a wrong result")
    how = "not compared: a virtual GPU computes nothing" if plan.is_virtual else "all right"
    return f"{launches} launches, results {how}"


def expected_results(count: int, rounds: int) -> Iterator[int]:
    """Return x → A x + C applied so many times to each of 0..count-1: a power of the map, by squaring."""
    a, c, factor, offset = 1, 0, _A, _C
    while rounds:
        if rounds & 1:
            a, c = a * factor & 0xFFFFFFFF, (c * factor + offset) & 0xFFFFFFFF
        factor, offset = factor * factor & 0xFFFFFFFF, (offset * factor + offset) & 0xFFFFFFFF
        rounds >>= 1
    return ((a * start + c) & 0xFFFFFFFF for start in range(count))


def check_peer_copy(one: Context, other: Context, plan: BurnInPlan) -> str:
    """Check that data copied from one GPU to another arrives. The speed is reported, not judged."""
    size = (VIRTUAL_MIB // 4 if plan.is_virtual else 256) * _MIB
    with one.holding(size) as source, other.holding(size) as to:
        one.fill(source, _PATTERNS[0], size // 4)
        other.fill(to, 0, size // 4)
        begun_s = time.monotonic()
        other.copy_from(one, to, source, size)
        took_s = max(time.monotonic() - begun_s, 1e-9)
        if other.read(to, size) != _PATTERNS[0].to_bytes(4, "little") * (size // 4):
            raise CheckFailed("what was sent to another GPU did not arrive")
    how = "stand-in: memory of the host" if plan.is_virtual else "NVLink or PCIe"
    return f"{size / took_s / 1e9:.1f} GB/s ({how})"


class OpenGpu:
    """A GPU that answers by NVML and by CUDA, as the driver reports its state; raises CheckFailed or CudaError."""

    def __init__(self, gpu: str) -> None:
        try:
            self._api = api = open_nvml()
        except NvmlUnavailable as error:
            raise CheckFailed(f"NVML cannot be used: {error}") from None
        try:
            by_index, by_uuid = api.nvmlDeviceGetHandleByIndex, api.nvmlDeviceGetHandleByUUID
            self._handle = by_index(int(gpu)) if gpu.isdecimal() else by_uuid(gpu.encode())
            self.uuid = nvml_text(api.nvmlDeviceGetUUID(self._handle))
        except api.NVMLError as error:
            raise CheckFailed(f"GPU {gpu} does not answer: {error}") from None
        cuda = Cuda()
        self.context = cuda.open(cuda.device(self.uuid))
        self._uncorrected_before = self._uncorrected()

    def _uncorrected(self) -> int:
        api = self._api
        kind = (api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, api.NVML_VOLATILE_ECC)
        return int(ask_nvml(api, api.nvmlDeviceGetTotalEccErrors, self._handle, *kind) or 0)

    def check_state(self) -> str:
        """Check rows, links, temperature and memory errors; what the GPU does not support is skipped."""
        api, handle, details = self._api, self._handle, list[str]()
        with suppress(api.NVMLError):
            _, _, pending, failed = api.nvmlDeviceGetRemappedRows(handle)
            if failed:
                raise CheckFailed("a row of its memory could not be remapped")
            if pending:
                raise CheckFailed("a row of its memory waits for a reset to be remapped")
            details.append("no rows wait")
        up = [ask_nvml(api, api.nvmlDeviceGetNvLinkState, handle, link) for link in range(MAX_LINKS)]
        down = [str(link) for link, active in enumerate(up) if active == 0]
        if any(up):  # else it has none, or none that leads anywhere
            if down:
                raise CheckFailed(f"NVLink is down: link {', '.join(down)}")
            details.append(f"{len(up) - up.count(None)} links up")
        with suppress(api.NVMLError):
            heat_c = api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)
            most_c = api.nvmlDeviceGetTemperatureThreshold(handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            if heat_c >= most_c:
                raise CheckFailed(f"it is {heat_c} °C hot, and slows down at {most_c} °C")
            details.append(f"{heat_c} °C")
        if (new := self._uncorrected() - self._uncorrected_before) > 0:
            raise CheckFailed(f"{new} uncorrected memory errors during the burn-in")
        return ", ".join(details) or "nothing to ask"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str


def burn_in(gpus: list[str], plan: BurnInPlan) -> list[Check]:
    """Test GPUs; after a failed check, the remaining ones of that GPU are skipped."""
    checks: list[Check] = []

    def run_check(name: str, check: Callable[[], str]) -> bool:
        try:
            checks.append(Check(name, True, check()))
        except (CheckFailed, CudaError) as problem:
            checks.append(Check(name, False, str(problem)))
        return checks[-1].passed

    opened: list[tuple[str, Context]] = []
    for gpu in gpus:
        try:
            found = OpenGpu(gpu)
        except (CheckFailed, CudaError) as problem:
            checks.append(Check(f"GPU {gpu} driver", False, str(problem)))
            continue
        checks.append(Check(f"GPU {gpu} driver", True, found.uuid))
        steps = (
            ("memory", partial(check_memory, found.context, plan)),
            ("compute", partial(check_compute, found.context, plan)),
            ("state", found.check_state),
        )
        if all(run_check(f"GPU {gpu} {name}", check) for name, check in steps):
            opened.append((gpu, found.context))
    for (gpu, one), (other_gpu, other) in pairwise(opened):
        run_check(f"GPU {gpu} to GPU {other_gpu}", partial(check_peer_copy, one, other, plan))
    return checks


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tests GPUs, and prints the outcome as one line of JSON.")
    parser.add_argument("--gpu", action="append", required=True, metavar="N|UUID", help="which; repeatable")
    parser.add_argument("--seconds", type=float, default=30.0, help="of computing, for each GPU")
    parser.add_argument("--memory-mib", type=int, help="how much memory is written; default: all")
    parser.add_argument("--within", type=int, default=900, metavar="S", help="after so long it has failed")
    given = parser.parse_args(arguments)
    is_virtual = bool(os.environ.get("BATUTA_VGPU"))
    most_mib = given.memory_mib if given.memory_mib is not None else VIRTUAL_MIB if is_virtual else None
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(given.within)
    try:
        checks = burn_in(given.gpu, BurnInPlan(given.seconds, most_mib, is_virtual))
    except TimeoutError:
        checks = [Check("time", False, f"it did not end within {given.within} s")]
    failed = [check for check in checks if not check.passed]
    outcome = {
        "passed": not failed,
        "detail": "; ".join(f"{check.name}: {check.detail}" for check in failed or checks),
        "virtual": is_virtual,
        "checks": [asdict(check) for check in checks],
    }
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()
    return 1 if failed else 0


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


if __name__ == "__main__":
    sys.exit(main())
