"""Find the container that a request of the kubelet is for, and the GPU that the scheduler chose for it.

The kubelet asks for units without naming the pod. It admits its pods one after another, in the order in which
they were bound. So a request belongs to the oldest pod that waits for just as many units and does not have
them yet. The units must be of the GPU in the pod's annotation, or the request is refused. What other pods
hold is read from the kubelet's checkpoint file and never remembered here, so a restart of either side changes
nothing. The kubelet's service for pod resources is not used: it makes the kubelet clean up its state, and a
clean-up in the middle of an allocation loses the units that are being allocated.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from batuta.gpu.device_plugin.inventory import Card, DeviceInventory, Resource

CHECKPOINT_FILE: Final = "kubelet_internal_checkpoint"


class CheckpointUnreadable(Exception):
    """The kubelet's checkpoint file cannot be parsed."""


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """The units of one resource that a container has."""

    uid: str
    container: str
    resource: Resource
    units: frozenset[str]


def read_assignments(folder: Path) -> tuple[DeviceAssignment, ...]:
    """Return which containers have units of our resources. A kubelet without allocations has no file."""
    path = folder / CHECKPOINT_FILE
    try:
        data: Any = json.loads(path.read_text())["Data"]
        return tuple(
            DeviceAssignment(entry["PodUID"], entry["ContainerName"], Resource(entry["ResourceName"]), _units(entry))
            for entry in data["PodDeviceEntries"] or ()
            if entry["ResourceName"] in set(Resource)
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointUnreadable(f"cannot read {path}: {type(error).__name__}: {error}") from None


def _units(entry: Any) -> frozenset[str]:
    """Return the units of an entry: by NUMA node, or as one list of a kubelet before 1.20."""
    listed = entry["DeviceIDs"]
    groups = listed.values() if isinstance(listed, dict) else [listed or ()]
    return frozenset(unit for group in groups for unit in group)


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container requests, in the kubelet's units."""

    name: str
    memory_units: int = 0
    compute_percent: int = 0
    is_init: bool = False  # whether it ends before the others start, and leaves its units to them

    def units(self, resource: Resource) -> int:
        return self.memory_units if resource is Resource.MEMORY else self.compute_percent


@dataclass(frozen=True, slots=True)
class SharePod:
    """A pod that is bound to this node and has not ended."""

    namespace: str
    name: str
    uid: str
    card: int | None  # the index of the GPU that the scheduler chose; None: it has not chosen
    containers: tuple[ContainerRequest, ...]
    """Those that ask for a share, in the order in which the kubelet admits them."""
    bound_s: float = 0.0
    version: int = 0  # of the object: tells the order of pods that were bound in the same second
    is_waiting: bool = True  # whether none of its containers has started
    is_soft: bool = False  # whether it may have more compute than it asked for, while the card has nothing else to do

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[float, int, str]:
        """The order in which the kubelet sees pods: that of their binding."""
        return (self.bound_s, self.version, str(self))


class PodsUnavailable(Exception):
    """The pods of the node cannot be listed at the moment."""


ListPods: TypeAlias = Callable[[], Awaitable[Sequence[SharePod]]]
"""Returns all pods of this node that have not ended, or raises PodsUnavailable."""


class AllocationRefused(Exception):
    """Why a container does not get what it requests, as a text for the pod's events."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A share of a GPU for a container."""

    pod: SharePod
    container: ContainerRequest
    card: Card


@dataclass(frozen=True, slots=True)
class AllocationState:
    """The state of the node at the moment of a request."""

    inventory: DeviceInventory
    pods: Sequence[SharePod]  # all pods of the node that have not ended
    assignments: Sequence[DeviceAssignment]
    began: tuple[str, str] | None = None
    """Pod (its uid) and container that got another resource a moment ago: the kubelet is not done with it."""

    def grant(self, resource: Resource, units: Sequence[str]) -> Grant:
        """Return the container that these units are for, or raise AllocationRefused. Repeatable."""
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
        raise AllocationRefused(self._no_candidate(resource, len(wanted), card, candidates))

    def prefer(self, resource: Resource, available: Sequence[str], included: Sequence[str], size: int) -> list[str]:
        """Return units that `grant` would accept, else units of one GPU; fewer than `size` if it has no more.

        Units of a pod that the kubelet lists as free come last: the pod has ended, and the API server does
        not know it yet.
        """
        taken = {
            unit for pod in self.pods for one in self._assigned(pod) if one.resource is resource for unit in one.units
        }
        by_card: dict[str, list[str]] = {}
        for unit in sorted(set(available) - set(included), key=lambda unit: (unit in taken, _natural(unit))):
            if (card := self.inventory.card_of(unit, resource)) is not None:
                by_card.setdefault(card.uuid, []).append(unit)
        chosen = self._preferred_card(resource, included, size, by_card)
        return [*included, *by_card.get(chosen, ())][:size]

    def _preferred_card(
        self, resource: Resource, included: Sequence[str], size: int, by_card: dict[str, list[str]]
    ) -> str:
        begun = next((card for unit in included if (card := self.inventory.card_of(unit, resource))), None)
        if begun is not None:
            return begun.uuid
        for pod, _ in self._candidates(resource, size):
            decided = next((card for card in self.inventory.cards if card.index == pod.card), None)
            if decided is not None:
                return decided.uuid
        # The scheduler has not chosen, so Allocate will refuse; the tightest GPU with room will do.
        roomy = [uuid for uuid, units in by_card.items() if len(units) >= size]
        return min(roomy or by_card, key=lambda uuid: (len(by_card[uuid]), uuid), default="")

    def _card(self, resource: Resource, units: Sequence[str]) -> Card:
        found = {unit: self.inventory.card_of(unit, resource) for unit in units}
        if unknown := [unit for unit, card in found.items() if card is None]:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise AllocationRefused(f"unknown unit of {resource}: {unknown[0]}{more}")
        cards = {card.index: card for card in found.values() if card is not None}
        if len(cards) != 1:
            listed = ", ".join(map(str, sorted(cards))) or "none"
            raise AllocationRefused(f"a share is of one GPU, and these units of {resource} are of GPUs {listed}")
        (card,) = cards.values()
        if card.illness:
            raise AllocationRefused(f"GPU {card.index} ({card.uuid}) is ill: {card.illness}")
        return card

    def _holder_of(self, resource: Resource, units: frozenset[str]) -> tuple[SharePod, ContainerRequest] | None:
        """Return the container that has exactly these units already."""
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
                    raise AllocationRefused(f"{len(both)} of these units of {resource} are held by {pod}")

    def _check_begun(self, resource: Resource, size: int) -> None:
        """Refuse if the container that has another resource requests a different number of units now."""
        for pod in self.pods:
            for share in self._missing(pod, resource) if pod.is_waiting else ():
                if (pod.uid, share.name) == self.began and share.units(resource) != size:
                    raise AllocationRefused(
                        f"the kubelet asks for {size} units of {resource}, and {pod}, which it began with, "
                        f"wants {share.units(resource)}: it is not clear whose turn it is"
                    )

    def _lasting(self, pod: SharePod, resource: Resource) -> Iterable[DeviceAssignment]:
        """Return what a pod keeps: without the units of init containers, which its containers inherit."""
        inherits = any(not share.is_init for share in self._missing(pod, resource))
        passing = {share.name for share in pod.containers if share.is_init} if inherits else set()
        return [one for one in self._assigned(pod) if one.resource is resource and one.container not in passing]

    def _candidates(self, resource: Resource, size: int) -> list[tuple[SharePod, ContainerRequest]]:
        """Return the containers that wait for so many units: the one in progress first, then by age."""
        found = [
            (pod, share)
            for pod in sorted(self.pods, key=lambda pod: pod.order)
            if pod.is_waiting
            for share in self._missing(pod, resource)
            if share.units(resource) == size
        ]
        return sorted(found, key=lambda pair: (pair[0].uid, pair[1].name) != self.began)

    def _missing(self, pod: SharePod, resource: Resource) -> Iterable[ContainerRequest]:
        """Return the containers of a pod that request units of a resource and have none yet."""
        have = {one.container for one in self._assigned(pod) if one.resource is resource}
        return [share for share in pod.containers if share.units(resource) and share.name not in have]

    def _assigned(self, pod: SharePod) -> Iterable[DeviceAssignment]:
        return [one for one in self.assignments if one.uid == pod.uid]

    def _no_candidate(
        self, resource: Resource, size: int, card: Card, found: Sequence[tuple[SharePod, ContainerRequest]]
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
