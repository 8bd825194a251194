"""The port between the decision and a policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from batuta.core.arrays import IntArray
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
