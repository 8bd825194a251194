"""Single jobs as metrics: their GPUs, progress, speed and goodput.

Only some have series of their own, so that their number stays bounded however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from prometheus_client.core import Metric

from batuta.api.metric_families import counter, gauge
from batuta.api.parts import MOST_JOBS
from batuta.api.picture import Picture
from batuta.core.job_table import JobTable
from batuta.core.reason import Reason

_LABELS = ("job_id", "name")
"""Not `job`: Prometheus calls what it scrapes so, and would rename ours."""
_PROGRESS = (
    ("batuta_job_samples_per_second", "Speed, as reported.", "samples_per_s"),
    ("batuta_job_step_seconds", "Time of a step, as reported.", "step_s"),
    ("batuta_job_progress_ratio", "How much of its work is done.", "fraction"),
)


def job_metrics(picture: Picture, most: int = MOST_JOBS) -> Iterator[Metric]:
    """Of at most so many jobs, 0 for none: of those that have GPUs, the first by submit time."""
    rows = list(islice((row for row, held in enumerate(picture.placements) if held is not None), most))
    labels = {row: (picture.jobs[row].id, picture.jobs[row].name) for row in rows}
    yield from _gpus(picture, labels)
    told = {own: picture.progress[own[0]] for own in labels.values() if own[0] in picture.progress}
    for name, help_, field in _PROGRESS:
        values = {own: getattr(progress, field) for own, progress in told.items()}
        known = {own: value for own, value in values.items() if value is not None}
        yield gauge(name, help_, _LABELS, known)
    yield gauge(
        "batuta_job_idle_seconds",
        "How long a job holds GPUs without using them, of those for which that is too long.",
        _LABELS,
        dict(islice(_idle(picture), most)),
    )


def _gpus(picture: Picture, labels: dict[int, tuple[str, str]]) -> Iterator[Metric]:
    gpus, restarts = (picture.ints[JobTable.I[name]] for name in ("gpus", "restarts"))
    anchor_s, rate, attained, done_s = (
        picture.floats[JobTable.F[name]] for name in ("anchor_s", "rate", "attained_gpu_s", "done_s")
    )
    # Progress and service are booked when something changes; what has come since follows from the rate.
    since_s = np.maximum(picture.now_s - anchor_s, 0.0)
    held_gpu_s, worked_s = attained + gpus * since_s, done_s + rate * since_s
    yield gauge(
        "batuta_job_gpus", "GPUs of a job.", _LABELS, {own: int(gpus[row]) for row, own in labels.items()}
    )
    yield counter(
        "batuta_job_gpu_seconds",
        "GPU-seconds that a job has held.",
        _LABELS,
        {own: float(held_gpu_s[row]) for row, own in labels.items()},
    )
    yield gauge(
        "batuta_job_goodput_ratio",
        "Work done for each GPU-second held: 1 when it scales perfectly and nothing was lost.",
        _LABELS,
        {own: worked_s[row] / held_gpu_s[row] for row, own in labels.items() if held_gpu_s[row] > 0},
    )
    yield counter(
        "batuta_job_restarts",
        "How often a job lost its GPUs or was given others.",
        _LABELS,
        {own: int(restarts[row]) for row, own in labels.items()},
    )


def _idle(picture: Picture) -> Iterator[tuple[tuple[str, str], float]]:
    decisions = () if picture.plan is None else picture.plan.decisions.special.items()
    for row, (reason, evidence) in decisions:
        if reason is Reason.IDLE and picture.plan is not None:
            job = picture.plan.decisions.ids[row]
            if job in picture.rows:
                yield (job, picture.jobs[picture.rows[job]].name), dict(evidence)["idle_s"]
