"""What people do to nodes of a cluster: cordon them, put them back, and say that they were mended."""

from __future__ import annotations

from typing import Any

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.health.marks import EFFECT, own_taint
from batuta.backends.kube.health.shown import records_on
from batuta.client.errors import ClientError
from batuta.core.health_record import WHOLE_NODE, State


async def cordon(api: Api, node: str) -> None:
    """Nothing new starts there; what runs stays."""
    await _found(api, node)
    await api.patch(NODE, node, {"spec": {"unschedulable": True}})


async def uncordon(api: Api, node: str) -> None:
    """Ends the cordon that people made; where there is none, the node is well by their word."""
    found = await _found(api, node)
    if found.spec.unschedulable or not own_taint(found.metadata.annotations):
        await api.patch(NODE, node, {"spec": {"unschedulable": False}})
        return
    # The operator sees that its taint was taken off. Of taints of others nothing may get lost.
    live: dict[str, Any] = msgspec.json.decode(await api.raw("GET", NODE.path("", node)))
    taints = [
        taint
        for taint in live["spec"].get("taints", ())
        if (taint["key"], taint["effect"]) != (names.UNHEALTHY, EFFECT)
    ]
    version = live["metadata"]["resourceVersion"]
    await api.patch(NODE, node, {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})


async def mended(api: Api, node: str, gpu: int | None) -> None:
    """What a node or GPU needed is done: the operator has it tested."""
    found = await _found(api, node)
    target = WHOLE_NODE if gpu is None else gpu
    ill = {one for one, record in records_on(found.metadata.annotations).items() if record.state is State.ILL}
    if target not in ill:
        listed = ", ".join("the node" if one == WHOLE_NODE else f"GPU {one}" for one in sorted(ill))
        what = f"node {node}" if gpu is None else f"GPU {gpu} of node {node}"
        raise ClientError(f"{what} is not ill, so there is nothing to mend; ill there: {listed or 'nothing'}")
    words = {"metadata": {"annotations": {names.MENDED: "node" if gpu is None else f"gpu-{gpu}"}}}
    await api.patch(NODE, node, words)


async def _found(api: Api, node: str) -> objects.Node:
    try:
        return await api.get(NODE, node)
    except NotFound:
        raise ClientError(f"there is no node {node}: `batuta nodes` lists them") from None
