"""What several jobs may have together is divided by the policy, as if it were a small cluster."""

import numpy as np
import pytest

from batuta.core.admission import Admitted, Budget
from batuta.core.budgets import within_budgets
from batuta.core.cluster import Node
from batuta.core.job import Job
from batuta.core.reason import Reason
from batuta.policies.registry import load_policy
from tests.support.worlds import NOW_S, make_job, make_world


def divide(
    *jobs: Job, gpus: int, policy: str = "elastic-fifo", beside: tuple[tuple[list[int], int], ...] = ()
) -> tuple[list[int], dict[int, Reason]]:
    """The caps of jobs with a budget for all of them, and the reasons of those that it limits."""
    world = make_world([Node("n0", 32)], {}, list(jobs))
    rows = np.arange(len(jobs))
    limits = tuple((np.array(each), most) for each, most in beside)
    admitted = Admitted(cap=world.jobs.max.copy(), budgets=(Budget(rows, gpus, limits),))
    found = within_budgets(world, NOW_S, admitted, load_policy(policy))
    assert found.cap is not None
    assert found.budgets == ()
    return found.cap.tolist(), {row: reason for row, (reason, _) in (found.refused or {}).items()}


def elastic(name: str, low: int = 1, high: int = 8, **more: object) -> Job:
    return make_job(name, low, min=low, max=high, **more)


def test_given_room_for_all_nobody_is_limited() -> None:
    assert divide(elastic("a"), elastic("b"), gpus=16) == ([8, 8], {})


def test_given_less_the_policy_divides_it_and_quota_is_the_reason() -> None:
    caps, reasons = divide(elastic("a"), elastic("b"), gpus=10)
    assert sum(caps) == 10
    assert min(caps) >= 1
    assert set(reasons.values()) == {Reason.QUOTA_REACHED}


@pytest.mark.parametrize("policy", ["fifo", "srjf", "tiresias", "elastic-fifo", "ffdl", "afs-l"])
@pytest.mark.parametrize("gpus", [2, 3, 5, 9])
def test_the_budget_is_never_exceeded_and_sizes_are_legal(policy: str, gpus: int) -> None:
    jobs = elastic("a", 2, 6), elastic("b", 1, 8, sizes=(1, 2, 4, 8)), elastic("c", 2, 6, gpus_per_replica=2)
    caps, _ = divide(*jobs, gpus=gpus, policy=policy)
    assert sum(caps) <= gpus
    assert caps[0] in (0, 2, 3, 4, 5, 6)
    assert caps[1] in (0, 1, 2, 4, 8)
    assert caps[2] in (0, 2, 4, 6)


def test_a_rigid_policy_starts_a_job_at_what_its_queue_has() -> None:
    """It asks for four, the queue has two, and two will do."""
    caps, _ = divide(make_job("a", 4, min=2, max=6), gpus=2, policy="tiresias")
    assert caps == [2]


def test_growth_is_taken_back_from_the_last_until_what_is_beside_suffices() -> None:
    """Twelve GPUs are there, but CPUs for eight: two each."""
    caps, reasons = divide(elastic("a", 1, 6), elastic("b", 1, 6), gpus=12, beside=(([2, 2], 16),))
    assert caps == [6, 2]
    assert reasons == {1: Reason.QUOTA_REACHED}


def test_who_takes_nothing_of_what_is_short_keeps_its_size() -> None:
    caps, _ = divide(elastic("a", 1, 6), elastic("b", 1, 6), gpus=12, beside=(([2, 0], 6),))
    assert caps == [3, 6]


def test_nobody_falls_below_its_least_size_for_what_is_beside() -> None:
    caps, _ = divide(elastic("a", 2, 6), elastic("b", 2, 6), gpus=12, beside=(([1, 1], 1),))
    assert caps == [2, 2]


def test_what_limited_a_size_before_is_not_why_the_policy_gives_nothing() -> None:
    world = make_world([Node("n0", 32)], {}, [make_job("a", 4), make_job("b", 4, min=2, max=4)])
    admitted = Admitted(
        cap=world.jobs.max.copy(),
        refused={1: (Reason.RESIZE_BACKOFF, (("wait_s", 5.0),))},
        budgets=(Budget(np.arange(2), 6),),
    )
    found = within_budgets(world, NOW_S, admitted, load_policy("tiresias"))
    assert found.cap is not None
    assert found.cap.tolist() == [4, 0]
    assert found.refused == {}


@pytest.mark.parametrize("policy", ["fifo", "srjf", "tiresias", "elastic-fifo", "elastic-srjf", "afs-l"])
def test_several_budgets_at_once_are_divided_as_each_alone(policy: str) -> None:
    jobs = [elastic(f"j{k}", 1 + k % 3, 2 + 2 * (k % 4), work_s=100.0 * (9 - k)) for k in range(9)]
    world = make_world([Node("n0", 64)], {}, jobs)
    cap = world.jobs.max.copy()
    cap[4] = 0
    budgets = (
        Budget(np.array([0, 3, 6]), 7),
        Budget(np.array([1, 4, 7]), 5),
        Budget(np.array([2, 5, 8]), 40),
    )
    together = within_budgets(world, NOW_S, Admitted(cap=cap, budgets=budgets), load_policy(policy))
    assert together.cap is not None
    refused: dict[int, object] = {}
    for budget in budgets:
        alone = within_budgets(world, NOW_S, Admitted(cap=cap, budgets=(budget,)), load_policy(policy))
        assert alone.cap is not None
        assert together.cap[budget.rows].tolist() == alone.cap[budget.rows].tolist()
        refused |= alone.refused or {}
    assert together.refused == refused
    assert together.cap[[2, 5, 8]].tolist() == cap[[2, 5, 8]].tolist(), "there is room for all of them"
    assert together.cap[4] == 0
