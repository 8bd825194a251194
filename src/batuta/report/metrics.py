"""What policies are compared by: one line per column of every table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast


class Kind(Enum):
    """What a value measures, and with that the way it is shown."""

    TIME = "time"
    FACTOR = "factor"
    SHARE = "share"
    COUNT = "count"
    GPU_TIME = "gpu-time"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a run. Values of a group stand side by side and share their unit."""

    key: str
    group: str
    label: str
    kind: Kind
    path: tuple[str, ...]
    """Where it is in the summary of a run."""
    meaning: str
    higher_is_better: bool = False
    needs_finished: bool = False
    """Not defined for a run in which no job finished."""


MEAN_JCT = "jct_mean_s"

METRICS: tuple[Metric, ...] = (
    Metric(
        MEAN_JCT,
        "JCT",
        "mean",
        Kind.TIME,
        ("jct_s", "mean"),
        "job completion time, submission to end; mean over finished jobs",
        needs_finished=True,
    ),
    Metric(
        "jct_p50_s",
        "JCT",
        "p50",
        Kind.TIME,
        ("jct_s", "p50"),
        "half of the jobs took no longer",
        needs_finished=True,
    ),
    Metric(
        "jct_p90_s",
        "JCT",
        "p90",
        Kind.TIME,
        ("jct_s", "p90"),
        "nine jobs of ten took no longer",
        needs_finished=True,
    ),
    Metric(
        "jct_p99_s",
        "JCT",
        "p99",
        Kind.TIME,
        ("jct_s", "p99"),
        "99 jobs of 100 took no longer",
        needs_finished=True,
    ),
    Metric("wait_mean_s", "Wait", "mean", Kind.TIME, ("wait_s", "mean"), "submission to first start"),
    Metric(
        "makespan_s",
        "Makespan",
        "",
        Kind.TIME,
        ("makespan_s",),
        "first submission to last end",
        needs_finished=True,
    ),
    Metric(
        "fairness_mean",
        "Fairness ρ",
        "mean",
        Kind.FACTOR,
        ("finish_time_fairness", "mean"),
        "finish-time fairness: JCT over the time that a fair share of the cluster would have taken",
        needs_finished=True,
    ),
    Metric(
        "fairness_max",
        "Fairness ρ",
        "max",
        Kind.FACTOR,
        ("finish_time_fairness", "max"),
        "ρ of the job that was treated worst",
        needs_finished=True,
    ),
    Metric(
        "fairness_above_one",
        "Fairness ρ",
        "> 1",
        Kind.SHARE,
        ("finish_time_fairness", "above_one"),
        "share of jobs that a fair share would have served better",
        needs_finished=True,
    ),
    Metric(
        "gpu_utilisation",
        "GPUs",
        "used",
        Kind.SHARE,
        ("gpu_utilisation",),
        "GPU time held by jobs over GPU time offered, first event to last",
        higher_is_better=True,
    ),
    Metric(
        "fragmentation",
        "GPUs",
        "frag.",
        Kind.SHARE,
        ("fragmentation",),
        "fragmentation: share of the free GPUs that lie on partly used nodes, mean over time",
    ),
    Metric("restarts", "Changes", "restarts", Kind.COUNT, ("restarts",), "times that a job started again"),
    Metric("migrations", "Changes", "migr.", Kind.COUNT, ("migrations",), "times that a job moved"),
    Metric(
        "preemptions",
        "Changes",
        "preempt.",
        Kind.COUNT,
        ("preemptions",),
        "times that a job lost all its GPUs",
    ),
    Metric(
        "lost_gpu_s",
        "Lost",
        "GPU-h",
        Kind.GPU_TIME,
        ("lost_gpu_s",),
        "GPU time held without keeping progress: restarts, and work after the last checkpoint",
    ),
    Metric(
        "decide_mean_ms",
        "Decide",
        "mean",
        Kind.MILLISECONDS,
        ("decide_ms", "mean"),
        "time of one decision cycle",
    ),
    Metric(
        "decide_p99_ms",
        "Decide",
        "p99",
        Kind.MILLISECONDS,
        ("decide_ms", "p99"),
        "99 cycles of 100 took no longer",
    ),
)


def values_of(summary: Mapping[str, object]) -> dict[str, float]:
    """Every metric of one run's summary; NaN for what does not exist."""
    finished = bool(summary["finished"])
    values = {}
    for metric in METRICS:
        value = _walk(summary, metric.path) if finished or not metric.needs_finished else math.nan
        # ρ is positive: the zero of a summary means that no job had one.
        if metric.path[0] == "finish_time_fairness" and _walk(summary, (metric.path[0], "max")) == 0:
            value = math.nan
        values[metric.key] = value
    return values


def _walk(summary: Mapping[str, object], path: tuple[str, ...]) -> float:
    found: object = summary
    for name in path:
        found = cast("Mapping[str, object]", found)[name]
    return float(cast("float", found))
