"""Who uses which GPUs, sample by sample: processes become shares of their owners."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from batuta.gpu.attribution.owner import Owner, Owners
from batuta.gpu.attribution.processes import ProcessWork
from batuta.gpu.profiler.figures import BUSY
from batuta.gpu.profiler.sample import GpuSample, NodeSample, ProcessSample
from batuta.gpu.profiler.window import Moment

_MIB = 1 << 20


@dataclass(slots=True)
class Share:
    """What an owner has of the GPUs in one sample."""

    gpus: dict[int, float] = field(default_factory=dict)
    """Share of the time, by GPU; NaN where it cannot be told."""
    memory_mib: float = 0.0
    pids: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Scene:
    """One sample of the whole node."""

    time_s: float
    since_s: float
    """Since the sample before; 0 for the first."""
    gpus: Mapping[int, GpuSample]
    crowd: Mapping[int, Set[Owner]]
    """Who worked on each GPU."""

    @classmethod
    def of(cls, sample: NodeSample, since_s: float, shares: Mapping[Owner, Share]) -> Scene:
        found = {gpu.index: gpu for gpu in sample.gpus}
        crowd = {
            index: {
                owner
                for owner, share in shares.items()
                # Who only holds memory is in nobody's way; of whom nothing is known might be.
                if index in share.gpus and not share.gpus[index] <= BUSY
            }
            for index in found
        }
        return cls(sample.time_s, since_s, found, crowd)


class Census:
    """Asks once who a process is, and remembers what it has used."""

    def __init__(self, owners: Owners, read_work: Callable[[int], ProcessWork | None]) -> None:
        self._owners = owners
        self._read_work = read_work
        self._known: dict[tuple[int, int], Owner] = {}
        self._work: dict[int, ProcessWork] = {}
        self._before: dict[int, ProcessWork] = {}

    def count(self, gpus: Iterable[GpuSample]) -> dict[Owner, Share]:
        """The owners of everything that runs on these GPUs."""
        self._before, self._work = self._work, {}
        given = self._owners.by_gpu()
        shares: dict[Owner, Share] = {}
        for gpu in gpus:
            owned = [
                (owner, process)
                for process in gpu.processes
                if (owner := self._owner(process.pid)) is not None
            ]
            if owned:
                _divide(gpu, owned, shares)
            elif gpu.uuid in given:
                # Its processes cannot be seen from here; but it was given to one pod as a whole.
                _put(
                    shares.setdefault(given[gpu.uuid], Share()),
                    gpu.index,
                    gpu.utilisation,
                    gpu.memory_used_mib,
                )
        self._known = {key: owner for key, owner in self._known.items() if key[0] in self._work}
        return shares

    def moment(self, owner: Owner, share: Share, scene: Scene) -> Moment:
        """One sample of an owner."""
        own = [scene.gpus[index] for index in share.gpus]
        known = [value for value in share.gpus.values() if not math.isnan(value)]
        neighbours = {other for index in share.gpus for other in scene.crowd[index]} - {owner}
        work = [self._since(pid, scene.since_s) for pid in share.pids]
        return Moment(
            time_s=scene.time_s,
            utilisation=sum(known) / len(known) if known else math.nan,
            memory_mib=share.memory_mib,
            sm_activity=_mean(gpu.sm_activity for gpu in own),
            # What others cause cannot be told apart.
            pcie_mib_s=math.nan if neighbours else _total(gpu.pcie_mib_s for gpu in own),
            nvlink_mib_s=math.nan if neighbours else _total(gpu.nvlink_mib_s for gpu in own),
            power_w=_total(gpu.power_w for gpu in own),
            temperature_c=_most(gpu.temperature_c for gpu in own),
            busiest_cores=_most(cores for cores, _, _ in work),
            read_mib_s=_total(read for _, read, _ in work),
            written_mib_s=_total(written for _, _, written in work),
            gpus=len(share.gpus),
            neighbours=len(neighbours),
        )

    def _owner(self, pid: int) -> Owner | None:
        work = self._work.get(pid) or self._read_work(pid)
        if work is None:
            return None
        self._work[pid] = work
        key = (pid, work.start_ticks)
        if key not in self._known and (found := self._owners.of(pid)) is not None:
            self._known[key] = found
        return self._known.get(key)

    def _since(self, pid: int, since_s: float) -> tuple[float | None, float | None, float | None]:
        """Cores used, MiB read and MiB written per second, since the sample before."""
        now, before = self._work[pid], self._before.get(pid)
        if before is None or before.start_ticks != now.start_ticks or since_s <= 0:
            return None, None, None
        return (
            (now.cpu_s - before.cpu_s) / since_s,
            _rate(now.read_bytes, before.read_bytes, since_s),
            _rate(now.written_bytes, before.written_bytes, since_s),
        )


def _divide(gpu: GpuSample, owned: list[tuple[Owner, ProcessSample]], shares: dict[Owner, Share]) -> None:
    """A driver that does not say which process worked leaves the rest to all that it says nothing of."""
    silent = sum(1 for process in gpu.processes if process.utilisation is None)
    told = sum(process.utilisation or 0.0 for process in gpu.processes)
    rest = None if gpu.utilisation is None else max(gpu.utilisation - told, 0.0) / max(silent, 1)
    for owner, process in owned:
        share = shares.setdefault(owner, Share())
        share.pids.add(process.pid)
        _put(
            share, gpu.index, rest if process.utilisation is None else process.utilisation, process.memory_mib
        )


def _put(share: Share, gpu: int, utilisation: float | None, memory_mib: float | None) -> None:
    both = (share.gpus.get(gpu), utilisation)
    known = [value for value in both if value is not None and not math.isnan(value)]
    share.gpus[gpu] = min(sum(known), 1.0) if known else math.nan
    share.memory_mib += memory_mib or 0.0


def _rate(now: int | None, before: int | None, since_s: float) -> float | None:
    return None if now is None or before is None else max(now - before, 0) / since_s / _MIB


def _total(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) if known else math.nan


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _most(values: Iterable[float | None]) -> float:
    return max((value for value in values if value is not None), default=math.nan)
