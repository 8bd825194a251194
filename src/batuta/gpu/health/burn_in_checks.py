"""What a GPU does in a burn-in: it keeps, computes and sends, and what has to come out is known each time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_uint32, c_uint64
from dataclasses import dataclass
from typing import Final

from batuta.gpu.health.cuda_driver import Context, CudaError

_MIB: Final = 1 << 20
_CHUNK: Final = 64 * _MIB
_SHARE: Final = 0.9
"""Of the memory that is free: the driver wants some for itself."""
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


class Failed(Exception):
    """A check that did not pass, and why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is tried."""

    seconds: float
    """Of computing, for each GPU."""
    most_mib: int | None
    """Of memory that is written; None: all."""
    is_virtual: bool


def check_memory(context: Context, plan: Plan) -> str:
    """All that is free can be had; what is written to it is there again."""
    free, _ = context.memory()
    wanted = int(free * _SHARE)
    writes = wanted if plan.most_mib is None else min(wanted, plan.most_mib * _MIB)
    held: list[tuple[int, int]] = []
    try:
        for start in range(0, wanted, _CHUNK):
            size = min(_CHUNK, wanted - start) // 4 * 4
            if size:
                held.append((context.allocate(size), size))
        left = writes
        for address, size in held:
            part = min(size, left) // 4 * 4
            left -= part
            for word in _PATTERNS if part else ():
                context.fill(address, word, part // 4)
                if context.read(address, part) != word.to_bytes(4, "little") * (part // 4):
                    raise Failed("memory does not keep what is written to it")
    finally:
        for address, _ in held:
            with suppress(CudaError):
                context.free(address)
    return f"{wanted // _MIB} MiB held, {writes // _MIB} MiB written and read back"


def check_compute(context: Context, plan: Plan) -> str:
    """Every core arrives at the numbers that it should, again and again."""
    count = _BLOCKS * _THREADS
    kernel, out = context.kernel(_KERNEL, b"burn"), context.allocate(4 * count)
    ends_s, launches = time.monotonic() + plan.seconds, 0
    try:
        expected = b"".join(number.to_bytes(4, "little") for number in arrivals(count, _ROUNDS))
        while launches == 0 or time.monotonic() < ends_s:
            context.launch(kernel, _BLOCKS, _THREADS, c_uint64(out), c_uint32(_ROUNDS))
            launches += 1
            if not plan.is_virtual and context.read(out, 4 * count) != expected:
                raise Failed("a kernel came to a wrong result")
    finally:
        with suppress(CudaError):
            context.free(out)
    how = "not compared: a virtual GPU computes nothing" if plan.is_virtual else "all right"
    return f"{launches} launches, results {how}"


def arrivals(count: int, rounds: int) -> Iterator[int]:
    """Where x → A x + C leads each of 0..count-1 after so many rounds: a power of the map, by squaring."""
    a, c, factor, offset = 1, 0, _A, _C
    while rounds:
        if rounds & 1:
            a, c = a * factor & 0xFFFFFFFF, (c * factor + offset) & 0xFFFFFFFF
        factor, offset = factor * factor & 0xFFFFFFFF, (offset * factor + offset) & 0xFFFFFFFF
        rounds >>= 1
    return ((a * start + c) & 0xFFFFFFFF for start in range(count))


def check_way(one: Context, other: Context, plan: Plan) -> str:
    """What one GPU sends to another arrives. How fast it was is told, not judged."""
    size = (VIRTUAL_MIB // 4 if plan.is_virtual else 256) * _MIB
    source, to = one.allocate(size), other.allocate(size)
    try:
        one.fill(source, _PATTERNS[0], size // 4)
        other.fill(to, 0, size // 4)
        begun_s = time.monotonic()
        other.copy_from(one, to, source, size)
        took_s = max(time.monotonic() - begun_s, 1e-9)
        if other.read(to, size) != _PATTERNS[0].to_bytes(4, "little") * (size // 4):
            raise Failed("what was sent to another GPU did not arrive")
    finally:
        for context, address in ((one, source), (other, to)):
            with suppress(CudaError):
                context.free(address)
    how = "stand-in: memory of the host" if plan.is_virtual else "NVLink or PCIe"
    return f"{size / took_s / 1e9:.1f} GB/s ({how})"
