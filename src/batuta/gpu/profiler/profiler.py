"""Sample the GPUs of one node at each interval, and report how they are used and by which jobs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Final, TypeAlias

import numpy as np

from batuta.gpu.owners import Owner, Owners, ProcessWork, read_work
from batuta.gpu.profiler.behaviour import behaviour, iteration_period_s
from batuta.gpu.profiler.signals import (
    BUSY,
    FINE_KEPT_S,
    FINE_S,
    FineSignal,
    Floats,
    SampleRow,
    Signals,
    Window,
    mean_of,
    memory_plateau_mib,
    merge_signals,
    sample_stats,
)
from batuta.gpu.profiler.sources import GpuSample, NodeSample, ProcessSample, SampleSource
from batuta.gpu.profiler.usage import (
    GpuUsage,
    JobUsage,
    NodeUsage,
    PodUsage,
    StepReport,
    lost_share,
    progress_of,
    slowdown,
)

_MIB = 1 << 20
FORGET_AFTER_S: Final = 3.0
"""A pod whose processes are gone for so long has ended; a shorter gap is a restart or a failed sample."""
_MAX_REPORTS: Final = 256
_log = logging.getLogger("batuta.agent")
_Rates: TypeAlias = tuple[float | None, float | None, float | None]
"""Of a process: cores used, MiB read and MiB written per second; None: not measured."""


@dataclass(slots=True)
class OwnerShare:
    """What an owner has of the GPUs in one sample."""

    gpus: dict[int, float] = field(default_factory=dict)  # share of the time, by GPU; NaN where it is unknown
    memory_mib: float = 0.0
    pids: set[int] = field(default_factory=set)

    def add(self, gpu: int, utilisation: float | None, memory_mib: float | None) -> None:
        both = (self.gpus.get(gpu), utilisation)
        known = [value for value in both if value is not None and not math.isnan(value)]
        self.gpus[gpu] = min(sum(known), 1.0) if known else math.nan
        self.memory_mib += memory_mib or 0.0


class ProcessAttribution:
    """Attributes the work of processes to their owners, from one sample to the next."""

    def __init__(self, owners: Owners, read_work: Callable[[int], ProcessWork | None]) -> None:
        self._owners = owners
        self._read_work = read_work
        self._known: dict[tuple[int, int], Owner] = {}
        self._work: dict[int, ProcessWork] = {}
        self._before: dict[int, ProcessWork] = {}

    def rows(self, sample: NodeSample, since_s: float) -> Iterator[tuple[Owner, OwnerShare, SampleRow]]:
        """Yield what each owner has of the GPUs, and its sample. `since_s`: since the sample before; 0 at first."""
        shares = self._shares(sample.gpus)
        gpus = {gpu.index: gpu for gpu in sample.gpus}
        # An owner that only holds memory disturbs no other; one without measurements might.
        busy = {
            index: {owner for owner, one in shares.items() if index in one.gpus and not one.gpus[index] <= BUSY}
            for index in gpus
        }
        for owner, share in shares.items():
            neighbours = {other for index in share.gpus for other in busy[index]} - {owner}
            own = [gpus[index] for index in share.gpus]
            work = [self._since(pid, since_s) for pid in share.pids]
            yield owner, share, _row(sample.time_s, share, own, len(neighbours), work)

    def _shares(self, gpus: Iterable[GpuSample]) -> dict[Owner, OwnerShare]:
        self._before, self._work = self._work, {}
        assigned = self._owners.by_gpu()
        shares: dict[Owner, OwnerShare] = {}
        for gpu in gpus:
            owned = [(owner, process) for process in gpu.processes if (owner := self._owner(process.pid)) is not None]
            if owned:
                _divide(gpu, owned, shares)
            elif gpu.uuid in assigned:
                # Its processes cannot be seen from here, but the whole GPU is assigned to one pod.
                share = shares.setdefault(assigned[gpu.uuid], OwnerShare())
                share.add(gpu.index, gpu.utilisation, gpu.memory_used_mib)
        self._known = {key: owner for key, owner in self._known.items() if key[0] in self._work}
        return shares

    def _owner(self, pid: int) -> Owner | None:
        work = self._work.get(pid) or self._read_work(pid)
        if work is None:
            return None
        self._work[pid] = work
        key = (pid, work.start_ticks)
        if key not in self._known and (found := self._owners.of(pid)) is not None:
            self._known[key] = found
        return self._known.get(key)

    def _since(self, pid: int, since_s: float) -> _Rates:
        """Return what a process did since the sample before."""
        now, before = self._work[pid], self._before.get(pid)
        if before is None or before.start_ticks != now.start_ticks or since_s <= 0:
            return None, None, None
        return (
            (now.cpu_s - before.cpu_s) / since_s,
            _rate(now.read_bytes, before.read_bytes, since_s),
            _rate(now.written_bytes, before.written_bytes, since_s),
        )


def _divide(gpu: GpuSample, owned: list[tuple[Owner, ProcessSample]], shares: dict[Owner, OwnerShare]) -> None:
    """Divide a GPU among its processes. Those without a measured share divide the rest evenly."""
    unmeasured = sum(1 for process in gpu.processes if process.utilisation is None)
    measured = sum(process.utilisation or 0.0 for process in gpu.processes)
    rest = None if gpu.utilisation is None else max(gpu.utilisation - measured, 0.0) / max(unmeasured, 1)
    for owner, process in owned:
        share = shares.setdefault(owner, OwnerShare())
        share.pids.add(process.pid)
        share.add(gpu.index, rest if process.utilisation is None else process.utilisation, process.memory_mib)


def _row(
    time_s: float, share: OwnerShare, gpus: Sequence[GpuSample], neighbours: int, work: Sequence[_Rates]
) -> SampleRow:
    return SampleRow(
        time_s=time_s,
        utilisation=_of_known(fmean, (None if math.isnan(value) else value for value in share.gpus.values())),
        memory_mib=share.memory_mib,
        sm_activity=_of_known(fmean, (gpu.sm_activity for gpu in gpus)),
        # The traffic of neighbours cannot be separated.
        pcie_mib_s=None if neighbours else _of_known(sum, (gpu.pcie_mib_s for gpu in gpus)),
        nvlink_mib_s=None if neighbours else _of_known(sum, (gpu.nvlink_mib_s for gpu in gpus)),
        power_w=_of_known(sum, (gpu.power_w for gpu in gpus)),
        temperature_c=_of_known(max, (gpu.temperature_c for gpu in gpus)),
        busiest_cores=_of_known(max, (cores for cores, _, _ in work)),
        read_mib_s=_of_known(sum, (read for _, read, _ in work)),
        written_mib_s=_of_known(sum, (written for _, _, written in work)),
        gpus=len(share.gpus),
        neighbours=neighbours,
    )


def _rate(now: int | None, before: int | None, since_s: float) -> float | None:
    return None if now is None or before is None else max(now - before, 0) / since_s / _MIB


def _of_known(combine: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return combine(known) if known else None


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the profiler samples, and how much it keeps."""

    interval_s: float = 1.0
    recent_s: float = 30.0  # what counts as the use of a GPU now
    window_s: float = 300.0  # what counts as the behaviour of a job


