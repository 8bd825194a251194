"""Looking ahead from Worlds that can be worked out by hand."""

import math
from dataclasses import replace

import pytest

from batuta.backends.sim.forecast import sampling
from batuta.backends.sim.forecast.forecast import (
    Forecast,
    ForecastInput,
    ProfileSource,
    projections_of,
    summarise,
)
from batuta.backends.sim.forecast.queries import ALONE, EtaQuery, WhatIfQuery
from batuta.backends.sim.forecast.sampling import (
    FEWEST_RUNS,
    MOST_RUNS,
    Sampler,
    draw_arrivals,
    plan_effort,
    quantile,
    recent_arrivals,
)
from batuta.bootstrap.forecast_process import book_of
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import NO_RESTART_S, DesiredState, JobState
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.core.trial import TrialPlan
from batuta.core.world import World
from batuta.engine.profile import profile_for
from batuta.prediction.duration import Quantiles
from tests.support.sims import exact_estimates
from tests.support.worlds import at, carry_out, make_job, make_nodes, make_world


def looked(world: World, policy: str = "fifo", draws: Sampler | None = None, **more: object) -> Forecast:
    """A look ahead that believes the World to the second."""
    known = exact_estimates(world)
    inputs = ForecastInput(world, world.now_s, known, draws or Sampler(1), **more)  # type: ignore[arg-type]
    return summarise(inputs, projections_of(inputs, ProfileSource(lambda: profile_for(policy))))


def finishes(told: Forecast) -> dict[str, float]:
    return {one.job: one.finish_p50_s for one in told.jobs}


def test_a_running_job_ends_when_its_work_is_done_and_the_next_one_follows() -> None:
    jobs = [make_job("a", 4, work_s=400.0), make_job("b", 4, work_s=800.0, restart_s=20.0)]
    told = looked(make_world(make_nodes(4), {"a": "n0:0123"}, jobs))
    assert finishes(told) == {"a": 100.0, "b": 100.0 + 20.0 + 200.0}
    following = told.of("b")
    assert following is not None
    assert following.start_p50_s == 100.0


def test_a_start_that_is_under_way_takes_the_rest_of_its_time() -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4, work_s=400.0, restart_s=30.0)])
    carry_out(world, [Start("a", at("n0:0123"), Reason.ADMITTED)], 0.0)
    apply(world, ev.TimePassed(10.0))
    assert finishes(looked(world)) == {"a": 130.0}


def test_a_job_that_cannot_be_restarted_still_starts_once() -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4, work_s=400.0, restart_s=NO_RESTART_S)])
    assert finishes(looked(world)) == {"a": 100.0}


def test_a_job_that_backs_off_is_started_when_that_is_over() -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4, work_s=400.0, restart_s=0.0)])
    apply(world, ev.JobInterrupted(5.0, "a", not_before_s=60.0))
    assert finishes(looked(world)) == {"a": 160.0}


def test_a_job_that_is_tried_out_is_queued_when_its_budget_is_over_at_the_latest() -> None:
    tried = make_job("a", 4, work_s=400.0, restart_s=0.0, trial=TrialPlan((4,), 60.0, 60.0))
    asked = replace(tried, id="b", trial=TrialPlan((4,), 70.0, 60.0, only=True))
    world = make_world(make_nodes(4), jobs=[tried, asked])
    assert finishes(looked(world)) == {"a": 160.0, "b": 70.0}


@pytest.mark.parametrize(
    ("wish", "why"),
    [(DesiredState.PARK, "parked"), (DesiredState.RUN, "never, as things are")],
    ids=["parked", "too-large"],
)
def test_who_never_ends_is_told_why(wish: DesiredState, why: str) -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4 if wish is DesiredState.PARK else 8)])
    apply(world, ev.JobWished(0.0, "a", wish))
    (one,) = looked(world).jobs
    assert (one.finish_p50_s, one.why) == (math.inf, why)


def test_one_run_has_the_spread_of_each_jobs_own_length() -> None:
    jobs = [make_job("a", 4, work_s=400.0, restart_s=0.0), make_job("b", 8)]
    world = make_world(make_nodes(4), {"a": "n0:0123"}, jobs)
    known = {"a": Quantiles.around(400.0, 0.5), "b": Quantiles.around(400.0, 0.5)}
    inputs = ForecastInput(world, world.now_s, known, Sampler(1))
    a, b = summarise(inputs, projections_of(inputs, ProfileSource(lambda: profile_for("fifo")))).jobs
    assert a.finish_p50_s == pytest.approx(100.0)
    assert a.finish_p90_s == pytest.approx(known["a"].p90_s / 4)
    assert (b.finish_p50_s, b.finish_p90_s) == (math.inf, math.inf)


def test_a_job_that_is_being_stopped_gives_its_gpus_at_once() -> None:
    jobs = [make_job("a", 4, work_s=1e5), make_job("b", 4, work_s=400.0, restart_s=0.0)]
    world = make_world(make_nodes(4), {"a": "n0:0123"}, jobs)
    apply(world, ev.JobWished(0.0, "a", DesiredState.CANCEL))
    assert finishes(looked(world))["b"] == 100.0


def test_a_lost_node_stays_lost() -> None:
    jobs = [make_job("a", 4, work_s=400.0, restart_s=0.0), make_job("b", 4, work_s=400.0, restart_s=0.0)]
    world = make_world(make_nodes(4, 4), jobs=jobs, lost=["n1"])
    told = finishes(looked(world))
    assert told["b"] == told["a"] + 100.0


