"""Trees in which nobody can be served are found at a look, and everybody there is told why."""

from typing import Any

import pytest

from batuta.core.quota import Preemption, Reclaim, Strategy, Within
from batuta.core.reason import Reason
from batuta.quota.standstill import Standstill, Stuck
from tests.support.quota_round import OLD_S, Round, team


def find(given: Round) -> Stuck:
    standstill = Standstill(given.world, given.roll, given.ledger, given.keeper, given.claims)
    return standstill.find(given.memory.number_of)


def told(stuck: Stuck) -> list[tuple[Reason, dict[str, Any]]]:
    return [(reason, dict(numbers)) for reason, numbers in stuck.reasons]


def test_given_less_than_anybody_needs_all_are_told_what_is_left_and_what_is_lent() -> None:
    given = Round(team(), (4, 0), (5, 0), (4, 0))
    given.use("a", 2)
    given.use("b", 3)
    stuck = find(given)
    assert stuck.trees == {0}
    assert (stuck.rows.tolist(), stuck.kept.tolist()) == ([0, 1, 2], [False] * 3)
    numbers = {"quota_left": 2, "quota": 4, "lends": 1, "most": 8}
    expected = [(Reason.QUOTA_EXHAUSTED, {"needs": needs, **numbers}) for needs in (4, 5, 4)]
    assert told(stuck) == expected
    assert stuck.reasons[0] is stuck.reasons[2]


def test_one_that_is_larger_than_all_quota_is_told_so() -> None:
    given = Round(team(), (9, 0))
    [(reason, numbers)] = told(find(given))
    assert (reason, numbers["needs"], numbers["most"]) == (Reason.EXCEEDS_QUOTA, 9, 8)


def test_given_somebody_who_fits_nobody_of_its_tree_is_answered_here() -> None:
    given = Round(team(), (4, 0), (1, 0))
    given.use("a", 2)
    given.use("b", 5)
    assert find(given) == Stuck()


def test_given_somebody_who_could_take_back_what_is_lent_nobody_is_answered_here() -> None:
    taking = Round(team(preemption=Preemption(Within.NEVER, Reclaim.ANY)), (4, 0))
    taking.use("b", 5)
    assert find(taking) == Stuck()
    leaving = Round(team(preemption=Preemption(Within.NEVER, Reclaim.NEVER)), (4, 0))
    leaving.use("b", 5)
    assert find(leaving).trees == {0}


@pytest.mark.parametrize(
    ("rule", "priority", "answered"),
    [
        (Within.LOWER_PRIORITY, 0, True),
        (Within.LOWER_PRIORITY, 1, False),
        (Within.LOWER_OR_NEWER_EQUAL_PRIORITY, 0, False),
        (Within.NEVER, 1, True),
    ],
)
def test_whoever_might_push_others_of_its_queue_aside_is_not_answered_here(
    rule: Within, priority: int, answered: bool
) -> None:
    """One with priority 0 runs in its queue."""
    given = Round(team(preemption=Preemption(rule)), (4, 0), (4, priority), running={"j0": "n0:0123"})
    given.use("b", 4)
    assert bool(find(given).trees) == answered


def test_a_strict_line_is_not_answered_here() -> None:
    given = Round(team(strategy=Strategy.STRICT_FIFO), (9, 0))
    assert find(given) == Stuck()


def test_one_that_has_waited_long_and_for_whom_nothing_is_kept_yet_is_not_answered_here() -> None:
    """Its queue's own quota would do, but others use some of it and need not give it back."""
    given = Round(team(), (4, 0), submit_s=OLD_S)
    given.use("b", 5)
    assert find(given) == Stuck()
    given.keep(4)
    assert find(given).trees == {0}


def test_whoever_would_delay_another_is_told_that_quota_is_kept_for_it() -> None:
    """Two of four are left and kept for one who needs all four; nobody knows when that could start."""
    given = Round(team(), (2, 0), (3, 0))
    given.use("a", 2)
    given.use("b", 4)
    given.keep(4)
    stuck = find(given)
    assert stuck.kept.tolist() == [True, False]
    (kept, numbers), (other, _) = told(stuck)
    assert (kept, other) == (Reason.KEPT_FOR_ANOTHER, Reason.QUOTA_EXHAUSTED)
    assert (numbers["needs"], numbers["quota_left"]) == (2, 2)


def test_given_nobody_who_waits_there_is_nothing_to_say() -> None:
    assert find(Round(team())) == Stuck()
