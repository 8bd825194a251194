"""The HTTP API of local mode at an operator: the same questions, and no way to change anything.

It is made when somebody first asks, so an operator that nobody asks pays nothing for it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from fastapi import FastAPI

from batuta.api.app import create_app
from batuta.api.auth import Bearers
from batuta.api.desk import end_streams
from batuta.api.parts import ServerParts
from batuta.api.problems import Refusal
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap import find_policy, policy_summaries, rules_for, version
from batuta.bootstrap.operator_health import SeenByOperator
from batuta.bootstrap.operator_leader import Leader
from batuta.bootstrap.waste import account
from batuta.core.job import JobId
from batuta.report.waste_page import render_waste

READ_ONLY = (
    "an operator is only asked: jobs, queues and nodes are changed through the cluster (kubectl, or "
    "`batuta --context NAME …`), the policy in the operator's configuration"
)
_CLUSTER_NAMES = (".svc", ".cluster.local")
"""Endings of names that only a cluster's own DNS gives out."""


class PodFiles:
    """Jobs of a cluster have no files here; their logs are those of their pods."""

    def log_path(self, job: JobId, rank: int) -> Path:
        raise Refusal(501, "logs are with the pods of the job: kubectl logs, or `batuta --context NAME logs`")

    def ranks(self, job: JobId) -> list[int]:
        return [0]

    def progress_path(self, job: JobId) -> Path:
        return Path("/dev/null")


class OperatorApi:
    """The routes over a leader. For one event loop."""

    def __init__(self, leader: Leader, config: OperatorConfig, namespace: str, bearers: Bearers) -> None:
        self._parts = parts_of(leader, config, namespace, bearers)
        self._making = asyncio.Lock()
        self._app: FastAPI | None = None
        self._open = AsyncExitStack()

    async def app(self) -> FastAPI:
        async with self._making:
            if self._app is None:
                app = await asyncio.to_thread(create_app, self._parts)
                # The front has no lifespan of its own: this is what an app does at its start.
                await self._open.enter_async_context(app.state.desk.open())
                self._app = app
            return self._app

    async def close(self) -> None:
        """Ends what would never end by itself. Nothing may be asked any more."""
        async with self._making:
            if self._app is not None:
                end_streams(self._app)
            await self._open.aclose()


def parts_of(leader: Leader, config: OperatorConfig, namespace: str, bearers: Bearers) -> ServerParts:
    """What the API needs of a leader."""
    store = leader.store
    return ServerParts(
        leader.service,
        store,
        PodFiles(),
        config.policy,
        policy_summaries(),
        find_policy,
        rules_for,
        shutdown=lambda keep_jobs: None,
        cycles=leader.cycles,
        version=version(),
        open_metrics=config.api.open_metrics,
        metrics_per_job=config.api.metrics_per_job,
        experience=leader.experience,
        account=lambda from_s, to_s: account(
            store.journal, store.snapshots, from_s, to_s, time.time()
        ).plain(),
        account_page=render_waste,
        node_health=SeenByOperator(leader.backend.floor),
        shadow=leader.shadow,
        foresight=leader.foresight,
        spans=leader.telemetry.exporter,
        hosts=(config.api.listen, f".{namespace}", *_CLUSTER_NAMES),
        read_only=READ_ONLY,
        bearers=bearers,
    )
