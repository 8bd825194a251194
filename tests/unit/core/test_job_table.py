"""The columns of living jobs: dense, in order, and counted as they change."""

from random import Random

import pytest

from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import Job, Share
from batuta.core.job_table import JobTable, Phase
from tests.support.invariants import check_counters, check_table
from tests.support.worlds import make_job


def table_of(*jobs: Job) -> JobTable:
    table = JobTable()
    for job in jobs:
        table.insert(job)
    return table


def test_rows_are_in_order_of_submission_then_sequence_then_id() -> None:
    table = table_of(
        make_job("d", submit_s=5.0),
        make_job("b", submit_s=1.0, sequence=2),
        make_job("c", submit_s=1.0, sequence=1),
        make_job("a", submit_s=1.0, sequence=2),
    )
    assert table.ids == ["c", "a", "b", "d"]
    assert [table.row(job) for job in table.ids] == [0, 1, 2, 3]
    assert table.submit_s.tolist() == [1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize("seed", range(5))
def test_whoever_comes_and_goes_the_others_keep_their_columns(seed: int) -> None:
    """More than a hundred rows at times, so the columns grow, and shrink from both ends."""
    chance, table, there = Random(seed), JobTable(), dict[str, Job]()
    for step in range(800):
        leaves = there and chance.random() < (0.3 if step < 400 else 0.6)
        if leaves:
            name = chance.choice(sorted(there))
            table.remove(name)
            del there[name]
        else:
            job = make_job(f"j{step}", chance.randrange(1, 9), submit_s=float(chance.randrange(50)), priority=step)
            row = table.insert(job)
            table.restarts[row] = step
            table.attained_gpu_s[row] = step
            there[job.id] = job
        if step % 20 == 0:
            check_table(table)
            check_counters(table)
            assert set(table.ids) == set(there)
            assert table.restarts.tolist() == table.priority.tolist()
            assert table.attained_gpu_s.tolist() == table.priority.tolist()


def test_a_new_job_has_done_nothing_yet() -> None:
    table = table_of(make_job("a", 2, submit_s=7.0, work_s=50.0, restart_s=3.0))
    known = {name.removeprefix("f."): float(column[0]) for name, column in table.stored_columns().items()}
    assert (known["submit_s"], known["anchor_s"], known["tier_since_s"]) == (7.0, 7.0, 7.0)
    assert (known["remaining_s"], known["restart_s"], known["rate"]) == (50.0, 3.0, 0.0)
    assert all(known[name] != known[name] for name in ("first_start_s", "last_start_s", "last_stop_s"))
    assert (table.held[0], table.phase[0], table.gpu_type[0]) == (0, Phase.WAITING, -1)


def test_jobs_in_motion_and_broken_ones_are_counted() -> None:
    table = table_of(*(make_job(name) for name in "abcde"))
    assert table.in_motion() is None
    assert table.is_broken() is None
    for row, phase in enumerate(Phase):
        table.set_phase(row, phase)
    moving, broken = table.in_motion(), table.is_broken()
    assert moving is not None
    assert broken is not None
    assert moving.tolist() == [False, True, False, True, False]
    assert broken.tolist() == [False, False, False, False, True]
    table.remove("b")
    table.remove("e")
    check_counters(table)
    assert (table.moving, table.broken) == (1, 0)


@pytest.mark.parametrize(
    ("job", "picky", "irregular"),
    [
        (make_job("a", 2, max=4), 0, 0),
        (make_job("a", share=Share(compute_percent=5)), 1, 0),
        (make_job("a", gpu_types=(("t4", 1.0),)), 1, 0),
        (make_job("a", 2, max=4, sizes=(2, 4)), 0, 1),
        (make_job("a", 2, max=4, gpus_per_replica=2), 0, 1),
    ],
)
def test_jobs_that_need_more_care_are_counted(job: Job, picky: int, irregular: int) -> None:
    table = table_of(make_job("plain"), job)
    assert (table.picky, table.irregular) == (picky, irregular)
    table.remove("a")
    assert (table.picky, table.irregular) == (0, 0)


def test_settling_books_progress_and_service_once() -> None:
    table = table_of(make_job("a", 2, work_s=100.0))
    table.held[0], table.rate[0] = 2, 1.5
    table.settle(0, 10.0)
    table.settle(0, 10.0)
    table.settle(0, 4.0)
    assert table.remaining_s[0] == 85.0
    assert table.attained_gpu_s[0] == table.service_gpu_s[0] == 20.0
    table.settle(0, 1e9)
    assert table.remaining_s[0] == 0.0


def test_curves_that_nobody_has_any_more_are_given_up() -> None:
    """A job reports a new curve again and again; what is kept stays bounded, and right for all."""
    table = table_of(make_job("a", 8), make_job("b", 8), make_job("c", 8))
    for step in range(40_000):
        table.set_curve(1, SpeedCurve((0.0, *(step + n for n in range(1, 9)))))
    assert len(table.curves.places) < 20_000
    check_table(table)
    assert table.speed().row(1, 8)[1] == 40_000.0
    assert table.jobs[0].curve == linear_curve(8)


def test_a_copy_of_the_columns_stays_as_it_is() -> None:
    table = table_of(make_job("a", 2))
    columns = table.copied()
    table.rate[0], table.held[0] = 3.0, 2
    assert (columns.n, columns.rate[0], columns.held[0], columns.size[0]) == (1, 0.0, 0, 2)


def test_a_fork_is_independent() -> None:
    table = table_of(make_job("a"), make_job("b", 2, max=4, sizes=(2, 4)))
    twin = table.fork()
    twin.remove("a")
    twin.set_phase(0, Phase.STARTING)
    twin.insert(make_job("c", queue="other"))
    assert table.ids == ["a", "b"]
    assert table.queues == {("", "default"): 0}
    assert table.phase.tolist() == [0, 0]
    check_counters(table)
    check_counters(twin)
    check_table(twin)
