"""The port between the decision and placement: which GPUs on which nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from batuta.core.cluster import Placement
from batuta.core.job import JobId
from batuta.core.layout import Layout
from batuta.core.reason import Evidence, Reason

if TYPE_CHECKING:
    from batuta.core.weigh import Costs
    from batuta.core.world import World


EVERYWHERE: Mapping[JobId, int] = MappingProxyType({})


class Target(NamedTuple):
    """A job that shall have another number of GPUs than it has, of one type. 0 takes all away."""

    row: int
    gpus: int
    gpu_type: int


class Failure(NamedTuple):
    """Why a target could not be placed."""

    reason: Reason
    evidence: Evidence


class Move(NamedTuple):
    """A job that keeps its size and goes elsewhere, because that pays."""

    placement: Placement
    reason: Reason
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Placed:
    """The answer of a placer. Jobs that it does not name stay exactly where they are."""

    placements: dict[int, Placement]
    """By row: where a target goes. It may have fewer GPUs than the target when that is a legal size."""
    failures: dict[int, Failure]
    """By row: targets that could not be placed. A running one keeps what it has, a waiting one waits."""
    moves: dict[int, Move]
    layout: Layout  # what is free once all of this is done


class Placer(Protocol):
    """Chooses GPUs. It changes nothing: it works on a copy of the layout."""

    def place(
        self,
        world: World,
        now_s: float,
        targets: Sequence[Target],
        costs: Costs,
        within: Mapping[JobId, int] = EVERYWHERE,
    ) -> Placed:
        """`within` has the nodes of jobs that may not go everywhere that suits them, as sets."""
        ...
