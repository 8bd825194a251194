"""The simple part of giving out quota: jobs that fit within what their own queue has, one line at a time.

Nobody borrows here and nobody is pushed aside, so no queue's answer depends on another's, and what is lent
afterwards is not wanted by its owner at the same moment. Thousands of jobs are served here, so it is terse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
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
    asks: Mapping[int, Ask],
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
    at_once = 0 if without or least is not None else _fill(queue, rows, asks, room, total)
    served, left = list(rows[:at_once]), list[int]()
    too_large: set[Ask] = set()
    for at in range(at_once, len(rows)):
        row = rows[at]
        ask = asks[row]
        if least is not None and priorities[row] < least:
            left.extend(rows[at:])
            break
        if row not in without and ask not in too_large:
            for cell, amount in ask.usage.items():
                free = room.get(cell)
                if free is None:
                    free = room[cell] = _free(queue, cell)
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


def _fill(queue: Node, rows: Sequence[int], asks: Mapping[int, Ask], room: Amounts, total: Amounts) -> int:
    """How many fit one after another from the first on, as far as all of them ask for the same cell.

    What they take is noted. As long as all fit nobody has to let others pass, so there is little to look at.
    """
    first = asks[rows[0]].way if rows else None
    if first is None:
        return 0
    free, used, count = _free(queue, first.cell), 0, 0
    for row in rows:
        way = asks[row].way
        if way is None or way.cell != first.cell or used + way.amount > free:
            break
        used += way.amount
        count += 1
    room[first.cell], total[first.cell] = free - used, used
    return count


def _free(queue: Node, cell: int) -> int:
    """What is left of a queue's own."""
    return min(queue.subtree.get(cell, 0) - queue.usage.get(cell, 0), queue.left(cell))
