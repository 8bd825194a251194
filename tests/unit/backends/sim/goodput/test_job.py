"""A job gets GPUs, restarts, makes progress and ends at a second."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.goodput.application import Application, BatchSplit, NotProfiled
from batuta.backends.sim.goodput.job import ChosenBatch, FixedBatch, GoodputJob, TunedBatch
from tests.unit.backends.sim.goodput.toy_profiles import step_s, sync_s


def fixed(toy: Application, batch: int = 20) -> GoodputJob:
    return GoodputJob(toy, FixedBatch(batch))


def test_without_gpus_time_changes_nothing(toy: Application):
    job = fixed(toy)
    assert job.advance(600) is None
    assert (job.progress, job.gpus, job.batch_size, job.split, job.goodput) == (0.0, 0, 0, None, 0.0)


def test_a_start_takes_the_restart_time(toy: Application):
    job = fixed(toy)
    assert job.set_placement((1,), (3,))
    job.advance(30)
    assert job.progress == 0.0
    job.advance(10)
    assert job.progress == pytest.approx(10 / step_s(1, 1, 20))


def test_a_restart_goes_on_in_the_next_round(toy: Application):
    job = fixed(toy)
    job.set_placement((1,), (0,))
    job.advance(20)
    assert job.restart_left_s == 10
    job.advance(20)
    assert job.restart_left_s == 0
    assert job.progress == pytest.approx(10 / step_s(1, 1, 20))


def test_the_same_gpus_again_cost_nothing(toy: Application):
    job = fixed(toy)
    job.set_placement((1, 1), (0, 5))
    job.advance(60)
    assert not job.set_placement((1, 1), (0, 5))
    assert job.restart_left_s == 0


@pytest.mark.parametrize(("placement", "nodes"), [((1, 1), (5, 0)), ((1, 1), (0, 4)), ((1,), (0,)), ((2,), (0,))])
def test_other_nodes_cost_a_restart_but_no_progress(
    toy: Application, placement: tuple[int, ...], nodes: tuple[int, ...]
):
    job = fixed(toy)
    job.set_placement((1, 1), (0, 5))
    job.advance(50)
    before = job.progress
    assert job.set_placement(placement, nodes)
    assert (job.restart_left_s, job.progress) == (30, before)


def test_a_preempted_job_keeps_its_progress_and_restarts_on_the_same_nodes(toy: Application):
    job = fixed(toy)
    job.set_placement((1,), (0,))
    job.advance(50)
    before = job.progress
    assert job.set_placement((), ())
    job.advance(60)
    assert job.progress == before
    assert job.set_placement((1,), (0,))
    assert job.restart_left_s == 30


def test_it_ends_within_a_round_at_a_whole_second(toy: Application):
    job = fixed(toy)
    job.set_placement((1,), (0,))
    per_step = step_s(1, 1, 20)
    expected = 30 + sum(round(steps * per_step) for steps in (100, 100, 50))
    assert job.advance(600) == expected
    assert (job.finished, job.epoch, job.progress) == (True, 3, 250.0)
    assert job.advance(60) is None


@given(st.lists(st.integers(1, 70), min_size=60, max_size=60))
def test_rounds_change_the_end_by_no_more_than_the_rounding(toy_for_all: Application, rounds: list[int]):
    job = fixed(toy_for_all)
    job.set_placement((1,), (0,))
    whole = fixed(toy_for_all)
    whole.set_placement((1,), (0,))
    expected, now = whole.advance(600), 0
    assert expected is not None
    for seconds in [*rounds, 600]:
        ended = job.advance(seconds)
        if ended is not None:
            assert abs(now + ended - expected) <= 2
            return
        now += seconds
    pytest.fail("it never ended")


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=300))
def test_fractions_of_seconds_never_end_a_job_after_the_time_that_passed(toy_for_all: Application, pieces: list[float]):
    job = fixed(toy_for_all)
    job.set_placement((1,), (0,))
    for seconds in pieces:
        ended = job.advance(seconds)
        assert ended is None or 0 <= ended <= seconds
    assert 0 <= job.progress <= 250


@pytest.fixture(scope="module")
def toy_for_all(tmp_path_factory: pytest.TempPathFactory) -> Application:
    from batuta.backends.sim.goodput.application import load_applications
    from tests.unit.backends.sim.goodput.toy_profiles import write_toy

    return load_applications(write_toy(tmp_path_factory.mktemp("toy")))["toy"]


def test_a_fixed_batch_is_split_over_the_gpus(toy: Application):
    job = fixed(toy, 60)
    job.set_placement((2, 2), (0, 1))
    assert job.split == BatchSplit(15, 0)
    assert job.batch_size == 60
    job.advance(31)
    assert job.goodput == pytest.approx(2.0 / step_s(2, 4, 15))


def test_a_tuned_batch_is_the_best_of_each_epoch(toy: Application):
    plan = toy.tuned_plan((2,))
    for epoch in range(3):
        best = max(toy.fixed_plan((2,), batch).goodputs[epoch] for batch in range(20, 61, 2))
        assert plan.goodputs[epoch] >= 0.999 * best
    # Only noise in the second epoch: the largest batch. Little in the third: a small one.
    assert plan.splits[1].total(2) == 60
    assert plan.splits[2].total(2) < 30


def test_the_batch_is_tuned_again_when_an_epoch_begins(toy: Application):
    job = GoodputJob(toy, TunedBatch())
    job.set_placement((2,), (0,))
    seen = {}
    while not job.finished:
        seen[job.epoch] = job.batch_size
        job.advance(1)
    assert seen[1] == 60
    assert seen[2] < 30


def test_a_chosen_batch_is_asked_for_in_each_epoch_and_round(toy: Application):
    asked = []

    def choose(placement: tuple[int, ...], epoch: int) -> BatchSplit:
        asked.append((placement, epoch))
        return BatchSplit(10, 0)

    job = GoodputJob(toy, ChosenBatch(choose))
    job.set_placement((2,), (0,))
    job.advance(31)
    job.advance(1)
    assert asked == [((2,), 0)] * 2
    job.advance(60)
    assert asked[-1] == ((2,), 2)


def test_packed_times_are_known_for_every_size(toy: Application):
    times = toy.packed_iteration_s(60, 7)
    assert times[0] == math.inf
    assert times[2] == pytest.approx(step_s(1, 2, 30))
    assert times[1] == pytest.approx(step_s(1, 1, 30) + step_s(1, 1, 30) - sync_s(1))
    assert times[5] == pytest.approx(step_s(2, 5, 12))
    assert times[7] == math.inf  # 8 samples for each GPU: fewer than were ever measured


def test_gpus_that_were_never_measured_are_refused(toy: Application):
    job = fixed(toy, 60)
    with pytest.raises(NotProfiled, match=r"toy: no step time for placement \(4, 3\), local batch 8"):
        job.set_placement((4, 3), (0, 1))
    assert job.gpus == 0


@pytest.mark.parametrize(("placement", "nodes"), [((1, 1), (0,)), ((0, 1), (0, 1))])
def test_a_placement_names_a_node_for_each_count(toy: Application, placement: tuple[int, ...], nodes: tuple[int, ...]):
    with pytest.raises(ValueError, match="does not fit"):
        fixed(toy).set_placement(placement, nodes)
