"""What the profiler reports, as values: how GPUs are used, by which jobs, and how far the jobs say they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from batuta.gpu.owners import Owner
from batuta.gpu.profiler.behaviour import Behaviour
from batuta.gpu.profiler.signals import Floats, SampleStats
from batuta.spec.progress import LONGEST_LINE_BYTES, ProgressReport, parse_line

_RECENT: Final = 32  # reports that say how fast a job is now
_PROGRESS_MAX_BYTES: Final = 1 << 16  # read at a time; of a longer text only the newest lines are read
_FEWEST_STEPS: Final = 3
_FEWEST_SAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class StepReport:
    """One report of `batuta.sdk`."""

    time_s: float
    step: float
    total_steps: float | None = None


class ProgressFiles:
    """Reads the lines that `batuta.sdk` adds to jobs' files. Only rank 0 counts: all report the same."""

    def __init__(self) -> None:
        self._read_bytes: dict[str, int] = {}

    def read_new(self, files: Mapping[str, str]) -> Iterator[tuple[str, StepReport]]:
        """Yield the reports since the last call, each with its job. `files`: by job, the file to which it reports."""
        self._read_bytes = {job: count for job, count in self._read_bytes.items() if job in files}
        for job, path in files.items():
            for one in self._reports(job, Path(path)):
                if one.time_s is not None and one.step is not None and not one.rank:
                    yield job, StepReport(one.time_s, one.step, one.total_steps)

    def _reports(self, job: str, path: Path) -> Sequence[ProgressReport]:
        try:
            # A job chooses the path: a pipe would block the agent.
            if not path.is_file():
                return ()
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = self._read_bytes.get(job, 0)
                begin = max(begin if begin <= size else 0, size - _PROGRESS_MAX_BYTES)
                file.seek(begin)
                text = file.read(_PROGRESS_MAX_BYTES)
        except OSError:
            return ()
        end = text.rfind(b"\n") + 1
        if len(text) - end > LONGEST_LINE_BYTES:
            end = len(text)  # no report is so long: what the job is writing there is skipped
        self._read_bytes[job] = begin + end
        return [report for line in text[:end].split(b"\n") if (report := parse_line(line)) is not None]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a job is, how fast, and when it will be done."""

    step: float
    step_time_s: float | None = None
    finish_s: float | None = None  # seconds since 1970; None where the job does not say how many steps it has


def progress_of(reports: Sequence[StepReport]) -> Progress | None:
    """Return the progress by a job's reports, in the order of time; None without any."""
    if not reports:
        return None
    recent = _since_restart(reports)[-_RECENT:]
    last = recent[-1]
    pace_s = _pace_s(recent)
    finish_s = None
    if pace_s is not None and last.total_steps is not None:
        finish_s = last.time_s + max(last.total_steps - last.step, 0.0) * pace_s
    return Progress(last.step, pace_s, finish_s)


def slowdown(step_times_s: Floats, shared: Floats) -> float | None:
    """Return how many times longer a step takes with neighbours on its GPU; None if unknown.

    `shared`: the number of neighbours during each step.
    """
    alone, crowded = step_times_s[shared == 0], step_times_s[shared > 0]
    if min(len(alone), len(crowded)) < _FEWEST_STEPS:
        return None
    return max(1.0, float(np.median(crowded) / max(np.median(alone), 1e-9)))


def lost_share(alone: Floats, crowded: Floats) -> float | None:
    """Return the same without steps: the share of the GPU's time alone, divided by that with others."""
    if min(len(alone), len(crowded)) < _FEWEST_SAMPLES:
        return None
    has = float(np.mean(crowded))
    return max(1.0, float(np.mean(alone)) / has) if has > 0.01 else None


def _since_restart(reports: Sequence[StepReport]) -> Sequence[StepReport]:
    """Return the reports since the steps last began again: a resumed job goes back to its checkpoint."""
    for place in range(len(reports) - 1, 0, -1):
        if reports[place].step < reports[place - 1].step:
            return reports[place:]
    return reports


def _pace_s(reports: Sequence[StepReport]) -> float | None:
    paces = [
        (after.time_s - before.time_s) / (after.step - before.step)
        for before, after in pairwise(reports)
        if after.step > before.step and after.time_s > before.time_s
    ]
    return float(np.median(paces)) if paces else None


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """One GPU over the time of the last report. None: not measured."""

    index: int
    uuid: str
    model: str
    memory_mib: float
    memory_used_mib: float | None
    utilisation: float | None  # mean, from 0 to 1
    utilisation_peak: float | None
    sm_activity: float | None
    pcie_mib_s: float | None
    nvlink_mib_s: float | None
    power_w: float | None
    temperature_c: float | None
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True, slots=True)
class PodUsage:
    """One pod of a job, or one replica."""

    owner: Owner
    gpus: tuple[int, ...]
    utilisation: SampleStats | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class JobUsage:
    """A job on this node: its pods as one."""

    job: str
    namespace: str
    pods: tuple[PodUsage, ...]
    gpus: tuple[int, ...]
    utilisation: SampleStats | None
    memory_mib: float | None  # now, of all its GPUs together
    memory_peak_mib: float | None
    memory_plateau_mib: float | None
    period_s: float | None  # between two iterations, as seen in the use of its GPUs
    behaviour: Behaviour
    progress: Progress | None = None
    slowdown: float | None = None  # how many times slower neighbours on its GPUs make it; 1: not at all

    @property
    def step_time_s(self) -> float | None:
        """By the job's own reports, else by the use of its GPUs."""
        reported_s = None if self.progress is None else self.progress.step_time_s
        return self.period_s if reported_s is None else reported_s


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What the profiler of one node reports."""

    node: str
    time_s: float  # of the last sample, in seconds since 1970
    gpus: tuple[GpuUsage, ...]
    jobs: tuple[JobUsage, ...]
