"""Read what the virtual GPUs are doing, with the values that NVML would give."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.owners import is_alive
from batuta.gpu.vgpu.device_file import BUCKET_NS, WINDOW_BUCKETS, Device, Process, open_device_file

_Interval = tuple[int, int, int]  # slot of the process, start and end


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A living process with a context on a GPU."""

    pid: int
    used_bytes: int
    peak_bytes: int
    launches: int
    busy_ns: int  # device time so far


@dataclass(frozen=True, slots=True)
class VirtualGpu:
    """One virtual GPU."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    used_bytes: int
    utilization: float  # of the last second, from 0 to 1
    temperature_c: int
    power_w: float
    power_limit_w: float
    numa_node: int
    launches: int
    busy_ns: int  # device time so far, of all processes that ever were
    lost: bool
    memory_failed: bool  # an uncorrectable error ended all contexts; until a reset there are no new ones
    ecc_corrected: int
    ecc_uncorrected: int
    remapped_rows: int
    links: int
    links_up: int
    processes: tuple[ProcessUse, ...]


def read_gpus(path: Path) -> tuple[VirtualGpu, ...]:
    """Return all GPUs of the file, as they are now. Processes that have ended do not count, reaped or not."""
    with open_device_file(path) as file:
        living = {
            place: slot
            for place, slot in enumerate(file.processes)
            if slot.taken and is_alive(slot.pid, slot.start_ticks)
        }
        return tuple(_gpu(file.devices[index], index, living) for index in range(file.devices_count))


def _gpu(device: Device, index: int, living: Mapping[int, Process]) -> VirtualGpu:
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    unsettled = _unsettled(device, now_ns, living)
    busy = _utilization(device, now_ns, unsettled)
    span_w = (device.limit_mw - device.idle_mw) / 1000
    span_c = device.busy_celsius - device.idle_celsius
    return VirtualGpu(
        index=index,
        name=device.name.decode(),
        uuid=device.uuid.decode(),
        memory_bytes=device.memory_bytes,
        used_bytes=sum(slot.use[index].used_bytes for slot in living.values()),
        utilization=busy,
        temperature_c=device.fixed_celsius or device.idle_celsius + int(span_c * busy),
        power_w=round(device.idle_mw / 1000 + span_w * busy, 1),
        power_limit_w=device.limit_mw / 1000,
        numa_node=device.numa_node,
        launches=device.launches,
        busy_ns=device.busy_ns + sum(until_ns - from_ns for _, from_ns, until_ns in unsettled),
        lost=bool(device.lost),
        memory_failed=bool(device.uncorrectable),
        ecc_corrected=device.ecc_volatile[0],
        ecc_uncorrected=device.ecc_volatile[1],
        remapped_rows=device.remapped_correctable + device.remapped_uncorrectable,
        links=device.links,
        links_up=device.links - (device.links_down & ((1 << device.links) - 1)).bit_count(),
        processes=tuple(
            _process(place, slot, index, unsettled) for place, slot in living.items() if slot.use[index].contexts
        ),
    )


def _process(place: int, slot: Process, index: int, unsettled: Sequence[_Interval]) -> ProcessUse:
    use = slot.use[index]
    own_ns = sum(until_ns - from_ns for process, from_ns, until_ns in unsettled if process == place)
    return ProcessUse(slot.pid, use.used_bytes, use.peak_bytes, use.launches, use.busy_ns + own_ns)


def _utilization(device: Device, now_ns: int, unsettled: Sequence[_Interval]) -> float:
    first = now_ns // BUCKET_NS - WINDOW_BUCKETS
    window_ns = WINDOW_BUCKETS * BUCKET_NS + now_ns % BUCKET_NS
    busy_ns: int = sum(bucket.busy_ns for bucket in device.buckets if bucket.number >= first)
    busy_ns += sum(max(0, until_ns - max(from_ns, first * BUCKET_NS)) for _, from_ns, until_ns in unsettled)
    return round(min(1.0, busy_ns / window_ns), 3)


def _unsettled(device: Device, now_ns: int, living: Mapping[int, Process]) -> list[_Interval]:
    """Return what ran since the C side last settled its accounts; reading settles nothing."""
    runs = (device.runs[number % len(device.runs)] for number in range(device.first_run, device.next_run))
    intervals = (
        (run.process, max(run.start_ns, device.settled_ns), min(run.end_ns, now_ns))
        for run in runs
        if run.process in living
    )
    return [interval for interval in intervals if interval[1] < interval[2]]
