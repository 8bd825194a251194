"""What a second policy, which only watches, would have done."""

from __future__ import annotations

from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Response
from pydantic import BaseModel, StringConstraints

from batuta.api.asked import POLICY, Asked
from batuta.api.auth import Admin, Viewer
from batuta.api.desk import AtDesk, Desk
from batuta.api.plain_json import answer
from batuta.api.problems import bad_input, not_found
from batuta.api.routes import problems
from batuta.engine.shadow import Shadow, ShadowReport

router = APIRouter(prefix="/shadow", tags=["policy"])
MOST_SHOWN = 1_000


class ShadowPut(Asked):
    """The policy that shall watch; empty for none."""

    policy: Annotated[str, StringConstraints(pattern=rf"^$|{POLICY}")]


class ShadowDifference(BaseModel):
    """A job that has other GPUs than the shadow would have given it."""

    id: str
    has: int
    would_have: int
    since_s: float


class ShadowAnswer(BaseModel):
    """What the shadow would have done in the cycles that it has looked at; an empty policy: there is none."""

    policy: str
    active_policy: str
    since_s: float
    cycles: int
    skipped: int
    agreed: int
    failed: int
    would: dict[str, int]
    did: dict[str, int]
    differences: list[ShadowDifference]
    trouble: str


@router.get("", response_model=ShadowAnswer, responses=problems(404))
async def get_shadow(desk: AtDesk, who: Viewer) -> Response:
    """What it would have done since it began to watch."""
    return await _show(desk)


@router.put("", response_model=ShadowAnswer, responses=problems(400, 404, 413))
async def put_shadow(desk: AtDesk, who: Admin, put: ShadowPut) -> Response:
    """Another policy watches from the next cycle on, or none. It touches nothing."""
    await anyio.to_thread.run_sync(_watch, desk, put.policy)
    return await _show(desk)


def _watch(desk: Desk, policy: str) -> None:
    shadow = _shadow(desk)
    try:
        if policy:
            desk.parts.check_policy(policy)
        shadow.watch(policy)
    except (LookupError, ValueError, RuntimeError) as error:
        raise bad_input(str(error.args[0]) if error.args else repr(error)) from error


async def _show(desk: Desk) -> Response:
    shadow, picture = _shadow(desk), await desk.look()
    return answer(view_shadow(shadow.report, picture.policy or desk.parts.policy))


def view_shadow(report: ShadowReport, active: str) -> dict[str, Any]:
    return {
        "policy": report.policy,
        "active_policy": active,
        "since_s": report.since_s,
        "cycles": report.cycles,
        "skipped": report.skipped,
        "agreed": report.agreed,
        "failed": report.failed,
        "would": report.would,
        "did": report.did,
        "differences": [
            {"id": one.job, "has": one.has, "would_have": one.would_have, "since_s": one.since_s}
            for one in report.differences[:MOST_SHOWN]
        ],
        "trouble": report.trouble,
    }


def _shadow(desk: Desk) -> Shadow:
    if desk.parts.shadow is None:
        raise not_found("room for a second policy at this server")
    return desk.parts.shadow
