"""What an operator answers at its port: probes, metrics, and the read-only API if it leads.

The API is built on the first request, so an operator without requests pays nothing for it. Callers are users and
service accounts of the cluster (`token_review.py`). An operator that does not lead passes them on (`leader_proxy.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from batuta import __version__
from batuta.api.app import create_app
from batuta.api.auth import Caller
from batuta.api.cluster_metrics import counter, gauge
from batuta.api.dependencies import NoNodeFacts
from batuta.api.responses import HttpProblem, problem_response
from batuta.api.routes.metrics import (
    cluster_metrics,
    duration_metrics,
    engine_metrics,
    health_metrics,
    shadow_metrics,
    telemetry_metrics,
)
from batuta.api.state import end_streams
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, Forbidden, NotFound
from batuta.backends.kube.operator_config_map import HELM, write_policy
from batuta.bootstrap.operator_leader import Leader, OperatorHealthView
from batuta.bootstrap.serving import ProbesApp
from batuta.bootstrap.token_review import TokenReviewAuthenticator
from batuta.core.job import JobId

READ_ONLY = (
    "an operator is only asked: jobs, queues and nodes are changed through the cluster (kubectl, or "
    "`batuta --context NAME …`), the policy in the operator's configuration"
)
_CLUSTER_NAMES = (".svc", ".cluster.local")  # endings of names that only a cluster's own DNS gives out


class PodFiles:
    """Jobs of a cluster have no files here; their logs are those of their pods."""

    def log_path(self, job: JobId, rank: int) -> Path:
        raise HttpProblem(501, "logs are with the pods of the job: kubectl logs, or `batuta --context NAME logs`")

    def ranks(self, job: JobId) -> list[int]:
        return [0]

    def progress_path(self, job: JobId) -> Path:
        return Path("/dev/null")


class ConfigMapPolicy:
    """Keeps the policy in the operator's ConfigMap, for callers who may patch that."""

    def __init__(self, api: Api, bearers: TokenReviewAuthenticator, namespace: str, config_map: str) -> None:
        self._api, self._bearers = api, bearers
        self._namespace, self._config_map = namespace, config_map

    async def keep(self, caller: Caller, policy: str) -> str:
        place = f"ConfigMap {self._namespace}/{self._config_map}"
        if not await self._bearers.may_patch(caller, self._namespace, self._config_map):
            raise HttpProblem(403, f"{caller.user} may not patch {place}, which this takes")
        try:
            await write_policy(self._api, self._namespace, self._config_map, policy, caller.user)
        except (Forbidden, NotFound, Conflict) as error:
            raise HttpProblem(409, f"the policy cannot be written: {error}") from error
        except ApiError as error:
            raise HttpProblem(503, f"the policy cannot be written: {error}") from error
        return f"it stands in {place}; {HELM}"


class OperatorApi:
    """The routes over a leader. For one event loop."""

    def __init__(self, leader: Leader, api: Api, namespace: str, bearers: TokenReviewAuthenticator) -> None:
        config = leader.config
        self._parts = leader.dependencies(
            PodFiles(),
            config.policy,
            leader.profile_of,
            shutdown=lambda keep_jobs: None,
            open_metrics=config.api.open_metrics,
            metrics_per_job=config.api.metrics_per_job,
            node_health=OperatorHealthView(leader.backend.reconciler),
            hosts=(config.api.listen, f".{namespace}", *_CLUSTER_NAMES, *config.api.tls.names),
            read_only=READ_ONLY,
            bearers=bearers,
            policy_keeper=ConfigMapPolicy(api, bearers, namespace, config.config_map) if config.config_map else None,
        )
        self._making = asyncio.Lock()
        self._app: FastAPI | None = None
        self._open = AsyncExitStack()

    async def app(self) -> FastAPI:
        async with self._making:
            if self._app is None:
                app = await asyncio.to_thread(create_app, self._parts)
                # The front has no lifespan of its own: this is what an app does at its start.
                await self._open.enter_async_context(app.state.batuta.open())
                self._app = app
            return self._app

    async def close(self) -> None:
        """Ends what would never end by itself. Nothing may be asked any more."""
        async with self._making:
            if self._app is not None:
                end_streams(self._app)
            await self._open.aclose()


class OperatorApp(ProbesApp):
    """Answers probes and metrics; everything else is for the API. Both may refuse."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except HttpProblem as refusal:
            await problem_response(refusal)(scope, receive, send)


def operator_metrics(leader: Leader | None, per_job: int) -> str:
    """All of it, with so many jobs one by one; of a process that does not lead, just that."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(leader, per_job))
    return generate_latest(registry).decode()


class _Scrape(Collector):
    def __init__(self, leader: Leader | None, per_job: int) -> None:
        self._leader, self._per_job = leader, per_job

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        leader = self._leader
        yield gauge("batuta_operator_leader", "Whether this process leads.", [], {(): int(leader is not None)})
        if leader is None:
            return
        snapshot = leader.snapshots.take()
        yield from cluster_metrics(snapshot, leader.cycles, time.time(), NoNodeFacts(), self._per_job)
        yield from engine_metrics(leader.service, __version__, snapshot.policy)
        yield from _work(leader)
        yield from _quarantine(leader)
        yield from health_metrics(OperatorHealthView(leader.backend.reconciler).seen())
        yield from duration_metrics(leader.assembly.history.calibration())
        yield from shadow_metrics(leader.assembly.shadow.report)
        yield from telemetry_metrics(leader.telemetry.exporter)


def _quarantine(leader: Leader) -> Iterator[Metric]:
    quarantine = leader.backend.reconciler.quarantine
    help_ = "Objects that the operator does not understand and has set aside, by kind."
    yield gauge("batuta_quarantined_objects", help_, ["kind"], dict(quarantine.counts()))
    yield counter("batuta_quarantines", "How often an object was set aside.", ["kind"], dict(quarantine.total()))


def _work(leader: Leader) -> Iterator[Metric]:
    listening = leader.listening
    yield counter("batuta_pods_bound", "Pods bound.", [], {(): leader.gang_binder.bound})
    yield gauge("batuta_logs_wanted", "Logs of jobs that are listened to.", [], {(): listening.logs})
    yield counter("batuta_reports", "Reports heard in logs.", [], {(): listening.reports})
    yield counter("batuta_reports_refused", "Reports refused.", [], {(): listening.refused})
