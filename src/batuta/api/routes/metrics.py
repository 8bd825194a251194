"""`/metrics`: Prometheus metrics of the engine, node health, forecasts, the shadow policy and tracing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from batuta.api.auth import check_viewer
from batuta.api.cluster_metrics import counter, gauge, job_metrics, node_metrics, queue_metrics, schedule_metrics
from batuta.api.dependencies import NodeFacts
from batuta.api.routes import problems
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.api.snapshot import WorldSnapshot
from batuta.api.state import AppState, StateDep
from batuta.core.health_record import State
from batuta.engine.fence import Trouble
from batuta.engine.health import HealthSeen
from batuta.engine.service import Service
from batuta.engine.shadow import ShadowReport
from batuta.prediction.duration import Calibration
from batuta.telemetry.exporter import SpanExporter

router = APIRouter(tags=["metrics"])
_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/metrics", response_class=Response, responses=_TEXT | problems())
async def get_metrics(request: Request, state: StateDep) -> Response:
    """Needs a token, unless the server was started with --open-metrics."""
    if not state.deps.open_metrics:
        await check_viewer(request)
    snapshot = await state.snapshot()
    text = await anyio.to_thread.run_sync(expose, state, snapshot)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def expose(state: AppState, snapshot: WorldSnapshot) -> bytes:
    return generate_latest(_Scrape(state, snapshot))


@dataclass(frozen=True, slots=True)
class _Scrape(Collector):
    """All metrics of one scrape."""

    state: AppState
    snapshot: WorldSnapshot

    def collect(self) -> Iterator[Metric]:
        deps, seq = self.state.deps, self.state.journal.durable_seq
        yield from cluster_metrics(self.snapshot, deps.cycles, self.state.now_s(), deps.nodes, deps.metrics_per_job)
        yield gauge("batuta_journal_seq", "The number of the last event that is durable.", [], seq)
        yield from engine_metrics(deps.service, deps.version, self.snapshot.policy or deps.policy)
        yield from health_metrics(deps.node_health.seen())
        yield from duration_metrics(deps.experience.calibration())
        yield from shadow_metrics(None if deps.shadow is None else deps.shadow.report)
        yield from telemetry_metrics(deps.spans)


def cluster_metrics(
    snapshot: WorldSnapshot, watch: SchedulerCounters, now_s: float, facts: NodeFacts, per_job: int
) -> Iterator[Metric]:
    """Yield the metrics of scheduler, jobs, nodes and queues: the same for server and operator."""
    states = {state.value: count for state, count in snapshot.state_counts.items()}
    yield gauge("batuta_jobs", "Jobs by state; those that are over are all that are known.", ["state"], states)
    yield from node_metrics(snapshot, facts)
    yield from queue_metrics(snapshot, watch.schedule, now_s)
    yield from schedule_metrics(snapshot, watch, now_s)
    yield from job_metrics(snapshot, per_job)


def fence_metrics(troubles: Mapping[str, Trouble]) -> Iterator[Metric]:
    failures = {part: trouble.failures for part, trouble in troubles.items()}
    failing = {part: int(trouble.is_failing) for part, trouble in troubles.items()}
    help_ = "Failures of parts that the engine goes on without, by part."
    yield counter("batuta_part_failures", help_, ["part"], failures)
    yield gauge("batuta_part_failing", "1 for a part that has failed and has not worked since.", ["part"], failing)


def engine_metrics(service: Service, version: str, policy: str) -> Iterator[Metric]:
    yield counter("batuta_engine_cpu_seconds", "CPU time of the engine's thread.", [], service.cpu_s)
    healthy = 0 if service.trouble or not service.running else 1
    yield gauge("batuta_engine_healthy", "1 when the engine goes on.", [], healthy)
    yield from fence_metrics(service.fence.troubles)
    info = InfoMetricFamily("batuta_build", "What runs.")
    info.add_metric([], {"version": version, "policy": policy})
    yield info


def duration_metrics(calibration: Calibration) -> Iterator[Metric]:
    """Yield the calibration of predicted lengths: ideally, 0.9 of the jobs stay within their P90."""
    share = "Share of the jobs that ended last which took no longer than the quantile told at their submit."
    coverage = {f"{level:g}": part for level, part in calibration.coverage}
    ended = "Jobs with a forecast that have ended since the start."
    yield gauge("batuta_duration_forecast_coverage", share, ["quantile"], coverage)
    window = "Jobs over which the coverage is measured."
    yield gauge("batuta_duration_forecast_window_jobs", window, [], calibration.jobs)
    yield counter("batuta_duration_forecasts", ended, [], calibration.total)


_STATES = tuple(state for state in State if state is not State.HEALTHY)


def health_metrics(seen: HealthSeen) -> Iterator[Metric]:
    """Yield the health of nodes and GPUs: few series, whatever the size of the cluster."""
    known = [record.state for record in seen.records.values()]
    states = {state.value: known.count(state) for state in _STATES}
    found = {(source.value, action.value): count for (source, action), count in seen.found.items()}
    ill = "GPUs, and nodes as a whole, that are not healthy, by what is thought of them."
    held = "What is ill and stays in service, because too much of its pool is out already."
    told = "What sources told of GPUs, by what was to be done about it."
    yield gauge("batuta_health_targets", ill, ["state"], states)
    yield gauge("batuta_health_held", held, [], len(seen.alerts))
    yield counter("batuta_health_findings", told, ["source", "action"], found)


def shadow_metrics(report: ShadowReport | None) -> Iterator[Metric]:
    """Yield nothing without a shadow policy. Counts begin anew with each policy."""
    if report is None or not report.policy:
        return
    differed = report.cycles - report.agreed - report.failed
    outcomes = {"agreed": report.agreed, "differed": differed, "failed": report.failed, "skipped": report.skipped}
    commands = {("would", kind): count for kind, count in report.would.items()}
    commands |= {("did", kind): count for kind, count in report.did.items()}
    given = "Commands that the shadow would have given, and those that were given, in the same cycles."
    others = "Jobs that the shadow would have given another number of GPUs, in its last cycle."
    yield counter("batuta_shadow_cycles", "Cycles, by what the shadow made of them.", ["outcome"], outcomes)
    yield counter("batuta_shadow_commands", given, ["who", "kind"], commands)
    yield gauge("batuta_shadow_differences", others, [], len(report.differences))


def telemetry_metrics(exporter: SpanExporter | None) -> Iterator[Metric]:
    """Yield what became of spans; nothing where no traces are sent."""
    if exporter is None:
        return
    yield counter("batuta_otlp_spans", "Spans, by what became of them.", ["outcome"], exporter.counts)
    yield gauge("batuta_otlp_queued_spans", "Spans that wait to be sent.", [], exporter.queued)
