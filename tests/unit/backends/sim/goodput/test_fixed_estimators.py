"""What each way of knowing may see of a job, with the toy application: 250 steps of 0.252 s on one GPU."""

import pytest

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.estimators import (
    Estimate,
    Estimator,
    FixedBatchEstimator,
    ObservedJob,
    make_fixed_estimator,
)
from batuta.backends.sim.goodput.job import FixedBatch, GoodputJob
from batuta.backends.sim.goodput.model import FIRST_GUESS_S
from tests.unit.backends.sim.goodput.toy_profiles import step_s, sync_s

PRIOR = (0.0, 1.0, 2**0.7)
ONE_S, TWO_S = step_s(1, 1, 20), step_s(1, 2, 10)
"""Seconds per step of batch 20 on one GPU and on two of one node."""
EVERY_WAY = ("own", "history", "history+totals", "oracle", "optimus")


def seen(toy: Application, job: str = "a", batch: int = 20) -> ObservedJob:
    return ObservedJob(job, GoodputJob(toy, FixedBatch(batch)), batch, max_gpus=2)


def run(job: ObservedJob, gpus: int, seconds: float) -> ObservedJob:
    """Lets a job run for so long after its restart."""
    job.model.set_placement((gpus,), (0,))
    job.model.advance(job.model.restart_s + seconds)
    return job


def known(name: str) -> Estimator:
    found = make_fixed_estimator(name)
    assert found is not None
    return found


def learn(knowledge: Estimator, job: ObservedJob) -> Estimate:
    """What is believed of a job at the end of a round."""
    knowledge.end_round([job])
    return knowledge.estimate(job)


def ask(name: str, job: ObservedJob) -> Estimate:
    return learn(known(name), job)


# --------------------------------------------------------------------------------------------- from the truth


def test_the_oracle_sees_the_true_curve_and_the_true_time_left(toy: Application) -> None:
    job = seen(toy)
    estimate = ask("oracle", job)
    # The curve is planned with: one GPU takes two passes of 10, of which only one synchronises.
    planned_s = 2 * step_s(1, 1, 10) - sync_s(1)
    assert estimate.curve.speeds == pytest.approx((0.0, 1.0, planned_s / TWO_S))
    assert estimate.remaining_s == pytest.approx(250 * ONE_S)
    run(job, gpus=1, seconds=100 * ONE_S + 5)
    assert job.model.epoch == 1
    assert ask("oracle", job).remaining_s == pytest.approx((250 - job.model.progress) * ONE_S)


def test_the_oracle_never_says_that_nothing_is_left(toy: Application) -> None:
    assert ask("oracle", run(seen(toy), gpus=1, seconds=1000)).remaining_s == 1


def test_optimus_counts_the_iterations_after_the_current_epoch(toy: Application) -> None:
    planned_s = 2 * step_s(1, 1, 10) - sync_s(1)
    assert ask("optimus", seen(toy)).remaining_s == pytest.approx((250 - 100) * planned_s)


# ------------------------------------------------------------------------------------------ from measurements


@pytest.mark.parametrize("knowledge", ["own", "history", "history+totals"])
def test_before_anything_ran_there_is_only_the_prior(toy: Application, knowledge: str) -> None:
    assert ask(knowledge, seen(toy)) == Estimate(ask("own", seen(toy)).curve, FIRST_GUESS_S)
    assert ask(knowledge, seen(toy)).curve.speeds == pytest.approx(PRIOR)


@pytest.mark.parametrize("knowledge", ["own", "history", "history+totals"])
def test_a_job_in_its_restart_measures_nothing(toy: Application, knowledge: str) -> None:
    job = seen(toy)
    job.model.set_placement((1,), (0,))
    job.model.advance(10)
    assert ask(knowledge, job).remaining_s == FIRST_GUESS_S


