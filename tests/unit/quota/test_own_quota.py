"""A line is served from what its own queue has, as far as that goes."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from batuta.core.quota import MILLI, Cell, ClusterQueue, Quota
from batuta.quota.asks import Ask
from batuta.quota.claim import PodSet, Way
from batuta.quota.own_quota import NOBODY, Filled, Served, fill, serve_own
from batuta.quota.tree import Tree
from tests.support.quotas import CELL, FLAVOR, GPU, gpus, quota_of

CPUS = Cell(FLAVOR, "cpu")


class Line:
    """A line of queue `a`; each row asks for so many GPUs, and so many CPUs if that is more than none."""

    def __init__(self, nominal: int, *sizes: int, cpus: Sequence[int] = (), cohort: str = "") -> None:
        self.tree = Tree(_quota(nominal, cohort))
        self.queue = self.tree.queues["a"]
        known: dict[tuple[int, int], Ask] = {}
        pairs = list(zip(sizes, cpus or [0] * len(sizes), strict=True))
        self.asks = {row: known.setdefault(pair, self._ask(*pair)) for row, pair in enumerate(pairs)}

    def _ask(self, size: int, cpus: int) -> Ask:
        usage = {self.tree.number(CELL): size * MILLI}
        flavors: tuple[tuple[str, str], ...] = ((GPU, FLAVOR),)
        way = Way(GPU, FLAVOR, self.tree.number(CELL), size * MILLI)
        if cpus:
            usage[self.tree.number(CPUS)] = cpus * MILLI
            flavors += (("cpu", FLAVOR),)
        pods = (PodSet(((GPU, size * MILLI),)),)
        return Ask(pods, {FLAVOR: frozenset({0})}, True, flavors, usage, way=None if cpus else way)

    def serve(
        self,
        priorities: Sequence[int] = (),
        without: frozenset[int] = frozenset(),
        stops: Callable[[int], bool] = lambda row: False,
        least: int | None = None,
        filled: Filled = NOBODY,
    ) -> Served:
        own = priorities or [0] * len(self.asks)
        return serve_own(self.queue, list(self.asks), self.asks, own, without, stops, least, filled)

    def used(self) -> int:
        return self.queue.usage.get(self.tree.number(CELL), 0) // MILLI


def _quota(nominal: int, cohort: str) -> Quota:
    others = [ClusterQueue("b", cohort, gpus(8))] if cohort else []
    return quota_of(ClusterQueue("a", cohort, gpus(nominal)), *others)


def test_given_room_for_all_everybody_is_served_and_booked() -> None:
    line = Line(8, 2, 3, 3)
    assert line.serve() == Served([0, 1, 2], [])
    assert line.used() == 8


def test_whoever_does_not_fit_lets_smaller_ones_pass() -> None:
    line = Line(8, 4, 6, 3)
    assert line.serve() == Served([0, 2], [1])
    assert line.used() == 7


def test_whoever_stops_the_line_lets_nobody_pass() -> None:
    assert Line(8, 4, 6, 3, 1).serve(stops=lambda row: row == 1) == Served([0], [1, 2, 3])


def test_those_who_are_less_important_do_not_pass() -> None:
    assert Line(8, 4, 6, 3, 1).serve(priorities=[2, 1, 1, 0]) == Served([0, 2], [1, 3])


def test_given_somebody_more_important_before_them_nobody_is_served() -> None:
    line = Line(8, 4, 4)
    assert line.serve(least=1) == Served([], [0, 1])
    assert line.used() == 0


def test_those_for_whom_there_is_no_place_are_left_and_hold_nobody_up() -> None:
    assert Line(8, 4, 4, 4).serve(without=frozenset({0})) == Served([1, 2], [0])


def test_nothing_is_borrowed_here() -> None:
    line = Line(2, 2, 1, cohort="team")
    assert line.serve() == Served([0], [1])


def test_what_others_have_borrowed_is_not_there_to_be_given() -> None:
    line = Line(4, 2, 1, cohort="team")
    line.tree.queues["b"].add({line.tree.number(CELL): 11 * MILLI})
    assert line.serve() == Served([1], [0])


@pytest.mark.parametrize("cpus", [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_a_line_that_asks_for_several_things_is_served_alike(cpus: tuple[int, ...]) -> None:
    """There is no quota for CPUs, so those who want some are left, wherever they stand."""
    served = Line(8, 2, 3, 3, cpus=cpus).serve()
    assert served.left == [row for row, own in enumerate(cpus) if own]
    assert served.rows == [row for row, own in enumerate(cpus) if not own]


@pytest.mark.parametrize(
    ("sizes", "cpus", "filled"),
    [
        ((2, 3, 3, 1), (), Filled(3, 0, 8 * MILLI)),
        ((2, 7, 1), (), Filled(1, 0, 2 * MILLI)),
        ((9, 1), (), Filled(0, 0, 0)),
        ((2, 2, 2), (0, 1, 0), Filled(1, 0, 2 * MILLI)),
        ((2, 2), (1, 0), Filled(0, -1, 0)),
    ],
)
def test_lines_are_filled_from_the_first_on_up_to_one_that_does_not_fit_or_asks_for_something_else(
    sizes: tuple[int, ...], cpus: tuple[int, ...], filled: Filled
) -> None:
    """Two queues at once, one of them just like the other."""
    line, other = Line(8, *sizes, cpus=cpus), Line(8, *sizes, cpus=cpus)
    ways = [(-1, 0) if ask.way is None else (ask.way.cell, ask.way.amount) for ask in line.asks.values()]
    cells, amounts = np.array(ways).T
    rows = list(line.asks)
    assert fill([line.queue, other.queue], [rows, rows], cells, amounts) == [filled, filled]


def test_those_who_were_filled_in_are_served_unless_others_have_borrowed_what_they_would_take() -> None:
    filled = Filled(2, 0, 3 * MILLI)
    assert Line(4, 2, 1, 2, cohort="team").serve(filled=filled) == Served([0, 1], [2])
    line = Line(4, 2, 1, 2, cohort="team")
    line.tree.queues["b"].add({line.tree.number(CELL): 10 * MILLI})
    assert line.serve(filled=filled) == Served([0], [1, 2])


def test_nobody_waits_so_nothing_is_served() -> None:
    assert Line(8).serve() == Served([], [])
