"""Prometheus: what the World, the engine and the journal look like at a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from batuta.api import cycle_watch, event_counts
from batuta.api.auth import check_viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.duration_metrics import duration_metrics
from batuta.api.metric_families import buckets, counter, gauge
from batuta.api.picture import Picture
from batuta.api.queue_metrics import queue_metrics
from batuta.api.routes import problems
from batuta.api.shadow_metrics import shadow_metrics
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
        yield from duration_metrics(self._desk.parts.experience.calibration())
        shadow = self._desk.parts.shadow
        yield from shadow_metrics(None if shadow is None else shadow.report)

    def _world(self) -> Iterator[Metric]:
        picture = self._picture
        states = {(state.value,): count for state, count in picture.state_counts.items()}
        yield gauge(
            "batuta_jobs", "Jobs by state; those that are over are all that are known.", ["state"], states
        )
        gpus = {(state,): count for state, count in count_gpus(picture).items()}
        yield gauge("batuta_gpus", "GPUs: total is the sum of the other three.", ["state"], gpus)
        yield from queue_metrics(picture, self._desk.queue_counts)

    def _engine(self) -> Iterator[Metric]:
        parts, cycles = self._desk.parts, self._desk.parts.cycles
        histogram = HistogramMetricFamily("batuta_cycle_seconds", "Time of one decision and its commands.")
        histogram.add_metric([], buckets(cycle_watch.BUCKETS_S, cycles.buckets), cycles.total_s)
        yield histogram
        yield counter(
            "batuta_engine_cpu_seconds", "CPU time of the engine's thread.", [], {(): parts.service.cpu_s}
        )
        healthy = 0 if parts.service.trouble or not parts.service.running else 1
        yield gauge("batuta_engine_healthy", "1 when the engine goes on.", [], {(): healthy})
        seq = self._desk.journal.durable_seq
        yield gauge("batuta_journal_seq", "The number of the last event that is durable.", [], {(): seq})
        info = InfoMetricFamily("batuta_build", "What runs.")
        policy = self._picture.policy or parts.policy
        info.add_metric([], {"version": parts.version, "policy": policy})
        yield info

    def _events(self) -> Iterator[Metric]:
        counts = self._desk.counts
        by_type = {(kind,): count for kind, count in counts.by_type.items()}
        yield counter("batuta_events", "Events since the start, by type.", ["type"], by_type)
        steps = HistogramMetricFamily(
            "batuta_transition_seconds", "Steps of starts, resizes and preemptions.", labels=["step"]
        )
        for step in event_counts.STEPS:
            within = buckets(event_counts.BUCKETS_S, counts.buckets[step])
            steps.add_metric([step], within, counts.total_s[step])
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
        yield gauge(name, help_, ["job", "name"], known)