@dataclass(slots=True)
class _Track:
    """One owner: its samples, and where it is now."""

    window: Window
    share: OwnerShare = field(default_factory=OwnerShare)
    seen_s: float = 0.0


class Profiler:
    """One node's profiler. `sample` at each interval, `usage` at any time.

    It is not thread-safe: see `ProfilerThread`.
    """

    def __init__(
        self,
        source: SampleSource,
        owners: Owners,
        *,
        node: str = "",
        timing: Timing | None = None,
        read_work: Callable[[int], ProcessWork | None] = read_work,
    ) -> None:
        self.node = node
        self.timing = timing or Timing()
        self._source = source
        self._attribution = ProcessAttribution(owners, read_work)
        self._last: NodeSample | None = None
        self._gpus: dict[int, Window] = {}
        self._fine: dict[int, FineSignal] = {}
        self._tracks: dict[Owner, _Track] = {}
        self._reports: dict[tuple[str, str], deque[StepReport]] = {}

    def sample(self) -> NodeSample:
        found = self._source()
        since_s = 0.0 if self._last is None else found.time_s - self._last.time_s
        self._last = found
        for gpu in found.gpus:
            window = self._gpus.setdefault(gpu.index, Window(self._samples(self.timing.recent_s)))
            window.add(_whole(gpu, found.time_s))
            if gpu.recent:
                self._fine.setdefault(gpu.index, FineSignal()).add(gpu.recent)
        self._follow(found, since_s)
        return found

    def report_step(self, job: str, report: StepReport, namespace: str = "") -> None:
        self._reports.setdefault((namespace, job), deque(maxlen=_MAX_REPORTS)).append(report)

    def usage(self) -> NodeUsage:
        """Return how the GPUs were used lately, and what the jobs on them are doing."""
        if self._last is None:
            return NodeUsage(self.node, 0.0, (), ())
        on: dict[int, list[Owner]] = defaultdict(list)
        jobs: dict[tuple[str, str], list[Owner]] = defaultdict(list)
        for owner in sorted(self._tracks):
            jobs[owner.namespace, owner.job].append(owner)
            for index in self._tracks[owner].share.gpus:
                on[index].append(owner)
        return NodeUsage(
            self.node,
            self._last.time_s,
            tuple(_gpu_usage(gpu, self._gpus[gpu.index].signals(), on[gpu.index]) for gpu in self._last.gpus),
            tuple(self._job(*job, pods) for job, pods in sorted(jobs.items())),
        )

    def _follow(self, found: NodeSample, since_s: float) -> None:
        for owner, share, row in self._attribution.rows(found, since_s):
            track = self._tracks.get(owner)
            if track is None:
                track = self._tracks[owner] = _Track(Window(self._samples(self.timing.window_s)))
            track.share, track.seen_s = share, found.time_s
            track.window.add(row)
        self._forget(found.time_s)

    def _forget(self, now_s: float) -> None:
        """Drop pods whose processes have ended, and with its last pod a job."""
        longest_s = max(FORGET_AFTER_S, 3 * self.timing.interval_s)
        for owner in [one for one, track in self._tracks.items() if now_s - track.seen_s > longest_s]:
            del self._tracks[owner]
            job = (owner.namespace, owner.job)
            if all((other.namespace, other.job) != job for other in self._tracks):
                self._reports.pop(job, None)

    def _job(self, namespace: str, job: str, owners: Sequence[Owner]) -> JobUsage:
        parts = {owner: self._tracks[owner].window.signals() for owner in owners}
        signals = merge_signals(list(parts.values()))
        reports = list(self._reports.get((namespace, job), ()))
        progress = progress_of(reports)
        gpus = sorted({index for owner in owners for index in self._tracks[owner].share.gpus})
        period_s = self._period_s(signals, gpus)
        memory = signals.memory_mib
        return JobUsage(
            job,
            namespace,
            tuple(self._pod(owner, part) for owner, part in parts.items()),
            tuple(gpus),
            utilisation=sample_stats(signals.utilisation),
            memory_mib=_last(memory),
            memory_peak_mib=None if np.isnan(memory).all() else float(np.nanmax(memory)),
            memory_plateau_mib=memory_plateau_mib(memory),
            period_s=period_s,
            behaviour=behaviour(signals, period_s, reports_steps=progress is not None),
            progress=progress,
            slowdown=_slowdown(signals, reports),
        )

    def _period_s(self, signals: Signals, gpus: Iterable[int]) -> float | None:
        """Return a short period from the driver's samples if there were no neighbours, else a long one."""
        minute = signals.neighbours[-self._samples(FINE_KEPT_S) :]
        if not (minute > 0).any():
            time_s = len(minute) * self.timing.interval_s
            fine = [self._fine[index].signal(time_s) for index in gpus if index in self._fine]
            known = [signal for signal in fine if signal is not None]
            found = iteration_period_s(np.mean(known, axis=0), FINE_S) if known else None
            if found is not None:
                return found
        return iteration_period_s(signals.utilisation, self.timing.interval_s)

    def _pod(self, owner: Owner, signals: Signals) -> PodUsage:
        return PodUsage(
            owner,
            tuple(sorted(self._tracks[owner].share.gpus)),
            sample_stats(signals.utilisation),
            _last(signals.memory_mib),
        )

    def _samples(self, time_s: float) -> int:
        return max(2, round(time_s / self.timing.interval_s))


