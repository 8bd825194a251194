"""A line of rows: who comes to its turn, who is passed over, and who is looked at again."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.quota import MILLI, ClusterQueue
from batuta.quota.claim import Claim
from batuta.quota.glance import Glance
from batuta.quota.ledger import Ledger
from batuta.quota.memory import Memory
from batuta.quota.refusal import Refusal, Why
from batuta.quota.reservation import Keeper
from batuta.quota.roll import Roll
from batuta.quota.row_claims import RowClaims, RowHolders
from batuta.quota.row_line import RowLine
from tests.support.quotas import CELL, gpus, quota_of
from tests.support.worlds import NOW_S, make_job, make_world


class Waiting:
    """Jobs of queue `a`, which has four GPUs and may borrow those of `b`; each is (size, priority)."""

    def __init__(self, *jobs: tuple[int, int], strict: bool = False) -> None:
        quota = quota_of(ClusterQueue("a", "team", gpus(4)), ClusterQueue("b", "team", gpus(4)))
        made = [
            make_job(f"j{row}", size, priority=priority, queue="a", submit_s=float(row))
            for row, (size, priority) in enumerate(jobs)
        ]
        world = make_world([Node("n0", 16)], {}, made)
        apply(world, ev.QuotaSet(NOW_S, quota))
        memory = Memory()
        tree = memory.empty_tree(world.effective_quota)
        roll = Roll(world, NOW_S, tree, memory)
        claims = RowClaims(world, NOW_S, tree, roll, frozenset(), 600.0)
        ledger = Ledger(world.effective_quota, tree, RowHolders(claims))
        self.keeper = Keeper(ledger, claims.ends_s, claims.releases)
        self.queue, self.cell = tree.queues["a"], tree.number(CELL)
        self.line = RowLine(
            strict,
            roll.parts["a"].waiting,
            roll.ask_of,
            roll.priorities,
            claims.waiting,
            Glance("a", roll, ledger, self.keeper, claims),
        )

    def others_use(self, size: int) -> None:
        self.queue.root.children[1].add({self.cell: size * MILLI})

    def others_give_back(self, size: int) -> None:
        self.queue.root.children[1].remove({self.cell: size * MILLI})

    def pop(self) -> Claim:
        claim = self.line.pop()
        assert claim is not None
        return claim

    def rows(self) -> list[int]:
        """The rest of the line, as it comes to its turn."""
        found = []
        while (claim := self.line.pop()) is not None:
            found.append(claim.row)
        return found


def refusal(needs: int) -> Refusal:
    return Refusal(Why.WAITING_FOR_QUOTA, "", CELL, needs * MILLI, most=8 * MILLI)


def test_the_most_important_comes_first_then_the_oldest() -> None:
    assert Waiting((1, 0), (1, 2), (1, 1), (1, 2)).rows() == [1, 3, 2, 0]


def test_whoever_was_put_back_comes_in_its_place() -> None:
    waiting = Waiting((1, 0), (1, 0), (1, 0))
    waiting.pop()
    waiting.line.put(waiting.pop())
    assert waiting.rows() == [1, 2]


def test_those_who_would_have_to_borrow_what_is_not_there_are_passed_over_and_told_why() -> None:
    waiting = Waiting((5, 0), (2, 0), (7, 0))
    waiting.others_use(5)
    assert waiting.rows() == [1]
    told = dict(waiting.line.why_passed())
    assert {row: one.needs // MILLI for row, one in told.items()} == {0: 5, 2: 7}
    assert {(one.left // MILLI, one.nominal // MILLI, one.more) for one in told.values()} == {(4, 4, 0)}


def test_when_something_is_given_back_those_passed_over_are_looked_at_again() -> None:
    waiting = Waiting((5, 0), (2, 0))
    waiting.others_use(5)
    claim = waiting.pop()
    waiting.line.aside[claim.key] = claim
    assert waiting.line.pop() is None
    waiting.others_give_back(3)
    waiting.line.wake()
    assert waiting.rows() == [0, 1]


def test_those_who_ask_for_no_less_than_one_that_was_refused_are_passed_over() -> None:
    waiting = Waiting((2, 1), (3, 0), (1, 0), (2, 2))
    assert waiting.pop().row == 3
    waiting.line.refuse(waiting.pop(), refusal(2))
    assert waiting.rows() == [2]
    assert [(row, one.needs) for row, one in waiting.line.why_passed()] == [(1, 3 * MILLI)]


def test_one_that_is_more_important_than_who_was_refused_is_asked_all_the_same() -> None:
    waiting = Waiting((2, 0), (2, 0))
    low = waiting.pop()
    waiting.line.refuse(low, refusal(2))
    assert waiting.rows() == []
    waiting = Waiting((2, 1), (2, 0))
    waiting.line.refused[waiting.pop().shape] = (0, refusal(2))
    waiting.line.wake()
    assert waiting.rows() == [1]


def test_those_who_are_known_to_delay_another_do_not_come_to_their_turn_until_things_change() -> None:
    """Three of four are left and kept for a larger one; nobody knows when that could start."""
    waiting = Waiting((2, 0), (2, 0), (1, 0))
    waiting.queue.add({waiting.cell: MILLI})
    waiting.others_use(4)
    waiting.keeper.keep(waiting.queue, {waiting.cell: 4 * MILLI})
    first = waiting.pop()
    assert not waiting.keeper.lets_in(first)
    assert waiting.rows() == [2]
    assert set(waiting.keeper.denied) == {0, 1}
    waiting.keeper.look_again(waiting.queue.root)
    waiting.line.wake()
    assert waiting.rows() == [1]


def test_in_a_strict_line_nobody_is_passed_over() -> None:
    waiting = Waiting((5, 0), (2, 0), strict=True)
    waiting.others_use(5)
    assert waiting.rows() == [0, 1]
