"""The metrics that policies are compared by: one line per column of every table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast


class MetricKind(Enum):
    """What a value measures, which decides how it is shown."""

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
    kind: MetricKind
    path: str  # where it is in the summary of a run, with dots between the keys
    meaning: str
    higher_is_better: bool = False


MEAN_JCT = "jct_mean_s"
_FAIRNESS = "finish_time_fairness"
_TIME, _FACTOR, _SHARE = MetricKind.TIME, MetricKind.FACTOR, MetricKind.SHARE
_COUNT, _GPU_TIME, _MS = MetricKind.COUNT, MetricKind.GPU_TIME, MetricKind.MILLISECONDS
_JCT = "job completion time, submission to end; mean over finished jobs"
_RHO = "finish-time fairness: JCT over the time that a fair share of the cluster would have taken"
_ABOVE_ONE = "share of jobs that a fair share would have served better"
_USED = "GPU time held by jobs over GPU time offered, first event to last"
_FRAGMENTED = "fragmentation: share of the free GPUs that lie on partly used nodes, mean over time"
_LOST = "GPU time held without keeping progress: restarts, and work after the last checkpoint"

METRICS: tuple[Metric, ...] = (
    Metric(MEAN_JCT, "JCT", "mean", _TIME, "jct_s.mean", _JCT),
    Metric("jct_p50_s", "JCT", "p50", _TIME, "jct_s.p50", "half of the jobs took no longer"),
    Metric("jct_p90_s", "JCT", "p90", _TIME, "jct_s.p90", "nine jobs of ten took no longer"),
    Metric("jct_p99_s", "JCT", "p99", _TIME, "jct_s.p99", "99 jobs of 100 took no longer"),
    Metric("wait_mean_s", "Wait", "mean", _TIME, "wait_s.mean", "submission to first start"),
    Metric("makespan_s", "Makespan", "", _TIME, "makespan_s", "first submission to last end"),
    Metric("fairness_mean", "Fairness ρ", "mean", _FACTOR, f"{_FAIRNESS}.mean", _RHO),
    Metric("fairness_max", "Fairness ρ", "max", _FACTOR, f"{_FAIRNESS}.max", "ρ of the job that was treated worst"),
    Metric("fairness_above_one", "Fairness ρ", "> 1", _SHARE, f"{_FAIRNESS}.above_one", _ABOVE_ONE),
    Metric("gpu_utilisation", "GPUs", "used", _SHARE, "gpu_utilisation", _USED, higher_is_better=True),
    Metric("fragmentation", "GPUs", "frag.", _SHARE, "fragmentation", _FRAGMENTED),
    Metric("restarts", "Changes", "restarts", _COUNT, "restarts", "times that a job started again"),
    Metric("migrations", "Changes", "migr.", _COUNT, "migrations", "times that a job moved"),
    Metric("preemptions", "Changes", "preempt.", _COUNT, "preemptions", "times that a job lost all its GPUs"),
    Metric("lost_gpu_s", "Lost", "GPU-h", _GPU_TIME, "lost_gpu_s", _LOST),
    Metric("decide_mean_ms", "Decide", "mean", _MS, "decide_ms.mean", "time of one decision cycle"),
    Metric("decide_p99_ms", "Decide", "p99", _MS, "decide_ms.p99", "99 cycles of 100 took no longer"),
)


def metric_values(summary: Mapping[str, object]) -> dict[str, float]:
    """Return every metric of one run's summary; NaN for what does not exist."""
    # ρ is positive: the zero of a summary means that no job had one.
    has_fairness = _value_at(summary, f"{_FAIRNESS}.max") != 0
    values = {}
    for metric in METRICS:
        is_fairness = metric.path.startswith(_FAIRNESS)
        needs_finished = is_fairness or metric.path.startswith(("jct_s", "makespan_s"))
        is_defined = (summary["finished"] or not needs_finished) and (has_fairness or not is_fairness)
        values[metric.key] = _value_at(summary, metric.path) if is_defined else math.nan
    return values


def _value_at(summary: Mapping[str, object], path: str) -> float:
    found: object = summary
    for name in path.split("."):
        found = cast("Mapping[str, object]", found)[name]
    return float(cast("float", found))
