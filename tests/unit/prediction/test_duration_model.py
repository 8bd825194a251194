"""How long jobs take, learned from those of the past."""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from batuta.prediction.duration import LEVELS, JobFeatures, Outcome
from batuta.prediction.duration_model import (
    KINDS,
    LIMIT,
    DurationModel,
    GroupModel,
    QuantileTracker,
    backtest,
    learn,
    pinball_loss,
)

SPREAD = 0.5


def features(user: str = "ana", name: str = "train", queue: str = "q", gpus: int = 1) -> JobFeatures:
    return JobFeatures(user, name, queue, gpus, 12)


def outcomes(count: int, seed: int, users: int = 4, every_s: float = 3600.0) -> Iterator[Outcome]:
    """Jobs of some users, each with lengths of its own: e⁵ s, e⁶ s, … give or take SPREAD."""
    chance = np.random.default_rng(seed)
    for number in range(count):
        user = int(chance.integers(users))
        work_s = float(np.exp(5 + user + SPREAD * chance.standard_normal()))
        submit_s = number * every_s
        yield Outcome(features(f"u{user}"), submit_s, submit_s + work_s, work_s)


def model_of(known: list[Outcome], **options: object) -> DurationModel:
    model = learn(known, boost=False, **options)  # type: ignore[arg-type]
    assert model is not None
    return model


def coverage(model: DurationModel, held_back: list[Outcome]) -> list[float]:
    """The share of jobs within each quantile."""
    met = [np.array(model.predict(one.features).seconds) >= one.work_s for one in held_back]
    return np.mean(met, axis=0).tolist()


def test_of_too_few_jobs_nothing_is_learned() -> None:
    assert learn(list(outcomes(4, seed=1))) is None


def test_the_most_alike_jobs_speak_and_are_named() -> None:
    known = list(outcomes(400, seed=1))
    told = model_of(known).predict(features("u2"))
    assert told.source == "the same user, name and size"
    assert told.jobs == sum(one.features.user == "u2" for one in known)
    assert told.p50_s == pytest.approx(math.exp(7), rel=0.2)


def test_a_stranger_is_told_what_all_jobs_say() -> None:
    told = model_of(list(outcomes(400, seed=1))).predict(features("new", "other", "elsewhere", 64))
    assert told.source == "all jobs"
    assert math.exp(5) < told.p50_s < math.exp(8)
    assert told.p90_s > math.exp(7.5)


def test_nine_of_ten_jobs_that_were_held_back_stay_within_the_p90() -> None:
    everything = list(outcomes(2500, seed=7))
    met = coverage(model_of(everything[:1500]), everything[1500:])
    assert 0.85 <= met[-1] <= 0.95
    assert met[LEVELS.index(0.5)] == pytest.approx(0.5, abs=0.08)


def test_jobs_that_still_run_do_not_make_forecasts_too_short() -> None:
    everything = list(outcomes(1500, seed=5, users=1, every_s=1.0))
    now_s = everything[-1].submit_s
    # Most of those that came lately still run; those that are over are the short ones.
    known = [one.as_of(now_s) for one in everything]
    assert sum(not one.ended for one in known[-300:]) > 50
    found = GroupModel(known).predict(features("u0"))[LEVELS.index(0.9)]
    assert found == pytest.approx(5 + SPREAD * 1.28, abs=0.15)


def test_a_tracker_brings_a_model_that_is_far_off_back_to_its_word() -> None:
    lived = list(outcomes(3000, seed=2, users=1))
    # What the model says is a tenth of the truth, at every level.
    too_short = np.tile(np.array([2.0, 2.3, 2.7, 3.0, 3.3]), (len(lived), 1))
    tracker = backtest(lived, too_short).tracker
    told = np.exp(too_short[0] + tracker.offsets)
    met = np.mean([[seconds >= one.work_s for seconds in told] for one in lived[1500:]], axis=0)
    assert met[-1] == pytest.approx(0.9, abs=0.05)
    assert met[LEVELS.index(0.5)] == pytest.approx(0.5, abs=0.2)


def test_however_many_jobs_miss_a_forecast_it_moves_within_limits() -> None:
    tracker = QuantileTracker(limit=LIMIT)
    for _ in range(10_000):
        tracker.ended(50.0, np.zeros(len(LEVELS)))
    assert tracker.offsets.tolist() == [LIMIT] * len(LEVELS)


def test_a_tracker_that_is_handed_on_goes_on() -> None:
    known = list(outcomes(50, seed=1))
    previous = model_of(known)
    before = previous.predict(features("u1"))
    for _ in range(20):
        previous.tracker.ended(50.0, np.zeros(len(LEVELS)))
    told = model_of(known, previous=previous).predict(features("u1"))
    assert told.p50_s > 1.2 * before.p50_s
    assert told == previous.predict(features("u1"))


def test_the_same_history_makes_the_same_forecasts_in_any_order_of_asking() -> None:
    known = list(outcomes(300, seed=3))
    asked = [features(f"u{k}", name) for k in range(5) for name in ("train", "other")]
    forwards, backwards = model_of(known), model_of(list(reversed(known)))
    there = [forwards.predict(one) for one in asked]
    back = [backwards.predict(one) for one in reversed(asked)]
    assert there == list(reversed(back))


def test_the_loss_is_least_for_honest_quantiles() -> None:
    logs = np.random.default_rng(1).standard_normal(4000)
    honest = np.tile(np.quantile(logs, LEVELS), (len(logs), 1))
    assert pinball_loss(logs, honest) < pinball_loss(logs, honest + 0.5)
    assert pinball_loss(logs, honest) < pinball_loss(logs, honest * 2)
    assert pinball_loss(np.array([]), np.empty((0, len(LEVELS)))) == 0.0


def test_every_group_is_a_part_of_the_next_wider_one() -> None:
    # Else what a group says would depend on who asks first.
    one, other = features("ana", "a", "q", 1), features("ben", "a", "q", 2)
    assert KINDS[2][1](one) == KINDS[2][1](other)
    assert KINDS[-1][1](one) == KINDS[-1][1](other)


@pytest.mark.slow
def test_boosting_is_used_where_it_is_better_and_keeps_its_word() -> None:
    pytest.importorskip("sklearn")
    chance = np.random.default_rng(1)
    known = []
    for number in range(1000):
        hour, gpus = number % 24, int(2 ** chance.integers(4))
        # The length hangs on the hour, which no group knows of.
        work_s = float(np.exp(5 + hour / 6 + 0.3 * chance.standard_normal()))
        own = JobFeatures("ana", "train", "q", gpus, hour)
        known.append(Outcome(own, number * 3600.0, number * 3600.0 + work_s, work_s))
    model = learn(known[:750])
    assert model is not None
    assert model.boosts
    assert "boosting" in model.predict(known[0].features).source
    assert 0.8 <= coverage(model, known[750:])[-1] <= 0.97
    assert model.predict(known[23].features).p50_s > 5 * model.predict(known[0].features).p50_s
