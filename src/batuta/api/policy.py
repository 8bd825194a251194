"""Which policy decides, and which others could."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.asked import PolicyPut
from batuta.api.auth import Admin, Viewer
from batuta.api.cluster_models import PolicyAnswer
from batuta.api.desk import AtDesk, Desk
from batuta.api.plain_json import answer
from batuta.api.problems import bad_input
from batuta.api.routes import CHANGES, problems

router = APIRouter(prefix="/policy", tags=["policy"])


@router.get("", response_model=PolicyAnswer, responses=problems())
async def get_policy(desk: AtDesk, who: Viewer) -> Response:
    """The policy that decides now, and all that can be chosen."""
    return await _show(desk)


@router.put("", response_model=PolicyAnswer, responses=problems(*CHANGES))
async def put_policy(desk: AtDesk, who: Admin, put: PolicyPut) -> Response:
    """Another policy from the next cycle on."""
    await anyio.to_thread.run_sync(_check, desk, put.name)
    await desk.ask(desk.operations.set_policy(put.name, desk.parts.policy))
    return await _show(desk)


def _check(desk: Desk, name: str) -> None:
    try:
        desk.parts.check_policy(name)
    except (LookupError, ValueError, RuntimeError) as error:
        # Of a LookupError, the sentence and not its repr.
        raise bad_input(str(error.args[0]) if error.args else repr(error)) from error


async def _show(desk: Desk) -> Response:
    picture = await desk.look()
    policies = [{"name": one.name, "summary": one.summary} for one in desk.policies]
    return answer({"name": picture.policy or desk.parts.policy, "policies": policies})
