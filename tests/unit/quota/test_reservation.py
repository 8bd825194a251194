"""What is left of a queue's quota is kept for the first who has waited long."""

import math
from collections.abc import Sequence

from batuta.core.quota import MILLI, ClusterQueue
from batuta.quota.reasons import Why
from batuta.quota.reservation import Reservations
from batuta.quota.snapshot import QuotaRelease, QuotaState
from batuta.quota.tree import Node
from batuta.quota.workload import PodSet, Workload
from tests.support.quotas import CELL, GPU, gpus, quota_of


class Reservation:
    """Queues `a` and `b` of one cohort with eight GPUs each; jobs run that end at these times."""

    def __init__(self, *running: tuple[str, int, float], ends_s: dict[str, float] | None = None) -> None:
        quota = quota_of(ClusterQueue("a", "team", gpus(8)), ClusterQueue("b", "team", gpus(8)))
        self.state = QuotaState(quota)
        self.fr = self.state.tree.number(CELL)
        self.ends_s = ends_s or {}
        self.releases = sorted(
            (QuotaRelease(end_s, self.queue(name), {self.fr: size * MILLI}) for name, size, end_s in running),
            key=lambda one: one.ends_s,
        )
        for one in self.releases:
            one.queue.add(one.usage)
        self.reservations = Reservations(self.state, lambda key: self.ends_s.get(str(key), math.inf), self._given_back)

    def _given_back(self, root: Node) -> Sequence[QuotaRelease]:
        assert root is self.queue("a").root
        return self.releases

    def queue(self, name: str) -> Node:
        return self.state.tree.queues[name]

    def reserve(self, size: int) -> None:
        self.reservations.reserve(self.queue("a"), {self.fr: size * MILLI})

    def kept(self) -> int:
        return self.reservations.reserved_in(self.queue("a")).get(self.fr, 0) // MILLI

    def left(self, name: str) -> int:
        return self.queue(name).left(self.fr) // MILLI

    def backfill(self, name: str, size: int) -> bool:
        pods = (PodSet(((GPU, size * MILLI),)),)
        return self.reservations.backfill(Workload(name, self.queue("a"), pods, shape=size))


def test_what_is_left_of_its_own_quota_is_kept_and_not_what_others_lend() -> None:
    kept = Reservation(("a", 5, 100.0))
    kept.reserve(12)
    assert kept.kept() == 3
    assert kept.left("b") == 8


def test_no_more_is_kept_than_is_needed() -> None:
    kept = Reservation(("a", 2, 100.0))
    kept.reserve(4)
    assert kept.kept() == 4


def test_given_a_queue_that_uses_all_of_its_own_nothing_is_kept() -> None:
    kept = Reservation(("a", 8, 100.0))
    kept.reserve(4)
    assert kept.kept() == 0
    assert not kept.backfill("short", 1)


def test_for_one_in_each_queue_at_most() -> None:
    kept = Reservation(("a", 4, 100.0))
    kept.reserve(2)
    kept.reserve(4)
    assert kept.kept() == 2


def test_given_up_it_is_there_for_all() -> None:
    kept = Reservation(("a", 4, 100.0))
    kept.reserve(4)
    kept.reservations.cancel(kept.queue("a"))
    assert kept.kept() == 0
    assert kept.left("a") == 12


def test_forgotten_it_is_there_for_growth() -> None:
    kept = Reservation(("a", 4, 100.0))
    kept.reserve(4)
    assert kept.left("b") == 8
    kept.reservations.forget()
    assert kept.left("b") == 12


def test_whoever_has_ended_before_it_is_needed_is_let_in() -> None:
    """Six are needed, two are left to the whole cohort: they fit when the first job ends, at 100."""
    kept = Reservation(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"short": 100.0})
    kept.reserve(6)
    assert kept.backfill("short", 2)
    assert kept.queue("a").usage[kept.fr] == (6 + 2 + 2) * MILLI, "what is kept is kept on"


def test_whoever_would_delay_the_first_is_told_so_in_numbers() -> None:
    kept = Reservation(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 101.0})
    kept.reserve(6)
    assert not kept.backfill("long", 2)
    refusal = kept.reservations.delaying["long"]
    assert (refusal.why, refusal.needs, refusal.left) == (Why.WAITING_FOR_QUOTA, 2 * MILLI, 2 * MILLI)


def test_another_just_like_it_is_told_so_without_a_look() -> None:
    kept = Reservation(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 200.0, "longer": 300.0, "short": 50.0})
    kept.reserve(6)
    kept.backfill("long", 2)
    queue = kept.queue("a")
    assert kept.reservations.would_delay(queue, 2, "longer")
    assert kept.reservations.delaying["longer"] is kept.reservations.delaying["long"]
    assert not kept.reservations.would_delay(queue, 2, "short"), "it ends in time"
    assert not kept.reservations.would_delay(queue, 1, "longer"), "nobody asked for so little"


def test_when_something_is_given_back_all_are_looked_at_again() -> None:
    kept = Reservation(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 200.0})
    kept.reserve(6)
    kept.backfill("long", 2)
    kept.reservations.forget_delays(kept.queue("a").root)
    assert not kept.reservations.would_delay(kept.queue("a"), 2, "long")


def test_given_that_nobody_knows_when_it_could_start_nobody_is_let_in() -> None:
    kept = Reservation(ends_s={"short": 1.0})
    kept.queue("a").add({kept.fr: 6 * MILLI})
    kept.queue("b").add({kept.fr: 8 * MILLI})
    kept.reserve(6)
    assert not kept.backfill("short", 2)
