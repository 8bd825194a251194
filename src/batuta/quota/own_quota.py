"""The simple part of giving out quota: jobs that fit within what their own queue has, one line at a time.

Nobody borrows here and nobody is pushed aside, so no queue's answer depends on another's, and what is lent
afterwards is not wanted by its owner at the same moment. Thousands of jobs are served here, so it is terse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from batuta.quota.asks import Ask
from batuta.quota.tree import Amounts, Node


class Served(NamedTuple):
    """Who gets quota, and who has to be looked at more closely, both in the order of the line."""

    rows: list[int]
    left: list[int]


def serve_own(
    queue: Node,
    rows: Sequence[int],
    asks: Sequence[Ask | None],
    priorities: Sequence[int],
    without: Set[int],
    stops: Callable[[int], bool],
    least: int | None = None,
) -> Served:
    """Serves a line as far as it goes, and books it.

    Whoever does not fit lets those pass that are as important and ask for something else, unless it `stops`
    the line. With `least` somebody of that priority is before them already.
    """
    room: Amounts = {}
    total: Amounts = {}
    served: list[int] = []
    left: list[int] = []
    too_large: set[Ask] = set()
    for at, row in enumerate(rows):
        ask = asks[row]
        assert ask is not None
        if least is not None and priorities[row] < least:
            left.extend(rows[at:])
            break
        if row not in without and ask not in too_large:
            for cell, amount in ask.usage.items():
                free = room.get(cell)
                if free is None:
                    own = queue.subtree.get(cell, 0) - queue.usage.get(cell, 0)
                    free = room[cell] = min(own, queue.left(cell))
                if amount > free:
                    break
            else:
                for cell, amount in ask.usage.items():
                    room[cell] -= amount
                    total[cell] = total.get(cell, 0) + amount
                served.append(row)
                continue
            too_large.add(ask)
        left.append(row)
        if stops(row):
            left.extend(rows[at + 1 :])
            break
        if least is None and row not in without:
            least = priorities[row]
    queue.add(total)
    return Served(served, left)
