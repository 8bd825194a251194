"""What the operator says of a node's GPUs, for the device plugin that gives them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from batuta.backends.kube import objects
from batuta.backends.kube.binder.card_facts import ill_gpus
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import NODE


async def heed_operator(api: Api, node: str, withhold: Callable[[Mapping[int, str]], None]) -> None:
    """Tells which GPUs of the node are out of service, whenever that changes, until it is cancelled."""
    known: dict[int, str] = {}

    def told(_: Any) -> None:
        nonlocal known
        found = _out_of_service(informer.objects.values())
        if found != known:
            known = found
            withhold(found)

    informer: Informer[objects.Node] = Informer(api, NODE, told, fields=f"metadata.name={node}")
    await informer.run()


def _out_of_service(nodes: Any) -> dict[int, str]:
    return {gpu: why for node in nodes for gpu, why in ill_gpus(node.metadata.annotations).items()}
