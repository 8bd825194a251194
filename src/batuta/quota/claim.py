"""What wants quota, and what has some."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batuta.core.quota import Toleration
from batuta.quota.tree import Amounts, Node


@dataclass(frozen=True, slots=True)
class PodSet:
    """Replicas that are alike."""

    requests: tuple[tuple[str, int], ...]
    """By resource, for one replica, in thousandths."""
    count: int = 1
    min_count: int | None = None
    """Fewer will do, down to this; None for all or nothing."""
    name: str = "main"
    node_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


class Way(NamedTuple):
    """So much of one resource in one flavor, for one replica."""

    resource: str
    flavor: str
    cell: int
    amount: int


@dataclass(slots=True, eq=False)
class Claim:
    """A job as quota sees it. While it holds quota, `usage` says how much and `flavors` of what."""

    key: Hashable
    queue: Node
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    place: tuple[float, int] = (0.0, 0)
    """Its place in line among equal priorities: when it was made, then the order of making."""
    lost_s: float = 0.0
    """GPU seconds that would be lost by pushing it aside."""
    only: frozenset[str] | None = None
    """Flavors that it can run in; None for all that its labels and tolerations allow."""
    usage: Amounts = field(default_factory=dict)
    flavors: tuple[tuple[str, str], ...] = ()
    """By resource, of the last pod set that asks for it."""
    counts: tuple[int, ...] = ()
    since: float = 0.0
    """When it got its quota: of two alike the newer is pushed aside."""
    stays: bool = False
    """It is just starting or resizing, so it cannot be pushed aside now."""
    has_pushed: bool = False
    """Others were pushed aside for it already, and it has not got what they had."""
    stuck: bool = False
    """There is no place for it now, so it gets no quota. In a strict queue nobody overtakes it yet."""
    due: bool = False
    """It has waited so long that nobody may delay it any more."""
    tried: Sequence[Mapping[str, int]] = ()
    """By pod set and resource: the flavor at which the last search ended, for the next one to go on there."""
    resumed: int = 0
    """How often in a row it was."""
    way: Way | None = None
    """What it gets if it gets anything, where it has no choice."""
    shape: Hashable = None
    """Claims of equal shape in one queue are answered alike."""

    def __post_init__(self) -> None:
        if self.shape is None:
            self.shape = (self.pod_sets, self.only)

    @property
    def row(self) -> int:
        """Its key, for claims of jobs in a World."""
        assert isinstance(self.key, int)
        return self.key

    @property
    def resumes(self) -> bool:
        """Whether the last search did not look at all its flavors."""
        return any(at >= 0 for own in self.tried for at in own.values())

    @property
    def order(self) -> tuple[int, float, int]:
        """Sorts those that wait in one queue: the most important first, then the oldest."""
        return (-self.priority, *self.place)

    def uses(self, cells: Amounts) -> bool:
        usage = self.usage
        return any(cell in usage for cell in cells)
