"""The cluster at a glance, and over time; and its end."""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.background import BackgroundTask

from batuta.api.asked import ShutdownPost
from batuta.api.auth import Admin, Viewer
from batuta.api.cluster_models import Accepted, Cluster
from batuta.api.desk import AtDesk
from batuta.api.models import Timeline
from batuta.api.plain_json import answer
from batuta.api.routes import CHANGES, TimeS, problems
from batuta.api.views import count_gpus

router = APIRouter(tags=["cluster"])
_HOUR_S = 3600.0


@router.get("/cluster", response_model=Cluster, responses=problems())
async def get_cluster(desk: AtDesk, who: Viewer) -> Response:
    """How much there is, who uses it, and whether all is well."""
    # Before the picture: what it does not show comes after this number.
    seq = desk.journal.durable_seq
    picture, parts = await desk.look(), desk.parts
    return answer(
        {
            "version": parts.version,
            "policy": picture.policy or parts.policy,
            "virtual": parts.virtual,
            "read_only": parts.read_only,
            "foresight": parts.foresight is not None,
            "gpus": count_gpus(picture),
            "jobs": {state.value: count for state, count in picture.state_counts.items()},
            "trouble": parts.service.trouble,
            "pid": os.getpid(),
            "started_s": parts.started_s,
            "now_s": desk.now_s(),
            "seq": seq,
            "cycle": {
                "count": parts.cycles.count,
                "last_ms": parts.cycles.last_s * 1000,
                "engine_cpu_s": parts.service.cpu_s,
            },
        }
    )


@router.get("/timeline", response_model=Timeline, responses=problems())
async def get_timeline(
    desk: AtDesk,
    who: Viewer,
    since_s: TimeS | None = None,
    limit: Annotated[int, Query(ge=1, le=5_000)] = 1_000,
) -> Response:
    """How many GPUs each job had when; the last hour without `since_s`."""
    picture, now_s = await desk.look(), desk.now_s()
    from_s = max(0.0, now_s - _HOUR_S) if since_s is None else min(since_s, now_s)
    return answer(
        {
            "from_s": from_s,
            "to_s": now_s,
            "gpus": count_gpus(picture)["total"],
            "jobs": desk.timeline.show(picture, from_s, now_s, limit),
        }
    )


@router.post("/shutdown", status_code=202, response_model=Accepted, responses=problems(*CHANGES))
async def shut_down(desk: AtDesk, who: Admin, asked: ShutdownPost | None = None) -> Response:
    """Ends the server; jobs go on and are found again at the next start, unless told otherwise."""
    response = answer({"accepted": True}, 202)
    keep = True if asked is None else asked.keep_jobs
    response.background = BackgroundTask(desk.parts.shutdown, keep)
    return response
