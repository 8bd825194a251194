"""Kinds of jobs: which applications get a colour of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batuta.backends.sim.result import RunResult
from batuta.core.job import JobId, JobState
from batuta.report.charts.bars import Bar, bar_chart
from batuta.report.palette import SERIES, series_class
from batuta.report.plot import Key

UNNAMED = "no application"
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Applications:
    """The applications with the most GPU time, numbered from 1; number 0 holds the rest."""

    names: tuple[str, ...]
    of_job: Mapping[JobId, int]
    has_rest: bool

    @property
    def keys(self) -> list[Key]:
        named = [Key(name or UNNAMED, series_class(k + 1)) for k, name in enumerate(self.names)]
        return [*named, Key(OTHER, series_class(0))] if self.has_rest else named


def find_applications(runs: Sequence[RunResult]) -> Applications:
    """The colours of applications, the same in every run."""
    held: dict[str, float] = {}
    for run in runs:
        for job in run.jobs:
            held[job.application] = held.get(job.application, 0.0) + job.gpu_s
    largest = sorted(held, key=lambda name: (-held[name], name))[: SERIES - 1]
    # By name, so that a change of policy does not move the colours.
    names = tuple(sorted(largest))
    numbers = {name: k + 1 for k, name in enumerate(names)}
    of_job = {job.id: numbers.get(job.application, 0) for run in runs for job in run.jobs}
    return Applications(names, of_job, len(held) > len(names))


def application_bars(run: RunResult, applications: Applications) -> str:
    """Mean JCT by application, for a report of one run."""
    bars = []
    for k, key in enumerate(applications.keys):
        number = k + 1 if k < len(applications.names) else 0
        jct = np.array(
            [
                job.jct_s
                for job in run.jobs
                if job.state is JobState.SUCCEEDED and applications.of_job[job.id] == number
            ]
        )
        p50, p90 = (float(q) for q in np.percentile(jct, (50, 90))) if len(jct) else (np.nan, np.nan)
        bars.append(Bar(key.label, key.style, float(jct.mean()) if len(jct) else np.nan, p50, p90))
    return bar_chart("application-bars", "Mean job completion time by application", bars)
