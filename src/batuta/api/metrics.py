"""Prometheus: what the World, the engine and the journal look like at a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from batuta.api.auth import check_viewer
from batuta.api.cycle_watch import CycleWatch
from batuta.api.desk import AtDesk, Desk
from batuta.api.duration_metrics import duration_metrics
from batuta.api.health_metrics import health_metrics
from batuta.api.job_metrics import job_metrics
from batuta.api.metric_families import counter, gauge
from batuta.api.node_metrics import node_metrics
from batuta.api.parts import NodeFacts
from batuta.api.picture import Picture
from batuta.api.queue_metrics import queue_metrics
from batuta.api.routes import problems
from batuta.api.schedule_metrics import schedule_metrics
from batuta.api.shadow_metrics import shadow_metrics
from batuta.api.telemetry_metrics import telemetry_metrics
from batuta.engine.service import Service

router = APIRouter(tags=["metrics"])
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
        parts = self._desk.parts
        yield from cluster_metrics(
            self._picture, parts.cycles, self._desk.now_s(), parts.nodes, parts.metrics_per_job
        )
        yield from self._engine()
        yield from health_metrics(parts.node_health.seen())
        yield from duration_metrics(parts.experience.calibration())
        yield from shadow_metrics(None if parts.shadow is None else parts.shadow.report)
        yield from telemetry_metrics(parts.spans)

    def _engine(self) -> Iterator[Metric]:
        parts = self._desk.parts
        seq = self._desk.journal.durable_seq
        yield gauge("batuta_journal_seq", "The number of the last event that is durable.", [], {(): seq})
        yield from engine_metrics(parts.service, parts.version, self._picture.policy or parts.policy)


def cluster_metrics(
    picture: Picture, watch: CycleWatch, now_s: float, facts: NodeFacts, per_job: int
) -> Iterator[Metric]:
    """Scheduler, jobs, nodes and queues: the same wherever an engine runs."""
    states = {(state.value,): count for state, count in picture.state_counts.items()}
    yield gauge(
        "batuta_jobs", "Jobs by state; those that are over are all that are known.", ["state"], states
    )
    yield from node_metrics(picture, facts)
    yield from queue_metrics(picture, watch.schedule, now_s)
    yield from schedule_metrics(picture, watch, now_s)
    yield from job_metrics(picture, per_job)


def engine_metrics(service: Service, version: str, policy: str) -> Iterator[Metric]:
    """Whether it goes on, and what runs."""
    yield counter("batuta_engine_cpu_seconds", "CPU time of the engine's thread.", [], {(): service.cpu_s})
    healthy = 0 if service.trouble or not service.running else 1
    yield gauge("batuta_engine_healthy", "1 when the engine goes on.", [], {(): healthy})
    info = InfoMetricFamily("batuta_build", "What runs.")
    info.add_metric([], {"version": version, "policy": policy})
    yield info
