"""The port between the decision and a policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from batuta.core.arrays import IntArray
from batuta.core.parts import Parts
from batuta.core.typed_view import Choice, TypedView
from batuta.core.view import PoolView


@runtime_checkable
class Policy(Protocol):
    """Answers one question: how many GPUs should each job have now?

    It holds parameters, never state. The result has one count per row of the view: 0 or a legal size,
    together at most the capacity.

    A policy may say `generous = True`: it gives every job its `max` whenever that is within the capacity for
    all together. Then it is not asked at such moments, which in a quiet cluster is most of the time.
    """

    @property
    def name(self) -> str: ...

    def allocate(self, view: PoolView) -> IntArray: ...


@runtime_checkable
class TieredPolicy(Policy, Protocol):
    """A policy that also moves jobs between queue levels; the World remembers the level."""

    def tiers(self, view: PoolView) -> IntArray: ...


@runtime_checkable
class PartedPolicy(Policy, Protocol):
    """A policy that divides many small pools at once, and gives each what it would get alone.

    The view has the rows of all parts and no capacity of its own.
    """

    def allocate_parts(self, view: PoolView, parts: Parts) -> IntArray: ...


@runtime_checkable
class TypedPolicy(Policy, Protocol):
    """A policy that also chooses the GPU type of each job. It is asked so when there is more than one.

    Every count is 0 or a legal size of at most `most[row, type]`, and the counts of each type are together
    at most its capacity. A running job may be sent to another type: that is a restart.
    """

    def allocate_types(self, view: TypedView) -> Choice: ...
