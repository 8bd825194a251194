"""What a round came to for one tree of cohorts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from batuta.core.admission import Budget
from batuta.core.arrays import IntArray
from batuta.core.quota import Flavors
from batuta.core.reason import Evidence, Reason
from batuta.quota.asks import Ask


class New(NamedTuple):
    """Jobs of one queue that get quota, in the order in which they got it."""

    places: list[int]
    flavors: list[Flavors]
    asks: list[Ask]


@dataclass(slots=True)
class Answers:
    """Everything that is said to the jobs of a tree.

    Jobs have a place among those of their tree, the oldest first: that stays when rows are numbered anew.
    """

    cap: IntArray
    refused: list[int]
    reasons: list[tuple[Reason, Evidence]]
    new: dict[str, New]
    """By queue."""
    holding: list[tuple[int, Flavors]]
    """Those who had quota before the round, by place."""
    losers: dict[int, Reason]
    contested: bool
    """Whether some got quota while others lost some or wait."""
    grown_from: IntArray | None = None
    """The caps from which the budgets were worked out: nodes may have lowered them."""
    budgets: dict[str, list[Budget]] = field(default_factory=dict)
    """By queue; their rows are places."""
