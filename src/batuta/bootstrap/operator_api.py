"""An operator's HTTP port: probes, metrics, and the read-only API or a proxy to the leader's.

The API is built on the first request, so an operator without requests pays nothing for it. Callers are users and
service accounts of the cluster (`token_review.py`).

A Service spreads requests over all operators, and only the leader has the answers. The Lease names the
leader's pod, with the number of its process behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path

import httpx2
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from batuta import __version__
from batuta.api.app import create_app
from batuta.api.auth import TokenAuthenticator
from batuta.api.cluster_metrics import counter, gauge
from batuta.api.dependencies import NoNodeFacts
from batuta.api.middleware import MOST_BODY_BYTES
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
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap.operator_leader import Leader, OperatorHealthView, operator_profile
from batuta.bootstrap.serving import ProbesApp
from batuta.core.job import JobId

READ_ONLY = (
    "an operator is only asked: jobs, queues and nodes are changed through the cluster (kubectl, or "
    "`batuta --context NAME …`), the policy in the operator's configuration"
)
_CLUSTER_NAMES = (".svc", ".cluster.local")  # endings of names that only a cluster's own DNS gives out
PROXIED = b"batuta-relayed"  # a header of requests that were passed on: once is enough
_CONNECT_S = 5.0
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"content-length"),
    )
)


class PodFiles:
    """Jobs of a cluster have no files here; their logs are those of their pods."""

    def log_path(self, job: JobId, rank: int) -> Path:
        raise HttpProblem(501, "logs are with the pods of the job: kubectl logs, or `batuta --context NAME logs`")

    def ranks(self, job: JobId) -> list[int]:
        return [0]

    def progress_path(self, job: JobId) -> Path:
        return Path("/dev/null")


class OperatorApi:
    """The routes over a leader. For one event loop."""

    def __init__(self, leader: Leader, config: OperatorConfig, namespace: str, bearers: TokenAuthenticator) -> None:
        self._parts = leader.dependencies(
            PodFiles(),
            config.policy,
            partial(operator_profile, config=config),
            shutdown=lambda keep_jobs: None,
            open_metrics=config.api.open_metrics,
            metrics_per_job=config.api.metrics_per_job,
            node_health=OperatorHealthView(leader.backend.reconciler),
            hosts=(config.api.listen, f".{namespace}", *_CLUSTER_NAMES),
            read_only=READ_ONLY,
            bearers=bearers,
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


class LeaderProxy:
    """An ASGI application. `leader` returns the Lease's holder; empty while it is not known."""

    def __init__(self, api: Api, namespace: str, port: int, leader: Callable[[], str]) -> None:
        self._api, self._namespace, self._port, self._leader = api, namespace, port, leader
        self._found = ("", "")  # the leader when it was looked for last, and its address
        # It answers as long as it likes: a stream of events has no end.
        limits = httpx2.Timeout(None, connect=_CONNECT_S)
        self._http = httpx2.AsyncClient(timeout=limits, trust_env=False, follow_redirects=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == PROXIED for name, _ in scope["headers"]):
            raise _no_leader("this operator does not lead any more")
        url = await self._url_of(scope)
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
        body = await _body(receive)
        asked = self._http.build_request(
            scope["method"], url, headers=[*headers, (PROXIED, b"1")], content=body or None
        )
        passing = asyncio.create_task(self._pass_on(asked, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            # Who does not listen any more is not sent a stream that never ends.
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, leaving):
                task.cancel()

    async def _pass_on(self, asked: httpx2.Request, send: Send) -> None:
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx2.TransportError as error:
            self._found = ("", "")
            raise _no_leader(f"{self._leader()} leads, and does not answer") from error
        async with aclosing(answer):
            headers = [(name.lower(), value) for name, value in answer.headers.raw]
            headers = [one for one in headers if one[0] not in _HOP_BY_HOP or one[0] == b"content-length"]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            with suppress(httpx2.TransportError):  # a leader that goes leaves an answer without an end
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        await self._http.aclose()

    async def _url_of(self, scope: Scope) -> str:
        leader = self._leader()
        if not leader:
            raise _no_leader("no operator leads yet")
        if self._found[0] != leader:
            self._found = (leader, await self._look_up(leader))
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        return f"http://{self._found[1]}:{self._port}{path}{'?' if query else ''}{query}"

    async def _look_up(self, leader: str) -> str:
        pod = leader.rpartition("-")[0]
        try:
            address = (await self._api.get(POD, pod, self._namespace)).status.pod_ip if pod else ""
        except ApiError as error:
            raise _no_leader(f"{leader} leads, and cannot be found: {error}") from error
        if not address:
            raise _no_leader(f"{leader} leads, and has no address")
        return f"[{address}]" if ":" in address else address


def _no_leader(why: str) -> HttpProblem:
    return HttpProblem(503, why, headers={"Retry-After": "2"})


async def _body(receive: Receive) -> bytes:
    """All of it, if it is not larger than the leader would have it."""
    body, has_more = bytearray(), True
    while has_more and (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise HttpProblem(413, f"a request has at most {MOST_BODY_BYTES >> 20} MiB")
        has_more = message.get("more_body", False)
    return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
