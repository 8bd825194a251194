"""Looks at the GPUs of one node again and again, and tells how they are used and by whom."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from batuta.gpu.attribution.owner import Nobody, Owner, Owners
from batuta.gpu.attribution.processes import ProcessWork, read_work
from batuta.gpu.profiler.behaviour import behaviour
from batuta.gpu.profiler.figures import Floats, figures, mean_of, memory_plateau_mib
from batuta.gpu.profiler.fine import FINE_KEPT_S, FINE_S, FineSignal
from batuta.gpu.profiler.period import iteration_period_s
from batuta.gpu.profiler.progress import StepReport, lost_share, progress_of, slowdown
from batuta.gpu.profiler.sample import GpuSample, NodeSample, Source
from batuta.gpu.profiler.tracks import Census, Scene, Share
from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage, PodUsage
from batuta.gpu.profiler.window import Moment, Signals, Window, together

FORGET_AFTER_S: Final = 3.0
"""A pod whose processes are gone for so long has ended; a shorter gap is a restart or a look that failed."""
_MOST_REPORTS: Final = 256


@dataclass(frozen=True, slots=True)
class Timing:
    """How often the profiler looks, and how far back."""

    interval_s: float = 1.0
    recent_s: float = 30.0
    """What counts as the use of a GPU now."""
    window_s: float = 300.0
    """What counts as the behaviour of a job."""


@dataclass(slots=True)
class _Track:
    """One owner: its samples, and where it is now."""

    window: Window
    share: Share = field(default_factory=Share)
    seen_s: float = 0.0


class Profiler:
    """One node's profiler. `sample` at each interval, `usage` whenever somebody wants to know.

    Not for several threads at once: who samples in one thread and asks in another holds a lock around both.
    """

    def __init__(
        self,
        source: Source,
        owners: Owners | None = None,
        *,
        node: str = "",
        timing: Timing | None = None,
        read_work: Callable[[int], ProcessWork | None] = read_work,
    ) -> None:
        self.node = node
        self.timing = timing or Timing()
        self._source = source
        self._census = Census(owners or Nobody(), read_work)
        self._last: NodeSample | None = None
        self._gpus: dict[int, Window] = {}
        self._fine: dict[int, FineSignal] = {}
        self._tracks: dict[Owner, _Track] = {}
        self._reports: dict[tuple[str, str], deque[StepReport]] = {}

    def sample(self) -> NodeSample:
        """One look at all GPUs."""
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

    def told(self, job: str, report: StepReport, namespace: str = "") -> None:
        """Takes in what a job says of its progress."""
        self._reports.setdefault((namespace, job), deque(maxlen=_MOST_REPORTS)).append(report)

    def usage(self) -> NodeUsage:
        """How the GPUs were used lately, and what the jobs on them are doing."""
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

    # ------------------------------------------------------------------------------------------------ owners

    def _follow(self, found: NodeSample, since_s: float) -> None:
        shares = self._census.count(found.gpus)
        scene = Scene.of(found, since_s, shares)
        for owner, share in shares.items():
            track = self._tracks.get(owner)
            if track is None:
                track = self._tracks[owner] = _Track(Window(self._samples(self.timing.window_s)))
            track.share, track.seen_s = share, found.time_s
            track.window.add(self._census.moment(owner, share, scene))
        self._forget(found.time_s)

    def _forget(self, now_s: float) -> None:
        """Drops pods whose processes have ended, and with its last pod a job."""
        longest_s = max(FORGET_AFTER_S, 3 * self.timing.interval_s)
        for owner in [one for one, track in self._tracks.items() if now_s - track.seen_s > longest_s]:
            del self._tracks[owner]
            job = (owner.namespace, owner.job)
            if all((other.namespace, other.job) != job for other in self._tracks):
                self._reports.pop(job, None)

    def _job(self, namespace: str, job: str, owners: Sequence[Owner]) -> JobUsage:
        parts = {owner: self._tracks[owner].window.signals() for owner in owners}
        signals = together(list(parts.values()))
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
            utilisation=figures(signals.utilisation),
            memory_mib=_last(memory),
            memory_peak_mib=None if np.isnan(memory).all() else float(np.nanmax(memory)),
            memory_plateau_mib=memory_plateau_mib(memory),
            period_s=period_s,
            behaviour=behaviour(signals, period_s, reports_steps=progress is not None),
            progress=progress,
            slowdown=_slowdown(signals, reports),
        )

    def _period_s(self, signals: Signals, gpus: Iterable[int]) -> float | None:
        """Short ones from the driver's own samples, which do not tell processes apart; else long ones."""
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
            figures(signals.utilisation),
            _last(signals.memory_mib),
        )

    def _samples(self, time_s: float) -> int:
        return max(2, round(time_s / self.timing.interval_s))


def _whole(gpu: GpuSample, time_s: float) -> Moment:
    """One sample of a GPU, whoever uses it."""
    return Moment(
        time_s=time_s,
        utilisation=_nan(gpu.utilisation),
        memory_mib=_nan(gpu.memory_used_mib),
        sm_activity=_nan(gpu.sm_activity),
        pcie_mib_s=_nan(gpu.pcie_mib_s),
        nvlink_mib_s=_nan(gpu.nvlink_mib_s),
        power_w=_nan(gpu.power_w),
        temperature_c=_nan(gpu.temperature_c),
    )


def _gpu_usage(gpu: GpuSample, signals: Signals, owners: Iterable[Owner]) -> GpuUsage:
    found = figures(signals.utilisation)
    return GpuUsage(
        gpu.index,
        gpu.uuid,
        gpu.model,
        gpu.memory_mib,
        memory_used_mib=gpu.memory_used_mib,
        # A GPU that tells nothing now is not known by what it told before.
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
    """By its own steps where it tells of them, else by what it gets of the GPU's time."""
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


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def _last(values: Floats) -> float | None:
    return None if not len(values) or math.isnan(values[-1]) else float(values[-1])
