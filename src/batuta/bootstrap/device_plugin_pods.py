"""The device plugin's view of a cluster: the pods of its node, and what it says about the node's cards."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cards import gpu_indices
from batuta.backends.kube.binder.quantity import amount, whole
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.gpu.device_plugin.pods import ContainerShare, PodsUnknown, SharePod
from batuta.gpu.device_plugin.stock import Card, Generosity, Resource

_SIDECAR = "Always"


class NodePods:
    """Asks the API server each time: an answer from memory may be older than what the kubelet knows."""

    def __init__(self, api: Api, node: str) -> None:
        self._api, self._node = api, node

    async def on_this_node(self) -> Sequence[SharePod]:
        fields = f"spec.nodeName={self._node},status.phase!=Succeeded,status.phase!=Failed"
        try:
            found = await self._api.list(POD, fields=fields)
        except ApiError as error:
            raise PodsUnknown(f"the API server does not tell which pods there are: {error}") from error
        return [share_pod(pod) for pod in found.items]


def share_pod(pod: objects.Pod) -> SharePod:
    """What the device plugin knows of a pod; without containers where it wants no share."""
    meta = pod.metadata
    cards = gpu_indices(meta.annotations)
    bound = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
    inits = [(one, one.restart_policy != _SIDECAR) for one in pod.spec.init_containers]
    shares = [
        ContainerShare(one.name, _units(one, Resource.MEMORY), _units(one, Resource.COMPUTE), is_init=is_init)
        for one, is_init in [*inits, *((one, False) for one in pod.spec.containers)]
    ]
    return SharePod(
        meta.namespace,
        meta.name,
        meta.uid,
        card=cards[0] if cards else None,
        containers=tuple(one for one in shares if one.memory_units or one.compute_percent),
        bound_s=_seconds(bound.last_transition_time) if bound else 0.0,
        version=int(meta.resource_version) if meta.resource_version.isdecimal() else 0,
        is_waiting=pod.status.phase in ("", "Pending"),
        is_soft=meta.annotations.get(names.SHARE_LIMITS, "") == "soft",
    )


async def tell_cards(api: Api, node: str, cards: Sequence[Card], generosity: Generosity) -> None:
    """Writes on the node what each card has to give, and which are ill; raises `ApiError`."""
    told = [
        {
            "index": card.index,
            "uuid": card.uuid,
            "memory": generosity.units(card, Resource.MEMORY),
            "compute": generosity.units(card, Resource.COMPUTE),
            "illness": card.illness,
        }
        for card in cards
    ]
    text = msgspec.json.encode(told).decode()
    await api.patch(NODE, node, {"metadata": {"annotations": {names.CARDS: text}}})


def _units(container: objects.Container, resource: Resource) -> int:
    return whole(amount(container.resources.limits.get(resource, "0")))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
