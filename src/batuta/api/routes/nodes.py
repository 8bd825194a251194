"""`/nodes`: list nodes with their health; cordon, uncordon, drain and mark them repaired."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.auth import Admin, Caller, Viewer
from batuta.api.models import Node, Nodes
from batuta.api.request_models import MendedPost
from batuta.api.responses import HttpProblem, json_response, not_found
from batuta.api.routes import CHANGES, NodePath, problems
from batuta.api.state import AppState, StateDep
from batuta.api.views import JsonObject, filled, view_node, view_nodes
from batuta.apitypes import resources as a
from batuta.core.health_record import WHOLE_NODE, Alert, Cordon, Record, State, Target
from batuta.core.health_rules import Action
from batuta.engine.health import HealthSeen
from batuta.engine.requests import RequestFn

router = APIRouter(prefix="/nodes", tags=["nodes"])
_PROBLEMS = problems(404, *CHANGES)


@router.get("", response_model=Nodes, responses=problems())
async def list_nodes(state: StateDep, caller: Viewer) -> Response:
    """All nodes, with their GPUs and who is on them."""
    seen = await _node_health(state)
    nodes = [with_health(node, seen) for node in view_nodes(await state.snapshot(), state.deps.nodes)]
    return json_response({"nodes": nodes, "alerts": list(map(view_alert, seen.alerts))})


@router.post("/{node}/cordon", response_model=Node, responses=_PROBLEMS)
async def cordon_node(state: StateDep, caller: Admin, node: NodePath) -> Response:
    """Nothing new here; what runs stays."""
    return await _cordon(state, state.operations.cordon(node), node, caller)


@router.post("/{node}/uncordon", response_model=Node, responses=_PROBLEMS)
async def uncordon_node(state: StateDep, caller: Admin, node: NodePath) -> Response:
    """Back in service; where it was not cordoned, it is healthy by the user's word."""
    await state.request(state.operations.uncordon(node), caller)
    await anyio.to_thread.run_sync(state.deps.node_health.uncordoned, node, caller.user)
    return await _show_node(state, node)


@router.post("/{node}/drain", response_model=Node, responses=_PROBLEMS)
async def drain_node(state: StateDep, caller: Admin, node: NodePath) -> Response:
    """Nothing new here, and what runs leaves with its progress."""
    return await _cordon(state, state.operations.drain(node), node, caller)


@router.post("/{node}/mended", response_model=Node, responses=problems(404, 409, *CHANGES))
async def mended_node(state: StateDep, caller: Admin, node: NodePath, asked: MendedPost | None = None) -> Response:
    """What was to be done about an illness is done: a burn-in follows."""
    if view_node(await state.snapshot(), node, state.deps.nodes) is None:
        raise not_found(f"node {node}")
    gpu = None if asked is None else asked.gpu
    try:
        await anyio.to_thread.run_sync(state.deps.node_health.mended, node, gpu, caller.user)
    except ValueError as error:
        raise HttpProblem(409, str(error)) from None
    await state.record_action(caller, "node.mended", f"node {node}" if gpu is None else f"GPU {gpu} of node {node}")
    return await _show_node(state, node)


async def _cordon(state: AppState, make: RequestFn, node: str, caller: Caller) -> Response:
    await state.request(make, caller)
    await anyio.to_thread.run_sync(state.deps.node_health.cordoned, node, caller.user)
    return await _show_node(state, node)


async def _show_node(state: AppState, node: str) -> Response:
    shown = view_node(await state.snapshot(), node, state.deps.nodes)
    if shown is None:
        raise not_found(f"node {node}")
    return json_response(with_health(shown, await _node_health(state)))


async def _node_health(state: AppState) -> HealthSeen:
    # In a thread: the health controller may be writing to the disk.
    return await anyio.to_thread.run_sync(state.deps.node_health.seen)


def view_health(record: Record | None) -> JsonObject | None:
    """Return a health record as JSON; None for a healthy one without history."""
    if record is None or (record.state is State.HEALTHY and not record.reason):
        return None
    return filled(
        a.HealthShown,
        record,
        remedy="" if record.remedy is Action.IGNORE else record.remedy,
        until_s=record.ends_s if record.state is State.PROBATION else None,
        incidents=len(record.incidents),
    )


def view_alert(alert: Alert) -> JsonObject:
    target = alert.target
    return filled(a.HealthAlert, alert, node=target.node, gpu=None if target.gpu == WHOLE_NODE else target.gpu)


def with_health(node: JsonObject, seen: HealthSeen) -> JsonObject:
    """Return a node of `view_nodes` with its health."""
    name = node["name"]
    own, cordon = seen.records.get(Target(name)), seen.cordons.get(name, Cordon())
    state = node["state"]
    # On a cluster, the health controller cordons a node; a cordon by no user is its own.
    is_closed = state in {"cordoned", "draining"} and name not in seen.cordons
    if own is not None and own.is_out and (state == "ready" or is_closed):
        state = "unhealthy"
    gpus = [{**gpu, "health": view_health(seen.records.get(Target(name, gpu["index"])))} for gpu in node["gpus"]]
    return {
        **node,
        "state": state,
        "cordoned_by": cordon.who,
        "cordoned_s": cordon.since_s or None,
        "health": view_health(own),
        "gpus": gpus,
    }
