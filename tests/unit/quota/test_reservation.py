"""What is left of a queue's quota is kept for the first who has waited long."""

import math
from collections.abc import Sequence

from batuta.core.quota import MILLI, ClusterQueue
from batuta.quota.claim import Claim, PodSet
from batuta.quota.ledger import Ledger
from batuta.quota.refusal import Why
from batuta.quota.reservation import Keeper, Release
from batuta.quota.tree import Node
from tests.support.quotas import CELL, GPU, gpus, quota_of


class Kept:
    """Queues `a` and `b` of one cohort with eight GPUs each; jobs run that end at these times."""

    def __init__(self, *running: tuple[str, int, float], ends_s: dict[str, float] | None = None) -> None:
        quota = quota_of(ClusterQueue("a", "team", gpus(8)), ClusterQueue("b", "team", gpus(8)))
        self.ledger = Ledger(quota)
        self.cell = self.ledger.tree.number(CELL)
        self.ends_s = ends_s or {}
        self.releases = sorted(
            (Release(end_s, self.queue(name), {self.cell: size * MILLI}) for name, size, end_s in running),
            key=lambda one: one.ends_s,
        )
        for one in self.releases:
            one.queue.add(one.usage)
        self.keeper = Keeper(self.ledger, lambda key: self.ends_s.get(str(key), math.inf), self._given_back)

    def _given_back(self, root: Node) -> Sequence[Release]:
        assert root is self.queue("a").root
        return self.releases

    def queue(self, name: str) -> Node:
        return self.ledger.tree.queues[name]

    def keep(self, size: int) -> None:
        self.keeper.keep(self.queue("a"), {self.cell: size * MILLI})

    def kept(self) -> int:
        return self.keeper.kept_in(self.queue("a")).get(self.cell, 0) // MILLI

    def left(self, name: str) -> int:
        return self.queue(name).left(self.cell) // MILLI

    def lets_in(self, name: str, size: int) -> bool:
        pods = (PodSet(((GPU, size * MILLI),)),)
        return self.keeper.lets_in(Claim(name, self.queue("a"), pods, shape=size))


def test_what_is_left_of_its_own_quota_is_kept_and_not_what_others_lend() -> None:
    kept = Kept(("a", 5, 100.0))
    kept.keep(12)
    assert kept.kept() == 3
    assert kept.left("b") == 8


def test_no_more_is_kept_than_is_needed() -> None:
    kept = Kept(("a", 2, 100.0))
    kept.keep(4)
    assert kept.kept() == 4


def test_given_a_queue_that_uses_all_of_its_own_nothing_is_kept() -> None:
    kept = Kept(("a", 8, 100.0))
    kept.keep(4)
    assert kept.kept() == 0
    assert not kept.lets_in("short", 1)


def test_for_one_in_each_queue_at_most() -> None:
    kept = Kept(("a", 4, 100.0))
    kept.keep(2)
    kept.keep(4)
    assert kept.kept() == 2


def test_given_up_it_is_there_for_all() -> None:
    kept = Kept(("a", 4, 100.0))
    kept.keep(4)
    kept.keeper.give_up(kept.queue("a"))
    assert kept.kept() == 0
    assert kept.left("a") == 12


def test_forgotten_it_is_there_for_growth() -> None:
    kept = Kept(("a", 4, 100.0))
    kept.keep(4)
    assert kept.left("b") == 8
    kept.keeper.forget()
    assert kept.left("b") == 12


def test_whoever_has_ended_before_it_is_needed_is_let_in() -> None:
    """Six are needed, two are left to the whole cohort: they fit when the first job ends, at 100."""
    kept = Kept(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"short": 100.0})
    kept.keep(6)
    assert kept.lets_in("short", 2)
    assert kept.queue("a").usage[kept.cell] == (6 + 2 + 2) * MILLI, "what is kept is kept on"


def test_whoever_would_delay_the_first_is_told_so_in_numbers() -> None:
    kept = Kept(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 101.0})
    kept.keep(6)
    assert not kept.lets_in("long", 2)
    refusal = kept.keeper.denied["long"]
    assert (refusal.why, refusal.needs, refusal.left) == (Why.WAITING_FOR_QUOTA, 2 * MILLI, 2 * MILLI)


def test_another_just_like_it_is_told_so_without_a_look() -> None:
    kept = Kept(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 200.0, "longer": 300.0, "short": 50.0})
    kept.keep(6)
    kept.lets_in("long", 2)
    queue = kept.queue("a")
    assert kept.keeper.denies(queue, 2, "longer")
    assert kept.keeper.denied["longer"] is kept.keeper.denied["long"]
    assert not kept.keeper.denies(queue, 2, "short"), "it ends in time"
    assert not kept.keeper.denies(queue, 1, "longer"), "nobody asked for so little"


def test_when_something_is_given_back_all_are_looked_at_again() -> None:
    kept = Kept(("a", 6, 100.0), ("b", 8, 500.0), ends_s={"long": 200.0})
    kept.keep(6)
    kept.lets_in("long", 2)
    kept.keeper.look_again(kept.queue("a").root)
    assert not kept.keeper.denies(kept.queue("a"), 2, "long")


def test_given_that_nobody_knows_when_it_could_start_nobody_is_let_in() -> None:
    kept = Kept(ends_s={"short": 1.0})
    kept.queue("a").add({kept.cell: 6 * MILLI})
    kept.queue("b").add({kept.cell: 8 * MILLI})
    kept.keep(6)
    assert not kept.lets_in("short", 2)
