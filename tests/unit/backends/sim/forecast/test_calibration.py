"""Forecasts that are held against what happened, and told otherwise by it."""

import json
import math

import numpy as np
import pytest

from batuta.backends.sim.forecast.calibration import LATES, ForecastCalibrator, ForecastKind, QuantileOffsets
from batuta.backends.sim.forecast.forecast import Forecast, JobForecast
from batuta.backends.sim.forecast.sampling import Effort
from batuta.core.job import JobState
from batuta.core.world import PastJob
from tests.support.worlds import make_job


def forecast(now_s: float, *jobs: str, p50_s: float = 1000.0, p90_s: float = 2000.0) -> Forecast:
    """The same is told of all these jobs, in seconds from now."""
    told = tuple(JobForecast(job, now_s, now_s, now_s + p50_s, now_s + p90_s) for job in jobs)
    return Forecast(now_s, told, 8, Effort())


def over(job: str, end_s: float, state: JobState = JobState.SUCCEEDED) -> dict[str, PastJob]:
    return {job: PastJob(make_job(job), state, 0.0, end_s, 0.0, 0)}


def lived(calibrator: ForecastCalibrator, took_s: float, count: int, first: int = 0) -> None:
    """So many jobs, one after the other, of which the same is told and that all take so long."""
    for number in range(first, first + count):
        at_s, job = 1e5 * number, f"j{number}"
        calibrator.calibrate(forecast(at_s, job))
        calibrator.learn(over(job, at_s + took_s), (), at_s + took_s)


def ahead_s(told: Forecast) -> tuple[float, float]:
    (one,) = told.jobs
    return one.finish_p50_s - told.now_s, one.finish_p90_s - told.now_s


def test_the_first_forecast_is_told_as_it_was_found() -> None:
    assert ahead_s(ForecastCalibrator().calibrate(forecast(0.0, "a"))) == pytest.approx((1000.0, 2000.0))


def test_when_jobs_end_later_than_told_the_next_ones_are_told_later() -> None:
    calibrator = ForecastCalibrator()
    lived(calibrator, took_s=3000.0, count=1000)
    p50_s, p90_s = ahead_s(calibrator.calibrate(forecast(9e9, "next")))
    assert 2500 < p50_s < 3500
    assert p90_s > 2900


def test_when_jobs_end_earlier_than_told_the_next_ones_are_told_earlier() -> None:
    calibrator = ForecastCalibrator()
    lived(calibrator, took_s=500.0, count=600)
    p50_s, p90_s = ahead_s(calibrator.calibrate(forecast(9e9, "next")))
    assert 400 < p50_s < 700
    assert 500 < p90_s < 2000


def test_in_the_long_run_nine_in_ten_are_met_however_wrong_the_model_is() -> None:
    calibrator, chance = ForecastCalibrator(), np.random.default_rng(1)
    met = []
    for number in range(3000):
        at_s, job = 1e6 * number, f"j{number}"
        took_s = 1000.0 * math.exp(float(chance.normal(0.5, 1.2)))  # told is a spread of 0.54, and no shift
        p50_s, p90_s = ahead_s(calibrator.calibrate(forecast(at_s, job)))
        met.append((took_s <= p50_s, took_s <= p90_s))
        calibrator.learn(over(job, at_s + took_s), (), at_s + took_s)
    within = np.mean(met[1000:], axis=0)
    assert within[0] == pytest.approx(0.5, abs=0.05)
    assert within[1] == pytest.approx(0.9, abs=0.03)


def test_a_job_that_is_later_than_told_counts_before_it_is_over() -> None:
    calibrator = ForecastCalibrator()
    calibrator.calibrate(forecast(0.0, "a"))
    calibrator.learn({}, ["a"], 1500.0)
    assert calibrator.count == 0
    calibrator.learn({}, ["a"], 2100.0)
    assert (calibrator.count, calibrator.offsets[ForecastKind.KNOWN].late > 1.0) == (1, True)
    calibrator.learn(over("a", 9000.0), (), 9000.0)
    assert calibrator.count == 1


def test_a_job_that_was_cancelled_says_nothing() -> None:
    calibrator = ForecastCalibrator()
    calibrator.calibrate(forecast(0.0, "a", "b"))
    calibrator.learn(over("a", 10.0, JobState.CANCELLED), (), 20.0)
    assert (calibrator.count, set(calibrator.offsets.values())) == (0, {QuantileOffsets()})


def test_what_comes_of_guesses_changes_no_forecast_that_rests_on_more() -> None:
    calibrator = ForecastCalibrator()
    for number in range(50):
        at_s, job = 1e6 * number, f"j{number}"
        calibrator.calibrate(forecast(at_s, job, p90_s=7000.0))
        calibrator.learn(over(job, at_s + 90_000.0), (), at_s + 90_000.0)
    assert ahead_s(calibrator.calibrate(forecast(9e9, "known"))) == pytest.approx((1000.0, 2000.0))
    assert ahead_s(calibrator.calibrate(forecast(9e9, "guess", p90_s=7000.0)))[1] > 20_000


def test_who_asks_every_second_is_not_heard_every_second() -> None:
    calibrator = ForecastCalibrator()
    for second in range(240):
        calibrator.calibrate(forecast(float(second), "a"))
    calibrator.calibrate(forecast(300.0, "a"))
    calibrator.learn(over("a", 1000.0), (), 1000.0)
    assert calibrator.count == 2


def test_what_is_told_never_runs_away() -> None:
    calibrator = ForecastCalibrator()
    lived(calibrator, took_s=1e7, count=300)
    assert calibrator.offsets[ForecastKind.KNOWN].late == LATES[1]


def test_a_job_without_an_answer_has_none_and_is_not_kept() -> None:
    calibrator = ForecastCalibrator()
    told = calibrator.calibrate(forecast(0.0, "a", p50_s=math.inf, p90_s=math.inf))
    assert ahead_s(told) == (math.inf, math.inf)
    calibrator.learn(over("a", 10.0), (), 10.0)
    assert calibrator.count == 0


def test_it_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    calibrator, twin = ForecastCalibrator(), ForecastCalibrator()
    lived(calibrator, took_s=3000.0, count=5)
    calibrator.calibrate(forecast(6e5, "open"))
    twin.load(json.loads(json.dumps(calibrator.dump())))
    for one in (calibrator, twin):
        one.learn(over("open", 6e5 + 700.0), (), 7e5)
    assert (twin.offsets, twin.count) == (calibrator.offsets, calibrator.count)


MOVES = {"known": [0, 1], "guess": [0, 1]}


@pytest.mark.parametrize(
    "kept",
    [
        *(None, [], {}, {"moves": [0, 1], "count": 1, "open": []}),
        {"moves": MOVES | {"guess": [0]}, "count": 1, "open": []},
        {"moves": MOVES, "count": 0, "open": [["a"]]},
    ],
)
def test_what_was_not_kept_by_it_is_refused(kept: object) -> None:
    with pytest.raises(ValueError, match="not what was kept of forecasts"):
        ForecastCalibrator().load(kept)
