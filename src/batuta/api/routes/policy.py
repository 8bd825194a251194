"""`/policy` and `/shadow`: the scheduling policy, and a second one that only watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Request, Response

from batuta.api.auth import Admin, Caller, Viewer, check_admin, check_viewer
from batuta.api.models import PolicyAnswer, ShadowAnswer
from batuta.api.request_models import PolicyPut, ShadowPut
from batuta.api.responses import HttpProblem, bad_input, json_response, not_found
from batuta.api.routes import CHANGES, problems
from batuta.api.state import AppState, StateDep
from batuta.api.views import JsonObject, filled
from batuta.apitypes import forecasts as f
from batuta.engine.shadow import Shadow, ShadowReport

router = APIRouter(prefix="/policy", tags=["policy"])


@router.get("", response_model=PolicyAnswer, responses=problems())
async def get_policy(state: StateDep, caller: Viewer) -> Response:
    """The policy that decides now, and all that can be chosen."""
    return await _show_policy(state)


TAKEN_UP_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.1


async def _check_changer(request: Request) -> Caller:
    """An admin; where the policy is kept outside, whoever keeps it says who may change it."""
    is_kept = request.app.state.batuta.deps.policy_keeper is not None
    return await (check_viewer if is_kept else check_admin)(request)


@router.put("", response_model=PolicyAnswer, responses=problems(*CHANGES))
async def put_policy(state: StateDep, caller: Annotated[Caller, Depends(_check_changer)], put: PolicyPut) -> Response:
    """Another policy from the next cycle on."""
    await anyio.to_thread.run_sync(_check_policy, state, put.name)
    if state.deps.policy_keeper is None:
        await state.request(state.operations.set_policy(put.name, state.deps.policy), caller)
        return await _show_policy(state)
    note = await state.deps.policy_keeper.keep(caller, put.name)
    try:
        async with asyncio.timeout(TAKEN_UP_WITHIN_S):
            while (await state.snapshot()).policy != put.name:
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        raise HttpProblem(504, f"{note}; the engine has not taken it up within {TAKEN_UP_WITHIN_S:g} s") from None
    return await _show_policy(state, note)


def _check_policy(state: AppState, name: str) -> None:
    with _refused():
        state.deps.check_policy(name)


@contextmanager
def _refused() -> Iterator[None]:
    """Answer 422 where a policy cannot be used."""
    try:
        yield
    except (LookupError, ValueError, RuntimeError) as error:
        # Of a LookupError, the sentence and not its repr.
        raise bad_input(str(error.args[0]) if error.args else repr(error)) from error


async def _show_policy(state: AppState, note: str = "") -> Response:
    snapshot = await state.snapshot()
    policies = [{"name": name, "summary": summary} for name, summary in state.deps.policies]
    return json_response({"name": snapshot.policy or state.deps.policy, "policies": policies, "note": note})


shadow_router = APIRouter(prefix="/shadow", tags=["policy"])
MAX_DIFFERENCES = 1_000


@shadow_router.get("", response_model=ShadowAnswer, responses=problems(404))
async def get_shadow(state: StateDep, caller: Viewer) -> Response:
    """What it would have done since it began to watch."""
    return await _show_shadow(state)


@shadow_router.put("", response_model=ShadowAnswer, responses=problems(404, *CHANGES))
async def put_shadow(state: StateDep, caller: Admin, put: ShadowPut) -> Response:
    """Another policy watches from the next cycle on, or none. It touches nothing."""
    await anyio.to_thread.run_sync(_watch, state, put.policy)
    await state.record_action(caller, "shadow.set", put.policy or "none", is_setting=True)
    return await _show_shadow(state)


def _watch(state: AppState, policy: str) -> None:
    shadow = _shadow(state)
    with _refused():
        if policy:
            state.deps.check_policy(policy)
        shadow.watch(policy)


async def _show_shadow(state: AppState) -> Response:
    shadow, snapshot = _shadow(state), await state.snapshot()
    return json_response(view_shadow(shadow.report, snapshot.policy or state.deps.policy))


def view_shadow(report: ShadowReport, active: str) -> JsonObject:
    differences = [filled(f.ShadowDifference, one, id=one.job) for one in report.differences[:MAX_DIFFERENCES]]
    return filled(f.ShadowAnswer, report, active_policy=active, differences=differences)


def _shadow(state: AppState) -> Shadow:
    if state.deps.shadow is None:
        raise not_found("room for a second policy at this server")
    return state.deps.shadow
