"""Read what a container has of its GPUs out of its region, for the profiler and for `batuta share status`.

The layout mirrors native/share/region.h byte for byte; a test compares them. Reading takes no lock and changes
nothing: two values of one moment may be a call apart. The container can write anything into its region, and put
anything in its place, so nothing in it is believed to be in order.
"""

from __future__ import annotations

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.owners import is_alive
from batuta.gpu.vgpu.device_file import c_fields
from batuta.spec.problem import InputError

REGION_MAGIC = int.from_bytes(b"BUTSHARE", "little")
LAYOUT = 1
DEVICES = 16
PROCESSES = 256
UNLIMITED = (1 << 64) - 1
_WHOLE = 1000  # permille


class Device(ctypes.Structure):
    """One GPU, for the whole container."""

    _fields_ = (
        *c_fields("char[48] uuid; u64 limit_bytes; u32 hard_permille, soft_permille, weight, reserved"),
        *c_fields("u64 used_bytes, peak_bytes, refusals, launches, charged_ns, waited_ns; i64 spent_until_ns"),
        *c_fields("u32 rate_permille, factor_permille; i64 corrected_ns; u64 corrected_charged_ns, longest_ns"),
        *c_fields("i64 published_ns; u64 published_charged_ns"),
    )


class Use(ctypes.Structure):
    """What a process has of one device."""

    _fields_ = c_fields("u64 used_bytes, peak_bytes, launches")


class Process(ctypes.Structure):
    """A process: a pid and the time it started, in clock ticks since boot."""

    _fields_ = (*c_fields("u32 taken; i32 pid; u64 start_ticks"), ("use", Use * DEVICES))


class Region(ctypes.Structure):
    """What the processes of a container share."""

    _fields_ = (
        *c_fields("u64 magic; u32 layout, devices_count; u64 size_bytes, pid_namespace; u32 damaged, repairs"),
        *c_fields("char[64] container; u64[8] lock"),
        ("devices", Device * DEVICES),
        ("processes", Process * PROCESSES),
    )


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """A process of the container, and what it has of one GPU."""

    pid: int  # in the container's own numbers
    used_bytes: int
    peak_bytes: int
    launches: int


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What a container may have and has of one GPU. Counters only grow; they begin with the region."""

    uuid: str
    limit_bytes: int | None
    used_bytes: int
    peak_bytes: int
    refusals: int  # allocations that would have exceeded the limit
    hard_percent: float | None
    soft_percent: float | None
    weight: int
    rate_percent: float  # the device time that it may have now
    launches: int
    charged_s: float  # device time, as estimated and corrected
    waited_s: float  # how long launches waited for their turn, all threads together
    correction: float  # what estimates are multiplied with, so that they agree with NVML
    processes: tuple[ProcessShare, ...]


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """One container's region."""

    container: str
    repairs: int  # how often a process was killed in the middle of a change
    devices: tuple[DeviceShare, ...]


def read_region(path: Path) -> ContainerShare:
    """Return the region as it is now. Processes that have ended do not count, where that can be seen."""
    try:
        data = read_exactly(path, ctypes.sizeof(Region))
    except OSError as error:
        raise InputError.of(f"cannot read {path}: {error.strerror}") from error
    if data is not None and not any(data[:8]):
        return ContainerShare("", 0, ())  # it is being made this very moment
    if data is None or int.from_bytes(data[:8], "little") != REGION_MAGIC:
        raise InputError.of(f"{path} is not the region of a container")
    region = Region.from_buffer_copy(data)
    if region.layout != LAYOUT:
        raise InputError.of(f"{path} has layout {region.layout}, this version reads {LAYOUT}")
    # Pids of another namespace mean nothing here: then every slot counts as alive.
    foreign = region.pid_namespace != os.stat("/proc/self/ns/pid").st_ino
    living = [
        process
        for process in region.processes
        if process.taken and (foreign or is_alive(process.pid, process.start_ticks))
    ]
    return ContainerShare(
        region.container.decode(errors="replace"),
        region.repairs,
        tuple(_device(region, index, living) for index in range(min(region.devices_count, DEVICES))),
    )


def read_exactly(path: Path, size: int) -> bytes | None:
    """Return what is in a file of just this size; zeros for an empty one; None for anything else.

    A link, a pipe or a device in the place of the file is not followed, waited for or read without end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size not in (0, size):
            return None
        data = os.pread(descriptor, size, 0)
    finally:
        os.close(descriptor)
    return data if len(data) == size else bytes(size) if not data else None


def _device(region: Region, index: int, living: list[Process]) -> DeviceShare:
    device = region.devices[index]
    processes = tuple(
        ProcessShare(one.pid, one.use[index].used_bytes, one.use[index].peak_bytes, one.use[index].launches)
        for one in living
        if one.use[index].peak_bytes or one.use[index].launches
    )
    return DeviceShare(
        uuid=device.uuid.decode(errors="replace"),
        limit_bytes=None if device.limit_bytes == UNLIMITED else device.limit_bytes,
        used_bytes=sum(one.used_bytes for one in processes),
        peak_bytes=device.peak_bytes,
        refusals=device.refusals,
        hard_percent=device.hard_permille / 10 if device.hard_permille < _WHOLE else None,
        soft_percent=device.soft_permille / 10 or None,
        weight=device.weight,
        rate_percent=device.rate_permille / 10,
        launches=device.launches,
        charged_s=device.charged_ns / 1e9,
        waited_s=device.waited_ns / 1e9,
        correction=device.factor_permille / _WHOLE,
        processes=processes,
    )
