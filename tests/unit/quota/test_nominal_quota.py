"""A line is served from what its own queue has, as far as that goes."""

from collections.abc import Callable, Sequence

import pytest

from batuta.core.quota import MILLI, ClusterQueue, FlavorResource, Quota
from batuta.quota.nominal_quota import serve_own
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import FlavorChoice, PodSet, QuotaRequest
from tests.support.quotas import CELL, FLAVOR, GPU, gpus, quota_of

CPUS = FlavorResource(FLAVOR, "cpu")


class PendingQueue:
    """A line of queue `a`; each row asks for so many GPUs, and so many CPUs if that is more than none."""

    def __init__(self, nominal: int, *sizes: int, cpus: Sequence[int] = (), cohort: str = "") -> None:
        self.tree = QuotaTree(_quota(nominal, cohort))
        self.queue = self.tree.queues["a"]
        known: dict[tuple[int, int], QuotaRequest] = {}
        pairs = list(zip(sizes, cpus or [0] * len(sizes), strict=True))
        self.requests = {row: known.setdefault(pair, self._read_requests(*pair)) for row, pair in enumerate(pairs)}

    def _read_requests(self, size: int, cpus: int) -> QuotaRequest:
        usage = {self.tree.number(CELL): size * MILLI}
        flavors: tuple[tuple[str, str], ...] = ((GPU, FLAVOR),)
        flavor_choice = FlavorChoice(GPU, FLAVOR, self.tree.number(CELL), size * MILLI)
        if cpus:
            usage[self.tree.number(CPUS)] = cpus * MILLI
            flavors += (("cpu", FLAVOR),)
        pods = (PodSet(((GPU, size * MILLI),)),)
        return QuotaRequest(
            pods,
            {FLAVOR: frozenset({0})},
            True,
            flavors,
            usage,
            flavor_choice=None if cpus else flavor_choice,
        )

    def serve(
        self,
        priorities: Sequence[int] = (),
        without: frozenset[int] = frozenset(),
        stops: Callable[[int], bool] = lambda row: False,
        least: int | None = None,
    ) -> tuple[list[int], list[int]]:
        own = priorities or [0] * len(self.requests)
        return serve_own(self.queue, list(self.requests), self.requests, own, without, stops, least)

    def used(self) -> int:
        return self.queue.usage.get(self.tree.number(CELL), 0) // MILLI


def _quota(nominal: int, cohort: str) -> Quota:
    others = [ClusterQueue("b", cohort, gpus(8))] if cohort else []
    return quota_of(ClusterQueue("a", cohort, gpus(nominal)), *others)


def test_given_room_for_all_everybody_is_served_and_booked() -> None:
    pending = PendingQueue(8, 2, 3, 3)
    assert pending.serve() == ([0, 1, 2], [])
    assert pending.used() == 8


def test_whoever_does_not_fit_lets_smaller_ones_pass() -> None:
    pending = PendingQueue(8, 4, 6, 3)
    assert pending.serve() == ([0, 2], [1])
    assert pending.used() == 7


def test_whoever_stops_the_line_lets_nobody_pass() -> None:
    assert PendingQueue(8, 4, 6, 3, 1).serve(stops=lambda row: row == 1) == ([0], [1, 2, 3])


def test_those_who_are_less_important_do_not_pass() -> None:
    assert PendingQueue(8, 4, 6, 3, 1).serve(priorities=[2, 1, 1, 0]) == ([0, 2], [1, 3])


def test_given_somebody_more_important_before_them_nobody_is_served() -> None:
    pending = PendingQueue(8, 4, 4)
    assert pending.serve(least=1) == ([], [0, 1])
    assert pending.used() == 0


def test_those_for_whom_there_is_no_place_are_left_and_hold_nobody_up() -> None:
    assert PendingQueue(8, 4, 4, 4).serve(without=frozenset({0})) == ([1, 2], [0])


def test_nothing_is_borrowed_here() -> None:
    pending = PendingQueue(2, 2, 1, cohort="team")
    assert pending.serve() == ([0], [1])


def test_what_others_have_borrowed_is_not_there_to_be_given() -> None:
    pending = PendingQueue(4, 2, 1, cohort="team")
    pending.tree.queues["b"].add({pending.tree.number(CELL): 11 * MILLI})
    assert pending.serve() == ([1], [0])


@pytest.mark.parametrize("cpus", [(1, 1, 1), (0, 1, 0), (1, 0, 0)])
def test_a_line_that_asks_for_several_things_is_served_alike(cpus: tuple[int, ...]) -> None:
    """There is no quota for CPUs, so those who want some are left, wherever they stand."""
    served = PendingQueue(8, 2, 3, 3, cpus=cpus).serve()
    assert served[1] == [row for row, own in enumerate(cpus) if own]
    assert served[0] == [row for row, own in enumerate(cpus) if not own]


def test_nobody_waits_so_nothing_is_served() -> None:
    assert PendingQueue(8).serve() == ([], [])