def _whole(gpu: GpuSample, time_s: float) -> SampleRow:
    return SampleRow(
        time_s=time_s,
        utilisation=gpu.utilisation,
        memory_mib=gpu.memory_used_mib,
        sm_activity=gpu.sm_activity,
        pcie_mib_s=gpu.pcie_mib_s,
        nvlink_mib_s=gpu.nvlink_mib_s,
        power_w=gpu.power_w,
        temperature_c=gpu.temperature_c,
    )


def _gpu_usage(gpu: GpuSample, signals: Signals, owners: Iterable[Owner]) -> GpuUsage:
    found = sample_stats(signals.utilisation)
    return GpuUsage(
        gpu.index,
        gpu.uuid,
        gpu.model,
        gpu.memory_mib,
        memory_used_mib=gpu.memory_used_mib,
        # A GPU that does not answer now has no utilisation, whatever it answered before.
        utilisation=None if found is None or gpu.utilisation is None else found.mean,
        utilisation_peak=None if found is None or gpu.utilisation is None else found.peak,
        sm_activity=mean_of(signals.sm_activity),
        pcie_mib_s=mean_of(signals.pcie_mib_s),
        nvlink_mib_s=mean_of(signals.nvlink_mib_s),
        power_w=gpu.power_w,
        temperature_c=gpu.temperature_c,
        owners=tuple(owners),
    )


