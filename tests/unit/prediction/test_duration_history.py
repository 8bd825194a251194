"""What jobs of the past tell about their lengths, and whether forecasts kept their word."""

import math

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.curve import power_curve
from batuta.core.job import ExpectedWork, Job, JobState, Progress
from batuta.core.world import PastJob, World
from batuta.prediction.duration import (
    LEVELS,
    CalibrationRecord,
    DurationHistory,
    JobFeatures,
    RunningJobs,
    outcome_of,
    remaining_work,
    spent_s,
)
from tests.support.worlds import make_job, make_nodes, make_world

TOLD = ExpectedWork((10.0, 20.0, 40.0, 80.0, 160.0), "all jobs", 9)


def past(work_s: float = 100.0, *, gpus: int = 1, state: JobState = JobState.SUCCEEDED, **job: object) -> PastJob:
    """A job that ran from second 50 on, with linear speed-up unless it has a curve."""
    own = make_job("j", gpus, **job)
    wall_s = work_s / own.curve.at(gpus)
    return PastJob(own, state, 50.0, 50.0 + wall_s, gpus * wall_s, 0)


def test_names_that_differ_in_numbers_are_one() -> None:
    one, other = (JobFeatures.of(Job("j", 7200.0, name=name)) for name in ("train-17", "train-4"))
    assert one == other
    assert one.hour == 2


@pytest.mark.parametrize("gpus", [1, 4])
def test_the_length_of_a_job_is_its_time_on_one_gpu(gpus: int) -> None:
    found = outcome_of(past(900.0, gpus=gpus, curve=power_curve(8, 0.9)))
    assert found is not None
    assert found.work_s == pytest.approx(900.0)


@pytest.mark.parametrize(
    "silent",
    [
        PastJob(make_job("j"), JobState.CANCELLED, math.nan, 80.0, 0.0, 0),
        PastJob(make_job("j"), JobState.FAILED_SETUP, 50.0, 80.0, 30.0, 0),
        PastJob(make_job("j"), JobState.SUCCEEDED, 50.0, 50.0, 0.0, 0),
    ],
)
def test_a_job_that_never_ran_says_nothing(silent: PastJob) -> None:
    assert outcome_of(silent) is None
    assert not DurationHistory().add(silent)


def test_a_history_keeps_the_newest_jobs_only() -> None:
    history = DurationHistory(most=3)
    for work_s in (1.0, 2.0, 3.0, 4.0, 5.0):
        history.add(past(10 * work_s))
    assert [one.work_s for one in history.ended()] == pytest.approx([30.0, 40.0, 50.0])
    assert history.count == 5


def running_world() -> World:
    """One job runs on two GPUs, another waits."""
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2), make_job("b", 4, expected=TOLD)])
    apply(world, ev.TimePassed(world.now_s + 100.0))
    return world


def test_a_job_that_runs_has_taken_so_long_and_is_not_over() -> None:
    world = running_world()
    (found,) = RunningJobs.of(world).outcomes()
    assert not found.ended
    assert found.work_s == pytest.approx(spent_s(world, "a"))
    assert found.work_s >= 200.0
    assert spent_s(world, "b") == 0.0


def test_before_it_runs_a_job_has_all_of_its_forecast_left() -> None:
    assert remaining_work(running_world(), "b").seconds == TOLD.seconds


def test_a_report_narrows_what_is_left() -> None:
    world = running_world()
    before = remaining_work(world, "a")
    apply(world, ev.JobProgressed(world.now_s, "a", 500.0, progress=Progress(fraction=0.5)))
    half = remaining_work(world, "a")
    apply(world, ev.JobProgressed(world.now_s, "a", 100.0, progress=Progress(fraction=0.9)))
    late = remaining_work(world, "a")
    assert half.p50_s == pytest.approx(500.0, rel=0.3)
    assert late.p50_s == pytest.approx(100.0, rel=0.3)
    assert late.log_sd < half.log_sd < before.log_sd


@pytest.mark.parametrize("lie", [math.nan, math.inf, -5.0, 0.0, 1e300])
def test_a_job_that_lies_about_its_rest_still_has_a_belief(lie: float) -> None:
    world = running_world()
    apply(world, ev.JobProgressed(world.now_s, "a", lie, progress=Progress(fraction=7.0)))
    assert all(0 < seconds < math.inf for seconds in remaining_work(world, "a").seconds)


def test_coverage_is_the_share_of_jobs_within_what_they_were_told() -> None:
    record = CalibrationRecord(last=4)
    assert record.now().coverage == ()
    for work_s in (5.0, 30.0, 30.0, 100.0, 500.0):  # the first is out of the window in the end
        record.add(past(work_s, expected=TOLD))
    record.add(past(70.0))  # nothing was told
    found = record.now()
    assert (found.jobs, found.total) == (4, 5)
    assert dict(found.coverage) == dict(zip(LEVELS, (0.0, 0.0, 0.5, 0.5, 0.75), strict=True))
