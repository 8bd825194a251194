"""What Prometheus reads of an operator that leads."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from batuta.api.duration_metrics import duration_metrics
from batuta.api.health_metrics import health_metrics
from batuta.api.metric_families import counter, gauge
from batuta.api.metrics import cluster_metrics, engine_metrics
from batuta.api.parts import NoFacts
from batuta.api.shadow_metrics import shadow_metrics
from batuta.api.telemetry_metrics import telemetry_metrics
from batuta.bootstrap import version
from batuta.bootstrap.operator_health import SeenByOperator
from batuta.bootstrap.operator_leader import Leader


def expose(leader: Leader | None, per_job: int) -> str:
    """All of it, with so many jobs one by one; of a process that does not lead, just that."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(leader, per_job))
    return generate_latest(registry).decode()


class _Scrape(Collector):
    def __init__(self, leader: Leader | None, per_job: int) -> None:
        self._leader = leader
        self._per_job = per_job

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        leader = self._leader
        yield gauge(
            "batuta_operator_leader", "Whether this process leads.", [], {(): int(leader is not None)}
        )
        if leader is None:
            return
        picture = leader.pictures.take()
        yield from cluster_metrics(picture, leader.cycles, time.time(), NoFacts(), self._per_job)
        yield from engine_metrics(leader.service, version(), picture.policy)
        yield from _work(leader)
        yield from health_metrics(SeenByOperator(leader.backend.floor).seen())
        yield from duration_metrics(leader.experience.calibration())
        yield from shadow_metrics(leader.shadow.report)
        yield from telemetry_metrics(leader.telemetry.exporter)


def _work(leader: Leader) -> Iterator[Metric]:
    listening = leader.listening
    yield counter("batuta_pods_bound", "Pods bound.", [], {(): leader.usher.bound})
    yield gauge("batuta_logs_wanted", "Logs of jobs that are listened to.", [], {(): listening.logs})
    yield counter("batuta_reports", "Reports heard in logs.", [], {(): listening.reports})
    yield counter("batuta_reports_refused", "Reports refused.", [], {(): listening.refused})