def _slowdown(signals: Signals, reports: Sequence[StepReport]) -> float | None:
    """Return the slowdown by reported steps, else by the share of the GPU's time."""
    neighbours, time_s = signals.neighbours, signals.time_s
    pairs = [(one, other) for one, other in pairwise(reports) if other.step > one.step]
    if pairs and len(time_s):
        # A report from before the first sample belongs to a time of which nothing is known.
        known = [(one, other) for one, other in pairs if one.time_s >= time_s[0]]
        places = np.searchsorted(time_s, [other.time_s for _, other in known]).clip(0, len(time_s) - 1)
        steps = np.array([(other.time_s - one.time_s) / (other.step - one.step) for one, other in known])
        if (found := slowdown(steps, neighbours[places])) is not None:
            return found
    own: Floats = signals.utilisation
    known_own = ~np.isnan(own)
    return lost_share(own[known_own & (neighbours == 0)], own[known_own & (neighbours > 0)])


def _last(values: Floats) -> float | None:
    return None if not len(values) or math.isnan(values[-1]) else float(values[-1])


class ProfilerThread:
    """Runs a profiler in a thread for as long as the `with` lasts. Thread-safe."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self.sampled_s = time.monotonic()  # when the last sample succeeded, by the monotonic clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batuta-profiler", daemon=True)
        self.samples = 0
        self.failures = 0

    def __enter__(self) -> ProfilerThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def usage(self) -> NodeUsage:
        with self._lock:
            return self._profiler.usage()

    def report_step(self, job: str, report: StepReport, namespace: str = "") -> None:
        with self._lock:
            self._profiler.report_step(job, report, namespace)

    def _run(self) -> None:
        interval_s = self._profiler.timing.interval_s
        next_s = time.monotonic()
        while not self._stop.is_set():
            self._sample()
            next_s += interval_s
            # After a long pause (a machine that slept) missed samples are not made up for.
            next_s = max(next_s, time.monotonic())
            self._stop.wait(next_s - time.monotonic())

    def _sample(self) -> None:
        try:
            with self._lock:
                self._profiler.sample()
            self.samples += 1
            self.sampled_s = time.monotonic()
        except Exception:
            # A driver that is being replaced fails for a while: the agent has to outlive that.
            self.failures += 1
            if self.failures == 1 or self.failures % 600 == 0:
                _log.exception("cannot sample the GPUs (%d times)", self.failures)
