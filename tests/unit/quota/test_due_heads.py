"""For those who have waited long quota is kept, in one go where none of them can be served."""

import math

from batuta.core.quota import MILLI, ClusterQueue, Preemption, Within
from batuta.quota.due_heads import DueHeads, DueTree, Head
from batuta.quota.refusal import Refusal
from batuta.quota.reservation import Moment, Release
from tests.support.quota_round import OLD_S, Round, team
from tests.support.quotas import gpus, quota_of


def keep(given: Round) -> tuple[set[str], dict[int, Refusal]]:
    return DueHeads(given.roll, given.ledger, given.keeper, given.claims).keep({"a"})


def in_gpus(refusal: Refusal) -> dict[str, int]:
    return {name: getattr(refusal, name) // MILLI for name in ("needs", "left", "nominal", "more", "most")}


def test_what_is_left_is_kept_for_the_first_and_it_is_told_what_there_was() -> None:
    given = Round(team(), (4, 0), (1, 0), submit_s=OLD_S)
    given.use("a", 2)
    given.use("b", 3)
    done, told = keep(given)
    assert done == {"a"}
    assert {row: in_gpus(one) for row, one in told.items()} == {
        0: {"needs": 4, "left": 2, "nominal": 4, "more": 1, "most": 8}
    }
    assert (given.kept(), given.used("a")) == (2, 4)


def test_nobody_knows_when_it_is_needed_if_nobody_will_give_anything_back() -> None:
    given = Round(team(), (4, 0), submit_s=OLD_S)
    given.use("a", 2)
    given.use("b", 4)
    keep(given)
    [kept] = given.keeper.kept.values()
    assert kept is not None
    assert kept.needed.from_s == -math.inf


def test_it_is_needed_when_enough_will_have_been_given_back() -> None:
    given = Round(team(), (2, 0), (4, 0), submit_s=OLD_S, running={"j0": "n0:01"}, work_s=100.0)
    given.use("b", 4)
    keep(given)
    [kept] = given.keeper.kept.values()
    assert kept is not None
    assert kept.needed.from_s == given.claims.ends_s(0)
    assert kept.needed.number == 0


def test_what_others_give_back_does_not_help_a_queue_that_may_not_borrow_it() -> None:
    queues = ClusterQueue("a", "team", gpus(4, borrowing=0)), ClusterQueue("b", "team", gpus(4))
    given = Round(quota_of(*queues))
    given.use("a", 3)
    given.use("b", 2)
    own, other = given.tree.queues["a"], given.tree.queues["b"]
    head = Head(own, row=0, priority=0, needs=3 * MILLI, spare=0, own=MILLI, borrows=0)
    releases = [Release(5.0, other, {given.cell: 2 * MILLI}), Release(9.0, own, {given.cell: 2 * MILLI})]
    assert DueTree([head], releases).keep()
    assert (head.kept, head.needed) == (MILLI, Moment(9.0, 1))


def test_if_the_first_can_be_served_nothing_is_done_here() -> None:
    given = Round(team(), (6, 0), submit_s=OLD_S)
    given.use("b", 1)
    assert keep(given) == (set(), {})
    assert (given.kept(), given.used("a")) == (None, 0)


def test_if_others_might_give_way_to_the_first_nothing_is_kept_for_it_yet() -> None:
    quota = team(preemption=Preemption(Within.LOWER_PRIORITY))
    given = Round(quota, (4, 0), (4, 1), submit_s=OLD_S, running={"j0": "n0:0123"})
    given.use("b", 4)
    assert keep(given) == ({"a"}, {})
    assert given.kept() is None


def test_those_who_have_not_waited_long_are_left_as_they_are() -> None:
    given = Round(team(), (8, 0))
    given.use("b", 1)
    assert keep(given) == ({"a"}, {})
    assert given.kept() is None


def test_a_tree_whose_queues_do_not_lend_everything_is_left_to_a_closer_look() -> None:
    queues = ClusterQueue("a", "team", gpus(4, lending=1)), ClusterQueue("b", "team", gpus(4))
    given = Round(quota_of(*queues), (4, 0), submit_s=OLD_S)
    given.use("a", 2)
    given.use("b", 4)
    assert keep(given) == (set(), {})
    assert given.kept() is None
