"""The scheduler as metrics: cycles and their steps, decisions and their reasons, waiting, GPU time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from batuta.api import cycle_watch, event_counts
from batuta.api.cycle_watch import CycleWatch
from batuta.api.metric_families import buckets, counter, gauge
from batuta.api.picture import Picture
from batuta.api.reason_counts import count_reasons
from batuta.api.schedule_counts import ScheduleCounts, Times


def schedule_metrics(picture: Picture, watch: CycleWatch, now_s: float) -> Iterator[Metric]:
    """`now_s` by the clock: GPU time goes on while nothing happens."""
    yield from _cycles(watch)
    yield from _decisions(picture, watch.schedule)
    yield from _jobs(watch.schedule)
    yield from _costs(watch, now_s)
    yield from _events(watch.events)


def _cycles(watch: CycleWatch) -> Iterator[Metric]:
    whole = HistogramMetricFamily("batuta_cycle_seconds", "Time of one decision and its commands.")
    whole.add_metric([], buckets(cycle_watch.BUCKETS_S, watch.buckets), watch.total_s)
    yield whole
    steps = HistogramMetricFamily("batuta_cycle_step_seconds", "Time of a step of a cycle.", labels=["step"])
    for step, counts in watch.step_buckets.items():
        steps.add_metric([step], buckets(cycle_watch.BUCKETS_S, counts), watch.step_total_s[step])
    yield steps


def _decisions(picture: Picture, counts: ScheduleCounts) -> Iterator[Metric]:
    yield counter(
        "batuta_commands",
        "Commands of plans: start, resize, migrate, preempt and stop, by reason.",
        ["kind", "reason"],
        dict(counts.commands),
    )
    given = {(kind,): gpus for kind, gpus in dict(counts.given_gpus).items()}
    yield counter("batuta_given_gpus", "GPUs that jobs were given, by kind of command.", ["kind"], given)
    reasons = {} if picture.plan is None else count_reasons(picture.plan.decisions)
    yield gauge(
        "batuta_jobs_by_reason",
        "Living jobs, by the reason why they have what they have.",
        ["reason"],
        {(reason,): count for reason, count in reasons.items()},
    )


def _jobs(counts: ScheduleCounts) -> Iterator[Metric]:
    yield counter("batuta_jobs_submitted", "Jobs that came.", [], {(): counts.submitted})
    ended = {(state,): count for state, count in dict(counts.ended).items()}
    yield counter("batuta_jobs_ended", "Jobs that are over, by how they ended.", ["state"], ended)
    yield _times("batuta_job_wait_seconds", "From submit to the first start.", counts.waits)
    yield _times(
        "batuta_job_completion_seconds", "From submit to the end of jobs that succeeded.", counts.lengths
    )


def _costs(watch: CycleWatch, now_s: float) -> Iterator[Metric]:
    spent = {(use,): seconds for use, seconds in watch.gpu_time.at(now_s).items()}
    yield counter("batuta_gpu_seconds", "Where the time of all GPUs goes.", ["use"], spent)
    lost = {(cause,): seconds for cause, seconds in watch.schedule.lost_gpu_s.items()}
    yield counter(
        "batuta_lost_gpu_seconds",
        "The part of the used GPU time whose work has to be done again, by what broke it off.",
        ["cause"],
        lost,
    )


def _events(counts: event_counts.EventCounts) -> Iterator[Metric]:
    by_type = {(kind,): count for kind, count in dict(counts.by_type).items()}
    yield counter("batuta_events", "Events since the start, by type.", ["type"], by_type)
    steps = HistogramMetricFamily(
        "batuta_transition_seconds", "Steps of starts, resizes and preemptions.", labels=["step"]
    )
    for step in event_counts.STEPS:
        within = buckets(event_counts.BUCKETS_S, counts.buckets[step])
        steps.add_metric([step], within, counts.total_s[step])
    yield steps


def _times(name: str, help_: str, times: Times) -> Metric:
    family = HistogramMetricFamily(name, help_)
    family.add_metric([], buckets(times.bounds_s, times.buckets), times.total_s)
    return family