@pytest.mark.parametrize("knowledge", ["own", "history", "history+totals"])
def test_where_it_ran_the_curve_is_measured_and_elsewhere_it_is_the_prior(toy: Application, knowledge: str) -> None:
    way, job = known(knowledge), seen(toy)
    assert learn(way, run(job, gpus=1, seconds=5)).curve.speeds == pytest.approx(PRIOR)
    assert learn(way, run(job, gpus=2, seconds=5)).curve.speeds == pytest.approx((0.0, 1.0, ONE_S / TWO_S))


def test_own_learns_nothing_from_other_jobs(toy: Application) -> None:
    own = known("own")
    for gpus in (1, 2):
        learn(own, run(seen(toy, "other"), gpus, seconds=5))
    own.job_ended(run(seen(toy, "other"), gpus=1, seconds=1000))
    assert learn(own, seen(toy, "mine")) == ask("own", seen(toy, "mine"))


def test_history_learns_from_jobs_of_the_same_application_and_batch_size(toy: Application) -> None:
    history = known("history")
    for gpus in (1, 2):
        learn(history, run(seen(toy, "other"), gpus, seconds=5))
    assert learn(history, seen(toy, "mine")).curve.speeds == pytest.approx((0.0, 1.0, ONE_S / TWO_S))
    assert learn(history, seen(toy, "larger", batch=60)).curve.speeds == pytest.approx(PRIOR)


def test_history_does_not_know_how_long_a_job_is_until_one_has_ended(toy: Application) -> None:
    history = known("history")
    job = run(seen(toy, "first"), gpus=1, seconds=10)
    # The guess is an hour on one GPU in all.
    assert learn(history, job).remaining_s == pytest.approx(FIRST_GUESS_S - 10)
    job.model.advance(1000)
    history.job_ended(job)
    assert learn(history, seen(toy, "second")).remaining_s == pytest.approx(250 * ONE_S)
    half = run(seen(toy, "third"), gpus=1, seconds=25)
    assert learn(history, half).remaining_s == pytest.approx((250 - half.model.progress) * ONE_S)


def test_a_job_that_outlives_the_guess_is_guessed_to_be_at_its_middle(
    toy: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.backends.sim.goodput.model.FIRST_GUESS_S", 10.0)
    job = run(seen(toy), gpus=1, seconds=24)
    assert ask("own", job).remaining_s == pytest.approx(24)


def test_history_with_totals_knows_the_length_from_the_first_measurement_on(toy: Application) -> None:
    job = run(seen(toy), gpus=1, seconds=10)
    assert ask("history+totals", job).remaining_s == pytest.approx(250 * ONE_S - 10)


def test_what_was_measured_later_replaces_what_was_measured_before(toy: Application) -> None:
    """At batch 60 the gain is 2 in the first epoch and 3 in the second: the same GPUs get faster."""
    way, job = FixedBatchEstimator(shared=True, totals=True), run(seen(toy, batch=60), gpus=1, seconds=5)
    first = learn(way, job)
    before = (250 - job.model.progress) / first.remaining_s
    while job.model.epoch == 0:
        job.model.advance(1)
    second = learn(way, job)
    assert (250 - job.model.progress) / second.remaining_s > 1.1 * before


# ------------------------------------------------------------------------------------------------ their names


@pytest.mark.parametrize("knowledge", EVERY_WAY)
def test_every_way_of_knowing_gives_a_curve_for_every_size_and_time_left(toy: Application, knowledge: str) -> None:
    job = seen(toy)
    for gpus in (0, 1, 2):
        estimate = ask(knowledge, run(job, gpus, 5) if gpus else job)
        assert len(estimate.curve.speeds) == 3
        assert estimate.curve.at(1) == 1
        assert estimate.remaining_s >= 1


def test_no_knowledge_is_nothing_and_an_unknown_name_is_refused() -> None:
    assert make_fixed_estimator("none") is None
    with pytest.raises(ValueError, match="'clairvoyant'"):
        make_fixed_estimator("clairvoyant")
