"""The port between the decision and a policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast, runtime_checkable

from batuta.core.arrays import IntArray, Partitions
from batuta.core.view import Choice, PoolView, TypedView


class PlacerKind(Enum):
    """The placers that a policy may be defined with."""

    TOPOLOGY = "topology"  # close together, by rack, node, NVLink and NUMA
    WHOLE_NODES = "whole-nodes"  # jobs of more than a node on whole nodes; running jobs stay where they are
    MOST_FREE = "most-free"  # the nodes with the most free GPUs first, as the published replays do
    MOST_FREE_BY_SIZE = "most-free-by-size"  # the same, large jobs first


@dataclass(frozen=True, slots=True)
class ReplayTraits:
    """How jobs of the published replays learn and tune their batch size under a policy."""

    knowledge: str = ""  # what the policy may know of jobs; empty: what the experiment says
    adapts_batch: bool = False  # jobs choose their batch size for the GPUs that they have
    every_size: bool = False  # batch sizes are chosen for every GPU count, not only for those that fill nodes
    explores: tuple[int, int, float, float] | None = None
    """How jobs explore larger sizes: GPUs of a job that was never measured, how many times the most that was
    measured it may have then, and the communication that is expected there. None: as usual."""


@dataclass(frozen=True, slots=True)
class PolicyTraits:
    """What a policy can do, and what it asks of the steps around it, declared as one value."""

    placer: PlacerKind = PlacerKind.TOPOLOGY
    typed: bool = False  # it has `allocate_types` (TypedPolicy)
    tiered: bool = False  # it has `tiers` (TieredPolicy)
    parted: bool = False  # it has `allocate_parts` (PartedPolicy)
    generous: bool = False
    """It gives every job its `max` whenever that is within the capacity for all together. The scheduler does
    not ask it then, which in a quiet cluster is most of the time."""
    weighs: bool = False  # it charges restarts itself, so the step `weigh` does not judge growth again
    steady: bool = False  # it heeds `PoolView.held`: the jobs that keep their size
    min_first: bool = False
    """No job grows while another job waits that would fit at its `min`. A server's default policy has it."""
    as_published: bool = False  # a published baseline: changes are neither weighed nor held back, as its authors ran it
    decide_every_s: float | None = None
    """The scheduler decides at least this often while jobs wait: the order changes with time alone."""
    replay: ReplayTraits = ReplayTraits()


PLAIN = PolicyTraits()  # a policy that only divides GPUs


@runtime_checkable
class Policy(Protocol):
    """Answers one question: how many GPUs should each job have now?

    It holds parameters, never state. The result has one count per row of the view: 0 or a legal size,
    together at most the capacity.
    """

    @property
    def name(self) -> str: ...

    @property
    def traits(self) -> PolicyTraits: ...

    def allocate(self, view: PoolView) -> IntArray: ...


class TieredPolicy(Policy, Protocol):
    """A policy that also moves jobs between queue levels; the World remembers the level."""

    def tiers(self, view: PoolView) -> IntArray: ...


class PartedPolicy(Policy, Protocol):
    """A policy that divides many pools at once, each as if alone; the view has the rows of all parts."""

    def allocate_parts(self, view: PoolView, parts: Partitions) -> IntArray: ...


class TypedPolicy(Policy, Protocol):
    """A policy that also chooses the GPU type of each job. It is asked so when there is more than one.

    Every count is 0 or a legal size of at most `most[row, type]`, and the counts of each type are together
    at most its capacity. A running job may be sent to another type: that is a restart.
    """

    def allocate_types(self, view: TypedView) -> Choice: ...


def as_tiered(policy: Policy) -> TieredPolicy | None:
    """The policy, if it declares queue levels."""
    return cast(TieredPolicy, policy) if policy.traits.tiered else None


def as_parted(policy: Policy) -> PartedPolicy | None:
    """The policy, if it declares that it divides many pools at once."""
    return cast(PartedPolicy, policy) if policy.traits.parted else None


def as_typed(policy: Policy) -> TypedPolicy | None:
    """The policy, if it declares that it chooses GPU types."""
    return cast(TypedPolicy, policy) if policy.traits.typed else None
