"""`/cluster`, `/timeline`, `/report`, `/shutdown`, `/healthz` and `/readyz`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Response
from starlette.background import BackgroundTask

from batuta.api.auth import Admin, Viewer
from batuta.api.models import Accepted, Cluster, Health, Report, Timeline
from batuta.api.request_models import ShutdownPost
from batuta.api.responses import MEDIA_TYPE, HttpProblem, json_response
from batuta.api.routes import CHANGES, PROBLEM_SCHEMA, TimeS, problems
from batuta.api.state import StateDep
from batuta.api.views import count_gpus
from batuta.engine.ports import JournalUnavailable
from batuta.engine.requests import EngineStopped

router = APIRouter(tags=["cluster"])
_HOUR_S = 3600.0


@router.get("/cluster", response_model=Cluster, responses=problems())
async def get_cluster(state: StateDep, caller: Viewer) -> Response:
    """How much there is, who uses it, and whether all is well."""
    # Before the snapshot: what it does not show has a later number.
    seq = state.journal.durable_seq
    snapshot, deps = await state.snapshot(), state.deps
    return json_response(
        {
            "version": deps.version,
            "policy": snapshot.policy or deps.policy,
            "virtual": deps.virtual,
            "read_only": deps.read_only,
            "foresight": deps.foresight is not None,
            "gpus": count_gpus(snapshot),
            "jobs": {state.value: count for state, count in snapshot.state_counts.items()},
            "trouble": deps.service.trouble,
            "pid": os.getpid(),
            "started_s": deps.started_s,
            "now_s": state.now_s(),
            "seq": seq,
            "cycle": {
                "count": deps.cycles.count,
                "last_ms": deps.cycles.last_s * 1000,
                "engine_cpu_s": deps.service.cpu_s,
            },
        }
    )


@router.get("/timeline", response_model=Timeline, responses=problems())
async def get_timeline(
    state: StateDep, caller: Viewer, since_s: TimeS | None = None, limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000
) -> Response:
    """How many GPUs each job had when; the last hour without `since_s`."""
    snapshot, now_s = await state.snapshot(), state.now_s()
    from_s = max(0.0, now_s - _HOUR_S) if since_s is None else min(since_s, now_s)
    return json_response(
        {
            "from_s": from_s,
            "to_s": now_s,
            "gpus": count_gpus(snapshot)["total"],
            "jobs": state.timeline.show(snapshot, from_s, now_s, limit),
        }
    )


@router.post("/shutdown", status_code=202, response_model=Accepted, responses=problems(*CHANGES))
async def shut_down(state: StateDep, caller: Admin, asked: ShutdownPost | None = None) -> Response:
    """Ends the server; jobs go on and are found again at the next start, unless told otherwise."""
    response = json_response({"accepted": True}, 202)
    keep = True if asked is None else asked.keep_jobs
    with suppress(
        JournalUnavailable, EngineStopped, TimeoutError
    ):  # a server that can write nothing can still be ended
        await state.record_action(caller, "server.shutdown", "" if keep else ", and its jobs stop")
    response.background = BackgroundTask(state.deps.shutdown, keep)
    return response


report_router = APIRouter(prefix="/report", tags=["cluster"])


_HTML_HEADERS = {"Content-Disposition": 'attachment; filename="batuta-waste.html"'}
"""Kept as a file: its styles stand within it, which pages of this server may not have."""


@report_router.get(
    "",
    response_model=Report,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **problems(501)},
)
async def get_report(
    state: StateDep,
    caller: Viewer,
    from_s: TimeS | None = None,
    to_s: TimeS | None = None,
    format: Literal["json", "html"] = "json",
) -> Response:
    """GPU time used, lost, idle and waited for, by queue and by day; without times, of the last week."""
    account, page = state.deps.account, state.deps.account_page
    if account is None:
        raise HttpProblem(501, "this server keeps no account of GPU time")
    if format == "html" and page is None:
        raise HttpProblem(501, "this server draws no pages: batuta report --html does")
    found = await anyio.to_thread.run_sync(account, from_s, to_s, limiter=state.slow_questions)
    if format == "html" and page is not None:
        return Response(page(found), headers=_HTML_HEADERS, media_type="text/html; charset=utf-8")
    return json_response(found)


health_router = APIRouter(tags=["health"])
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"description": "not ready, and why", "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}}}
}


@health_router.get("/healthz", response_model=Health)
async def get_health() -> Response:
    """The process answers."""
    return json_response({"status": "alive"})


@health_router.get("/readyz", response_model=Health, responses=_NOT_READY)
async def get_readiness(state: StateDep) -> Response:
    """The engine runs and can store what happens."""
    service = state.service
    if service.trouble or not service.running:
        raise HttpProblem(503, service.trouble or "the engine does not run")
    return json_response({"status": "ready"})
