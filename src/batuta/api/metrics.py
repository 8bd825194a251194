"""Prometheus: what the World, the engine and the journal look like at a scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from batuta.api import cycle_watch, event_counts
from batuta.api.auth import check_viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.picture import Picture
from batuta.api.queue_view import view_queues
from batuta.api.routes import problems
from batuta.api.views import count_gpus
from batuta.core.job import JobState

router = APIRouter(tags=["metrics"])
MOST_JOBS = 50
"""Running jobs that get time series of their own: the first ones by submit time."""
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/metrics", response_class=Response, responses=_TEXT | problems())
async def get_metrics(request: Request, desk: AtDesk) -> Response:
    """Needs a token, unless the server was started with --open-metrics."""
    if not desk.parts.open_metrics:
        await check_viewer(request)
    picture = await desk.look()
    text = await anyio.to_thread.run_sync(expose, desk, picture)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def expose(desk: Desk, picture: Picture) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(desk, picture))
    return generate_latest(registry)


class _Scrape(Collector):
    """One look at everything."""

    def __init__(self, desk: Desk, picture: Picture) -> None:
        self._desk = desk
        self._picture = picture

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._world()
        yield from self._engine()
        yield from self._events()
        yield from _jobs(self._picture)

    def _world(self) -> Iterator[Metric]:
        picture = self._picture
        states = {(state.value,): count for state, count in picture.state_counts.items()}
        yield _gauge(
            "batuta_jobs", "Jobs by state; those that are over are all that are known.", ["state"], states
        )
        gpus = {(state,): count for state, count in count_gpus(picture).items()}
        yield _gauge("batuta_gpus", "GPUs: total is the sum of the other three.", ["state"], gpus)
        queues = view_queues(picture)
        pending = {(queue["name"],): queue["pending"] for queue in queues}
        yield _gauge("batuta_queue_pending", "Jobs that wait, by queue.", ["queue"], pending)
        used = {(queue["name"],): queue["used"].get("*", 0) for queue in queues}
        yield _gauge("batuta_queue_gpus", "GPUs that are used, by queue.", ["queue"], used)

    def _engine(self) -> Iterator[Metric]:
        parts, cycles = self._desk.parts, self._desk.parts.cycles
        histogram = HistogramMetricFamily("batuta_cycle_seconds", "Time of one decision and its commands.")
        histogram.add_metric([], _buckets(cycle_watch.BUCKETS_S, cycles.buckets), cycles.total_s)
        yield histogram
        yield _count("batuta_engine_cpu_seconds", "CPU time of the engine's thread.", parts.service.cpu_s)
        healthy = 0 if parts.service.trouble or not parts.service.running else 1
        yield _gauge("batuta_engine_healthy", "1 when the engine goes on.", [], {(): healthy})
        seq = self._desk.journal.durable_seq
        yield _gauge("batuta_journal_seq", "The number of the last event that is durable.", [], {(): seq})
        info = InfoMetricFamily("batuta_build", "What runs.")
        policy = self._picture.policy or parts.policy
        info.add_metric([], {"version": parts.version, "policy": policy})
        yield info

    def _events(self) -> Iterator[Metric]:
        counts = self._desk.counts
        events = CounterMetricFamily("batuta_events", "Events since the start, by type.", labels=["type"])
        for kind, count in counts.by_type.items():
            events.add_metric([kind], count)
        yield events
        steps = HistogramMetricFamily(
            "batuta_transition_seconds", "Steps of starts, resizes and preemptions.", labels=["step"]
        )
        for step in event_counts.STEPS:
            buckets = _buckets(event_counts.BUCKETS_S, counts.buckets[step])
            steps.add_metric([step], buckets, counts.total_s[step])
        yield steps


def _jobs(picture: Picture) -> Iterator[Metric]:
    """Only some, so that the number of time series stays bounded."""
    running = [
        (job, picture.progress[job.id])
        for job, state in zip(picture.jobs, picture.states, strict=True)
        if state is JobState.RUNNING and job.id in picture.progress
    ][:MOST_JOBS]
    for name, help_, field in (
        ("batuta_job_samples_per_second", "Speed, as reported.", "samples_per_s"),
        ("batuta_job_step_seconds", "Time of a step, as reported.", "step_s"),
        ("batuta_job_progress_ratio", "How much of its work is done.", "fraction"),
    ):
        values = {(job.id, job.name): getattr(progress, field) for job, progress in running}
        known = {labels: value for labels, value in values.items() if value is not None}
        yield _gauge(name, help_, ["job", "name"], known)


def _gauge(name: str, help_: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for own, value in values.items():
        family.add_metric(list(own), value)
    return family


def _count(name: str, help_: str, value: float) -> Metric:
    family = CounterMetricFamily(name, help_, labels=[])
    family.add_metric([], value)
    return family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Summed up, as Prometheus wants them."""
    found, total = [], 0
    for bound, count in zip((*map(str, bounds), "+Inf"), list(counts), strict=True):
        total += count
        found.append((bound, float(total)))
    return found
