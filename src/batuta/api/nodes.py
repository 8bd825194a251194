"""Nodes: look at them, take them out of service and back."""

from __future__ import annotations

from fastapi import APIRouter, Response

from batuta.api.auth import Admin, Viewer
from batuta.api.cluster_models import Node, Nodes
from batuta.api.desk import AtDesk, Desk
from batuta.api.plain_json import answer
from batuta.api.problems import not_found
from batuta.api.routes import CHANGES, NodePath, problems
from batuta.api.views import view_node, view_nodes
from batuta.engine.requests import Make

router = APIRouter(prefix="/nodes", tags=["nodes"])
_PROBLEMS = problems(404, *CHANGES)


@router.get("", response_model=Nodes, responses=problems())
async def list_nodes(desk: AtDesk, who: Viewer) -> Response:
    """All nodes, with their GPUs and who is on them."""
    return answer({"nodes": view_nodes(await desk.look(), desk.parts.nodes)})


@router.post("/{node}/cordon", response_model=Node, responses=_PROBLEMS)
async def cordon_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Nothing new here; what runs stays."""
    return await _done(desk, desk.operations.cordon(node), node)


@router.post("/{node}/uncordon", response_model=Node, responses=_PROBLEMS)
async def uncordon_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Back in service."""
    return await _done(desk, desk.operations.uncordon(node), node)


@router.post("/{node}/drain", response_model=Node, responses=_PROBLEMS)
async def drain_node(desk: AtDesk, who: Admin, node: NodePath) -> Response:
    """Nothing new here, and what runs leaves with its progress."""
    return await _done(desk, desk.operations.drain(node), node)


async def _done(desk: Desk, make: Make, node: str) -> Response:
    await desk.ask(make)
    shown = view_node(await desk.look(), node, desk.parts.nodes)
    if shown is None:
        raise not_found(f"node {node}")
    return answer(shown)
