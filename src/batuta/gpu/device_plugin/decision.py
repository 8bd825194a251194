"""Who is it for? The kubelet asks for units without naming the pod; the scheduler has written which card.

A kubelet admits its pods one after another, in the order in which they were bound. So a request is that of
the oldest pod which waits for just as many units and does not have them yet. Its card was decided on: the
units are of that card, or nobody gets them. What others hold is read from the kubelet's own file and never
remembered here, so a restart of either side changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from batuta.gpu.device_plugin.checkpoint import Holding
from batuta.gpu.device_plugin.pods import ContainerShare, SharePod
from batuta.gpu.device_plugin.stock import Card, Resource, Stock


class Refused(Exception):
    """Why a container does not get what it asks for, in words for the pod's events."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A share of a card for a container."""

    pod: SharePod
    container: ContainerShare
    card: Card


@dataclass(frozen=True, slots=True)
class Books:
    """What is known at the moment of a request."""

    stock: Stock
    pods: Sequence[SharePod]
    """All pods of the node that have not ended."""
    holdings: Sequence[Holding]
    began: tuple[str, str] | None = None
    """Pod (its uid) and container that got another resource a moment ago: the kubelet is not done with it."""

    def grant(self, resource: Resource, units: Sequence[str]) -> Grant:
        """For whom these units are; raises `Refused`. The same units give the same answer again."""
        card = self._card(resource, units)
        wanted = frozenset(units)
        if (again := self._holder_of(resource, wanted)) is not None:
            return Grant(*again, card)
        self._check_free(resource, wanted)
        candidates = self._candidates(resource, len(wanted))
        self._check_begun(resource, len(wanted))
        for pod, container in candidates:
            if pod.card == card.index:
                return Grant(pod, container, card)
        raise Refused(self._no_candidate(resource, len(wanted), card, candidates))

    def prefer(
        self, resource: Resource, available: Sequence[str], included: Sequence[str], size: int
    ) -> list[str]:
        """Units that `grant` would say yes to, else units of one card; fewer than `size` if it has no more.

        Units that a pod seems to have, although the kubelet says that they are free, come last: it has ended,
        and the API server has not heard of it yet.
        """
        taken = {
            unit
            for pod in self.pods
            for one in self._of(pod)
            if one.resource is resource
            for unit in one.units
        }
        by_card: dict[str, list[str]] = {}
        for unit in sorted(set(available) - set(included), key=lambda unit: (unit in taken, _natural(unit))):
            if (card := self.stock.card_of(unit, resource)) is not None:
                by_card.setdefault(card.uuid, []).append(unit)
        chosen = self._preferred_card(resource, included, size, by_card)
        return [*included, *by_card.get(chosen, ())][:size]

    def _preferred_card(
        self, resource: Resource, included: Sequence[str], size: int, by_card: dict[str, list[str]]
    ) -> str:
        begun = next((card for unit in included if (card := self.stock.card_of(unit, resource))), None)
        if begun is not None:
            return begun.uuid
        for pod, _ in self._candidates(resource, size):
            decided = next((card for card in self.stock.cards if card.index == pod.card), None)
            if decided is not None:
                return decided.uuid
        # Nobody decided, so Allocate will refuse; the tightest card that has room is as good as any.
        roomy = [uuid for uuid, units in by_card.items() if len(units) >= size]
        return min(roomy or by_card, key=lambda uuid: (len(by_card[uuid]), uuid), default="")

    def _card(self, resource: Resource, units: Sequence[str]) -> Card:
        found = {unit: self.stock.card_of(unit, resource) for unit in units}
        if unknown := [unit for unit, card in found.items() if card is None]:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise Refused(f"unknown unit of {resource}: {unknown[0]}{more}")
        cards = {card.index: card for card in found.values() if card is not None}
        if len(cards) != 1:
            listed = ", ".join(map(str, sorted(cards))) or "none"
            raise Refused(f"a share is of one GPU, and these units of {resource} are of GPUs {listed}")
        (card,) = cards.values()
        if card.illness:
            raise Refused(f"GPU {card.index} ({card.uuid}) is ill: {card.illness}")
        return card

    def _holder_of(self, resource: Resource, units: frozenset[str]) -> tuple[SharePod, ContainerShare] | None:
        """The container that has exactly these already."""
        for pod in self.pods:
            for one in self._lasting(pod, resource):
                for container in pod.containers:
                    if one.units == units and container.name == one.container:
                        return pod, container
        return None

    def _check_free(self, resource: Resource, units: frozenset[str]) -> None:
        for pod in self.pods:
            for one in self._lasting(pod, resource):
                if both := one.units & units:
                    raise Refused(f"{len(both)} of these units of {resource} are held by {pod}")

    def _check_begun(self, resource: Resource, size: int) -> None:
        """A container that has begun and asks for something else now is not the one that it was taken for."""
        for pod in self.pods:
            for share in self._missing(pod, resource) if pod.is_waiting else ():
                if (pod.uid, share.name) == self.began and share.units(resource) != size:
                    raise Refused(
                        f"the kubelet asks for {size} units of {resource}, and {pod}, which it began with, "
                        f"wants {share.units(resource)}: it is not clear whose turn it is"
                    )

    def _lasting(self, pod: SharePod, resource: Resource) -> Iterable[Holding]:
        """What a pod has, without what its containers inherit: that of init containers, which end."""
        heirs = any(not share.is_init for share in self._missing(pod, resource))
        passing = {share.name for share in pod.containers if share.is_init} if heirs else set()
        return [one for one in self._of(pod) if one.resource is resource and one.container not in passing]

    def _candidates(self, resource: Resource, size: int) -> list[tuple[SharePod, ContainerShare]]:
        """Containers that wait for so many units: the one that the kubelet has begun with, then by age."""
        found = [
            (pod, share)
            for pod in sorted(self.pods, key=lambda pod: pod.order)
            if pod.is_waiting
            for share in self._missing(pod, resource)
            if share.units(resource) == size
        ]
        return sorted(found, key=lambda pair: (pair[0].uid, pair[1].name) != self.began)

    def _missing(self, pod: SharePod, resource: Resource) -> Iterable[ContainerShare]:
        """Its containers that want something of a resource and have nothing yet."""
        have = {one.container for one in self._of(pod) if one.resource is resource}
        return [share for share in pod.containers if share.units(resource) and share.name not in have]

    def _of(self, pod: SharePod) -> Iterable[Holding]:
        return [one for one in self.holdings if one.uid == pod.uid]

    def _no_candidate(
        self, resource: Resource, size: int, card: Card, found: Sequence[tuple[SharePod, ContainerShare]]
    ) -> str:
        if undecided := [pod for pod, _ in found if pod.card is None]:
            return (
                f"no scheduler has decided on a GPU for {undecided[0]}: "
                f"it needs the annotation batuta.dev/gpus, which `schedulerName: batuta` writes"
            )
        if found:
            pod = found[0][0]
            return (
                f"GPU {pod.card} was decided on for {pod}, and it has no {size} units of {resource} left: "
                f"the kubelet offers GPU {card.index}"
            )
        return f"no pod on this node waits for {size} units of {resource}"


def _natural(unit: str) -> tuple[str, int]:
    head, _, number = unit.rpartition("/")
    return head, int(number) if number.isdecimal() else 0
