"""Who sits where: pods that have a place, and workers of a placement that want one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from batuta.backends.kube import names, objects
from batuta.core.cluster import Placement, Span, placement_of


def gpus_of(pod: objects.Pod) -> tuple[int, ...]:
    """The GPUs that a pod was given with its binding; empty when nobody wrote them down."""
    text = pod.metadata.annotations.get(names.GPUS, "")
    return tuple(int(part) for part in text.split(",") if part.isdecimal())


@dataclass(slots=True)
class Seating:
    """How the pods that are there fit to the workers that are wanted."""

    stay: dict[str, int] = field(default_factory=dict)
    """By pod: the worker whose place it has."""
    leave: list[str] = field(default_factory=list)
    """Pods whose place nobody has any more."""
    free: list[int] = field(default_factory=list)
    """Workers without a pod."""


def seat(seated: Mapping[str, Span], workers: Sequence[Span]) -> Seating:
    """Finds for each pod the worker with its place: the same GPUs first, then any on the same node."""
    seating = Seating()
    left: dict[int, Span] = dict(enumerate(workers))
    unsure: list[tuple[str, Span]] = []
    for pod, place in seated.items():
        worker = next((k for k, span in left.items() if _same(span, place)), None)
        if worker is None:
            unsure.append((pod, place))
        else:
            seating.stay[pod] = worker
            del left[worker]
    for pod, place in unsure:
        worker = None
        if not place.gpus:
            # Nobody wrote down which GPUs it has, so any of its node will do.
            worker = next((k for k, span in left.items() if span.node == place.node), None)
        if worker is None:
            seating.leave.append(pod)
        else:
            seating.stay[pod] = worker
            del left[worker]
    seating.free = list(left)
    return seating


def _same(one: Span, other: Span) -> bool:
    return one.node == other.node and set(one.gpus) == set(other.gpus)


def placement_from(places: Sequence[Span]) -> Placement:
    """The placement of pods in this order."""
    return placement_of((place.node, gpu) for place in places for gpu in place.gpus)
