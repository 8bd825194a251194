"""The simple part of giving out quota: jobs that fit within what their own queue has, one line at a time.

Nobody borrows here and nobody is pushed aside, so no queue's answer depends on another's, and what is lent
afterwards is not wanted by its owner at the same moment. Thousands of jobs are served here, so it is terse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

import numpy as np

from batuta.core.arrays import IntArray
from batuta.quota.asks import Ask
from batuta.quota.tree import Amounts, Node

_TOO_MUCH = 1 << 40
"""More thousandths of a GPU than anybody has, and not so much that a sum of many thousand would overflow."""


class Served(NamedTuple):
    """Who gets quota, and who has to be looked at more closely, both in the order of the line."""

    rows: list[int]
    left: list[int]


class Filled(NamedTuple):
    """So many of a line fit one after another from the first on, and what they take of which cell."""

    rows: int
    cell: int
    used: int


NOBODY = Filled(0, -1, 0)


def fill(
    queues: Sequence[Node], lines: Sequence[Sequence[int]], cells: IntArray, amounts: IntArray
) -> list[Filled]:
    """How far each queue's own quota goes for its line, as long as all fit that ask for the same cell.

    All lines at once, none of them empty, given by row the only cell that it asks for (or -1) and how much.
    """
    if not lines:
        return []
    rows = np.fromiter(chain.from_iterable(lines), np.int64)
    lengths = np.array([len(line) for line in lines])
    starts = np.cumsum(lengths) - lengths
    first: IntArray = cells[rows[starts]]
    number = np.repeat(np.arange(len(lines)), lengths)
    own = np.array([_own(*pair) for pair in zip(queues, first.tolist(), strict=True)], dtype=np.int64)
    asked = np.where((cells[rows] == first[number]) & (first >= 0)[number], amounts[rows], _TOO_MUCH)
    total = np.cumsum(asked)
    used = total - (total - asked)[starts][number]
    counts = np.add.reduceat(used <= own[number], starts, dtype=np.int64)
    taken = np.where(counts > 0, used[np.maximum(starts + counts - 1, 0)], 0)
    return list(map(Filled, counts.tolist(), first.tolist(), taken.tolist()))


def serve_own(
    queue: Node,
    rows: Sequence[int],
    asks: Mapping[int, Ask],
    priorities: Sequence[int],
    without: Set[int],
    stops: Callable[[int], bool],
    least: int | None = None,
    filled: Filled = NOBODY,
) -> Served:
    """Serves a line as far as it goes, and books it.

    Whoever does not fit lets those pass that are as important and ask for something else, unless it `stops`
    the line. With `least` somebody of that priority is before them already. The first are `filled` in unless
    others have borrowed what they would take; there may be nobody among them for whom there is no place.
    """
    room: Amounts = {}
    total: Amounts = {}
    at_once, cell, used = filled
    if at_once:
        free = _free(queue, cell)
        if used <= free:
            room[cell], total[cell] = free - used, used
        else:
            at_once = 0
    elif least is not None and not any(_free(queue, cell) > 0 for cell in queue.limits):
        return Served([], list(rows))
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
                left_over = room.get(cell)
                if left_over is None:
                    left_over = room[cell] = _free(queue, cell)
                if amount > left_over:
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


def _own(queue: Node, cell: int) -> int:
    """What a queue does not use of its own."""
    return queue.subtree.get(cell, 0) - queue.usage.get(cell, 0)


def _free(queue: Node, cell: int) -> int:
    """What is left of a queue's own."""
    return min(_own(queue, cell), queue.left(cell))
