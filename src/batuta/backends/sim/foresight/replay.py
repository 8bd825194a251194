"""A span of the journal under another policy: the same jobs, arrivals, failures and wishes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batuta.backends.sim.foresight.effort import plan_effort
from batuta.backends.sim.foresight.forecast import Rulebook
from batuta.backends.sim.foresight.fork import machines_of, twin_at
from batuta.backends.sim.foresight.future import Future, Limits, look_ahead
from batuta.backends.sim.foresight.history import Span
from batuta.backends.sim.foresight.reporting import ReportingMachines
from batuta.core.job import JobId


@dataclass(frozen=True, slots=True)
class Replayed:
    """What jobs took, over those that ended in reality within the span and in every replay."""

    policy: str
    """Empty for what really happened."""
    jct_s: float
    wait_s: float
    """Without GPUs, since the beginning of the span."""
    gpu_hours: float
    restarts: int
    preemptions: int
    jobs: int
    missing: int
    """Jobs that ended in reality, and not here."""


def replay_span(span: Span, book: Rulebook) -> Future:
    """What would have become of the span's jobs."""
    twin = twin_at(span.begin, span.from_s)
    left_s = {job: span.truth[job].work_s for job in twin.jobs.ids}
    measured = {job: span.truth[job].measured for job in twin.jobs.ids}
    outside = replace(span.outside, arrivals=span.sims())
    machines = machines_of(twin, left_s, outside, measured=measured)
    backend = ReportingMachines(machines, {job for job, one in span.truth.items() if one.reports})
    awaited = {job for job, one in span.truth.items() if one.ended}
    effort = plan_effort(twin, len(span.truth))
    limits = Limits(precision=effort.precision if effort.runs == 1 else 0.0)
    return look_ahead(twin, backend, book.make(), book.cadence, awaited, limits)


def tell(span: Span, futures: Sequence[tuple[str, Future]]) -> list[Replayed]:
    """What really happened first, then each replay, over the same jobs."""
    ended = [job for job, one in span.truth.items() if one.ended]
    common = [job for job in ended if all(job in future.end_s for _, future in futures)]
    submit_s = {job.id: job.submit_s for job in (*span.begin.jobs.jobs, *span.arrivals)}
    rows = [("", span.really), *futures]
    return [_row(policy, future, common, ended, submit_s) for policy, future in rows]


def _row(
    policy: str,
    future: Future,
    common: Sequence[JobId],
    ended: Sequence[JobId],
    submit_s: dict[JobId, float],
) -> Replayed:
    count = len(common)
    return Replayed(
        policy,
        sum(future.end_s[job] - submit_s[job] for job in common) / count if count else math.nan,
        sum(future.wait_s.get(job, 0.0) for job in common) / count if count else math.nan,
        sum(future.gpu_s.get(job, 0.0) for job in common) / 3600.0,
        sum(future.restarts_of.get(job, 0) for job in common),
        future.preemptions,
        count,
        sum(job not in future.end_s for job in ended),
    )
