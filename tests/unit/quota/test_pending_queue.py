"""A pending queue of jobs: their order, which are inadmissible, and when they are looked at again."""

from batuta.core.quota import MILLI, Strategy
from batuta.quota.nominal_quota import NominalQuotaAdmission, PendingQueue
from batuta.quota.reasons import Refusal, Why
from batuta.quota.workload import Workload
from tests.support.quota_cycle import QuotaCycle, team
from tests.support.quotas import CELL


def pending(given: QuotaCycle) -> PendingQueue:
    """What waits in queue `a`, after nothing was served."""
    return NominalQuotaAdmission(given.snapshot, given.state, given.reservations, given.workloads).pending("a")


def pop(queue: PendingQueue) -> Workload:
    _, _, key = queue.waiting.pop()
    return queue.workload(key)


def why_inadmissible(queue: PendingQueue, workload: Workload) -> Refusal | None:
    return queue.why_inadmissible(workload.priority, workload.key)


def rows(queue: PendingQueue) -> list[int]:
    """The rest of the queue, in its order."""
    return [pop(queue).row for _ in range(len(queue.waiting))]


def refusal(needs: int) -> Refusal:
    return Refusal(Why.WAITING_FOR_QUOTA, "", CELL, needs * MILLI, most=8 * MILLI)


def test_the_highest_priority_comes_first_then_the_oldest() -> None:
    assert rows(pending(QuotaCycle(team(), (1, 0), (1, 2), (1, 1), (1, 2)))) == [1, 3, 2, 0]


def test_a_workload_that_was_put_back_comes_in_its_place() -> None:
    queue = pending(QuotaCycle(team(), (1, 0), (1, 0), (1, 0)))
    pop(queue)
    queue.put(pop(queue))
    assert rows(queue) == [1, 2]


def test_a_workload_that_would_have_to_borrow_what_is_not_there_is_inadmissible_in_its_own_numbers() -> None:
    given = QuotaCycle(team(), (5, 0), (2, 0), (7, 0))
    given.use("b", 5)
    queue = pending(given)
    found = [why_inadmissible(queue, pop(queue)) for _ in range(3)]
    assert [one and one.needs // MILLI for one in found] == [5, None, 7]
    assert {(one.left // MILLI, one.nominal // MILLI, one.more) for one in found if one} == {(4, 4, 0)}


def test_in_a_strict_queue_no_workload_is_prechecked() -> None:
    given = QuotaCycle(team(strategy=Strategy.STRICT_FIFO), (5, 0))
    given.use("b", 5)
    queue = pending(given)
    assert why_inadmissible(queue, pop(queue)) is None


def test_a_workload_that_requests_no_less_than_a_refused_one_is_inadmissible() -> None:
    queue = pending(QuotaCycle(team(), (2, 1), (3, 0), (1, 0), (2, 2)))
    urgent, refused, larger, smaller = (pop(queue) for _ in range(4))
    queue.refuse(refused, refusal(2))
    assert (found := why_inadmissible(queue, larger)) is not None
    assert found.needs == 3 * MILLI
    assert why_inadmissible(queue, smaller) is None
    assert why_inadmissible(queue, urgent) is None, "its priority is higher"


def test_once_quota_is_released_inadmissible_workloads_come_again() -> None:
    given = QuotaCycle(team(), (5, 0), (2, 0))
    given.use("b", 5)
    queue = pending(given)
    first = pop(queue)
    assert why_inadmissible(queue, first) is not None
    queue.set_aside(first)
    given.use("b", -3)
    assert queue.prechecks is not None
    queue.prechecks.reset()
    queue.wake()
    assert why_inadmissible(queue, first) is None
    assert rows(queue) == [0, 1]
