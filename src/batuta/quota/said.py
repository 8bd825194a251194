"""What is said to many who wait for the same thing: it is put into words once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from batuta.core.arrays import BoolArray, IntArray
from batuta.core.quota import Cell
from batuta.core.reason import Evidence, Reason
from batuta.quota.refusal import Refusal, Why
from batuta.quota.world_reasons import reason_for


class Numbers(NamedTuple):
    """Columns with an entry for each who is told something; amounts in thousandths."""

    kept: BoolArray
    """Whether it would have what it needs if that were not kept for another."""
    cell: IntArray
    needs: IntArray
    free: IntArray
    """What would be left if nothing were kept."""
    own: IntArray
    """What is left of the queue's own."""
    nominal: IntArray
    lends: IntArray
    most: IntArray
    """What the queue could have if it were alone."""


def say(cells: Sequence[Cell], numbers: Numbers) -> list[tuple[Reason, Evidence]]:
    """Those who are told the same are told the very same."""
    known: dict[tuple[int, ...], tuple[Reason, Evidence]] = {}
    found = []
    for key in zip(*(column.tolist() for column in numbers), strict=True):
        words = known.get(key)
        if words is None:
            words = known[key] = _word(cells, *key)
        found.append(words)
    return found


def _word(cells: Sequence[Cell], *numbers: int) -> tuple[Reason, Evidence]:
    kept, cell, needs, free, own, nominal, lends, most = numbers
    if kept:
        return reason_for(Refusal(Why.WAITING_FOR_QUOTA, "", cells[cell], needs, free), kept=True)
    why = Why.EXCEEDS_MAX_QUOTA if needs > most else Why.WAITING_FOR_QUOTA
    return reason_for(Refusal(why, "", cells[cell], needs, own, nominal, lends, most))