def test_a_draw_takes_every_part_of_a_distribution_once() -> None:
    believed = Quantiles.around(1000.0, 0.5)
    drawn = Sampler(20, seed=3).left_s({"a": believed})["a"]
    assert sorted(drawn) == [believed.at((k + 0.5) / 20) for k in range(20)]
    assert quantile(drawn, 0.5) == pytest.approx(1000.0, rel=0.02)
    assert quantile(drawn, 0.9) == pytest.approx(believed.p90_s, rel=0.05)


def test_luck_is_the_jobs_own() -> None:
    """Who else is there makes no difference to it."""
    believed = Quantiles.around(1000.0, 0.5)
    alone = Sampler(8).left_s({"a": believed})["a"]
    beside = Sampler(8).left_s({"b": believed, "a": believed})["a"]
    assert alone.tolist() == beside.tolist()


@pytest.mark.parametrize(("values", "share", "found"), [([1.0, 3.0], 0.5, 2.0), ([2.0], 0.9, 2.0)])
def test_quantiles_lie_between_values(values: list[float], share: float, found: float) -> None:
    assert quantile(values, share) == found


def test_a_quantile_among_infinities_is_one() -> None:
    assert quantile([1.0, math.inf, math.inf], 0.9) == math.inf
    assert quantile([1.0, 1.0, math.inf], 0.5) == 1.0


def test_more_jobs_are_looked_at_less_closely_and_never_not_at_all() -> None:
    world = make_world(make_nodes(4), jobs=[make_job(f"j{k}") for k in range(20)])
    few, some, many = (plan_effort(world, count) for count in (20, 1_000, 100_000))
    assert (few.runs, few.precision, few.horizon_s) == (MOST_RUNS, 0.0, math.inf)
    assert FEWEST_RUNS <= some.runs < MOST_RUNS
    assert 0 < some.precision <= many.precision
    assert many.runs == 1
    assert many.horizon_s < math.inf


def test_arrivals_are_like_those_that_came_lately() -> None:
    world = make_world(make_nodes(4))
    for k in range(6):
        apply(world, ev.JobSubmitted(600.0 * k, make_job(f"j{k}", 1 + k % 2, submit_s=600.0 * k)))
    apply(world, ev.JobEnded(3000.0, "j0", JobState.SUCCEEDED))
    apply(world, ev.TimePassed(3600.0))
    recent = recent_arrivals(world, 3600.0)
    assert recent is not None
    assert recent.per_s == pytest.approx(6 / 3600)
    coming = draw_arrivals(recent, Sampler(4), 0, 3600.0, 36_000.0)
    assert 30 < len(coming) < 90
    assert {sim.job.size for sim in coming} == {1, 2}
    assert all(3600.0 < sim.job.submit_s < 39_600.0 for sim in coming)
    assert coming != draw_arrivals(recent, Sampler(4), 1, 3600.0, 36_000.0)


def test_too_few_arrivals_say_nothing() -> None:
    assert recent_arrivals(make_world(make_nodes(4), jobs=[make_job("a")]), 100.0) is None


def test_jobs_that_were_submitted_together_are_one_arrival() -> None:
    world = make_world(make_nodes(4), jobs=[make_job(f"j{k}", submit_s=0.1 * k) for k in range(50)])
    assert recent_arrivals(world, 60.0) is None
    for k in range(1, 5):
        for twin in "ab":
            job = make_job(f"{twin}{k}", 2, submit_s=1000.0 * k)
            apply(world, ev.JobSubmitted(job.submit_s, job))
    recent = recent_arrivals(world, 5000.0)
    assert recent is not None
    assert sorted(map(len, recent.groups)) == [2, 2, 2, 2, 50]
    assert recent.per_s == pytest.approx(5 / 5000)
    assert recent.jobs_per_s == pytest.approx(58 / 5000)


def test_a_burst_of_a_minute_is_not_taken_for_a_stream() -> None:
    world = make_world(make_nodes(4), jobs=[make_job(f"j{k}", submit_s=15.0 * k) for k in range(4)])
    assert recent_arrivals(world, 60.0) is None
    assert recent_arrivals(world, 3599.0) is None
    recent = recent_arrivals(world, 3600.0)
    assert recent is not None
    assert recent.per_s * 3600 == pytest.approx(4)


def test_an_answer_says_what_it_assumes() -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4, work_s=400.0)])
    told = EtaQuery(0.0, "fifo").answer(world, book_of)
    assert ALONE in told.notes
    for k in range(4):
        apply(world, ev.JobSubmitted(1000.0 * k, make_job(f"j{k}", submit_s=1000.0 * k, work_s=60.0)))
    told = EtaQuery(4000.0, "fifo").answer(world, book_of)
    assert any("keep coming" in note for note in told.notes)
    told = EtaQuery(4000.0, "fifo", expects_arrivals=False).answer(world, book_of)
    assert ALONE in told.notes


def test_a_comparison_that_runs_out_of_time_looks_as_far_in_both_cases_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampling, "MAX_CPU_S", 0.4)
    jobs = [make_job(f"j{k}", 1, work_s=100.0 + k) for k in range(800)]
    world = make_world(make_nodes(1), jobs=jobs)
    told = WhatIfQuery(0.0, "fifo", budget_s=0.1).answer(world, book_of)
    assert "h ahead: what comes later has no answer" in told.notes[-1]
    # Nothing was changed; with all of the time for the first, the second would have ended no job.
    assert told.before.makespan_s > 0
    assert told.after.makespan_s > told.before.makespan_s / 10
