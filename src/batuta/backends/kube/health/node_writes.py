"""What is done to nodes because of their health, on the side that talks to the API server."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Conflict, NotFound
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.health.marks import Marks, changes, condition_body
from batuta.core.cluster import NodeName

MANAGER: Final = "batuta-health"
_TRIES: Final = 4


async def mark_node(api: Api, *, node: NodeName, marks: Marks, drop: tuple[str, ...]) -> None:
    """Makes a node look so. Taints are one list of everybody's, so it is read and replaced in one version."""
    for tries_left in reversed(range(_TRIES)):
        try:
            # Not as a struct: of taints of others nothing may get lost.
            live: dict[str, Any] = msgspec.json.decode(await api.raw("GET", NODE.path("", node)))
            body = changes(live, marks, drop)
            if body:
                await api.patch(NODE, node, body)
        except NotFound:
            return
        except Conflict:
            if not tries_left:
                raise
        else:
            break
    if marks.condition is not None:
        body = condition_body(node, marks.condition)
        await api.apply(NODE, body, manager=MANAGER, force=True, subresource="status")


def plain(node: objects.Node) -> dict[str, Any]:
    """As much of a node that is known as it takes to see whether it looks as it shall."""
    return {
        "metadata": {"annotations": node.metadata.annotations, "resourceVersion": ""},
        "spec": {
            "taints": [{"key": one.key, "value": one.value, "effect": one.effect} for one in node.spec.taints]
        },
    }
