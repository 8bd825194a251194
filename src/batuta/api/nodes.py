"""Nodes: look at them, take them out of service and back."""

from __future__ import annotations

import anyio.to_thread
from fastapi import APIRouter, Response

from batuta.api.asked import MendedPost
from batuta.api.auth import Admin, Viewer, Who
from batuta.api.cluster_models import Node, Nodes
from batuta.api.desk import AtDesk, Desk
from batuta.api.node_health import view_alerts, with_health
from batuta.api.plain_json import answer
from batuta.api.problems import Refusal, not_found
from batuta.api.routes import CHANGES, NodePath, problems
from batuta.api.views import view_node, view_nodes
from batuta.engine.health.seen import HealthSeen
from batuta.engine.requests import Make

router = APIRouter(prefix="/nodes", tags=["nodes"])
_PROBLEMS = problems(404, *CHANGES)


@router.get("", response_model=Nodes, responses=problems())
async def list_nodes(desk: AtDesk, who: Viewer) -> Response:
    """All nodes, with their GPUs and who is on them."""
    seen = await _health(desk)
    nodes = [with_health(node, seen) for node in view_nodes(await desk.look(), desk.parts.nodes)]
    return answer({"nodes": nodes, "alerts": view_alerts(seen.alerts)})


@router.post("/{node}/cordon", response_model=Node, responses=_PROBLEMS)
async def cordon_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Nothing new here; what runs stays."""
    return await _cordoned(desk, desk.operations.cordon(node), node, who)


@router.post("/{node}/uncordon", response_model=Node, responses=_PROBLEMS)
async def uncordon_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Back in service; where nobody had cordoned it, it is well by the asker's word."""
    await desk.ask(desk.operations.uncordon(node))
    await anyio.to_thread.run_sync(desk.parts.node_health.uncordoned, node, who.user)
    return await _shown(desk, node)


@router.post("/{node}/drain", response_model=Node, responses=_PROBLEMS)
async def drain_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Nothing new here, and what runs leaves with its progress."""
    return await _cordoned(desk, desk.operations.drain(node), node, who)


@router.post("/{node}/mended", response_model=Node, responses=problems(404, 409, *CHANGES))
async def mended_node(desk: AtDesk, who: Admin, node: NodePath, asked: MendedPost | None = None) -> Response:
    """What was to be done about an illness is done: a burn-in follows."""
    if view_node(await desk.look(), node, desk.parts.nodes) is None:
        raise not_found(f"node {node}")
    gpu = None if asked is None else asked.gpu
    try:
        await anyio.to_thread.run_sync(desk.parts.node_health.mended, node, gpu, who.user)
    except ValueError as error:
        raise Refusal(409, str(error)) from None
    return await _shown(desk, node)


async def _cordoned(desk: Desk, make: Make, node: str, who: Who) -> Response:
    await desk.ask(make)
    await anyio.to_thread.run_sync(desk.parts.node_health.cordoned, node, who.user)
    return await _shown(desk, node)


async def _shown(desk: Desk, node: str) -> Response:
    shown = view_node(await desk.look(), node, desk.parts.nodes)
    if shown is None:
        raise not_found(f"node {node}")
    return answer(with_health(shown, await _health(desk)))


async def _health(desk: Desk) -> HealthSeen:
    # In a thread: whoever looks after health may just be writing to the disk.
    return await anyio.to_thread.run_sync(desk.parts.node_health.seen)
