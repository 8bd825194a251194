"""Coarse forecasts of Worlds that can be worked out by hand."""

import math
import time

import pytest

from batuta.backends.sim.forecast.coarse import COARSE, coarse_forecast
from batuta.backends.sim.forecast.forecast import JobForecast
from batuta.backends.sim.forecast.queries import ALONE
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import DesiredState, ExpectedWork, Job, Share
from batuta.core.world import World
from tests.support.worlds import make_job, make_nodes, make_world


def told(world: World) -> dict[str, JobForecast]:
    return {one.job: one for one in coarse_forecast(world, world.now_s).jobs}


def spans(world: World) -> dict[str, tuple[float, float]]:
    return {job: (one.start_p50_s, one.finish_p50_s) for job, one in told(world).items()}


def test_a_waiting_job_starts_when_enough_gpus_are_returned() -> None:
    jobs = [
        make_job("a", 2, work_s=200.0),
        make_job("b", 2, work_s=400.0),
        make_job("c", 4, work_s=400.0, restart_s=5.0),
    ]
    world = make_world(make_nodes(4), {"a": "n0:01", "b": "n0:23"}, jobs)
    assert spans(world) == {"a": (0.0, 100.0), "b": (0.0, 200.0), "c": (200.0, 200.0 + 5.0 + 100.0)}


def test_a_higher_priority_goes_first_and_then_who_came_first() -> None:
    jobs = [
        make_job("a", 4, work_s=400.0, restart_s=0.0),
        make_job("b", 4, work_s=400.0, restart_s=0.0),
        make_job("urgent", 4, work_s=400.0, restart_s=0.0, priority=5),
    ]
    found = spans(make_world(make_nodes(4), jobs=jobs))
    assert [found[job][0] for job in ("urgent", "a", "b")] == [0.0, 100.0, 200.0]


def test_jobs_wait_for_gpus_of_their_type_alone() -> None:
    nodes = [Node("old", 2, "T4"), Node("new", 2, "H100")]
    jobs = [
        make_job("a", 2, work_s=200.0, restart_s=0.0, gpu_types=(("T4", 1.0),)),
        make_job("b", 2, work_s=200.0, restart_s=0.0, gpu_types=(("T4", 1.0),)),
        make_job("c", 2, work_s=200.0, restart_s=0.0, gpu_types=(("H100", 4.0),)),
    ]
    assert spans(make_world(nodes, jobs=jobs)) == {"a": (0.0, 100.0), "b": (100.0, 200.0), "c": (0.0, 25.0)}


def test_jobs_that_share_a_gpu_run_together() -> None:
    half = Share(compute_percent=50)
    jobs = [make_job(name, 1, work_s=100.0, restart_s=0.0, share=half) for name in "abc"]
    assert [one[0] for one in spans(make_world(make_nodes(1), jobs=jobs)).values()] == [0.0, 0.0, 100.0]


def test_a_job_that_is_parked_or_too_large_has_no_finish_and_keeps_nobody_waiting() -> None:
    jobs = [make_job("large", 8), make_job("parked", 4), make_job("next", 4, work_s=400.0, restart_s=0.0)]
    world = make_world(make_nodes(4), jobs=jobs)
    apply(world, ev.JobWished(0.0, "parked", DesiredState.PARK))
    found = told(world)
    assert (found["large"].finish_p50_s, found["large"].why) == (math.inf, "never, as things are")
    assert found["parked"].why == "parked"
    assert (found["next"].start_p50_s, found["next"].finish_p50_s) == (0.0, 100.0)


def test_the_spread_is_that_of_what_is_known_of_the_job() -> None:
    known = ExpectedWork((50.0, 80.0, 100.0, 150.0, 300.0), "the same name", 10)
    world = make_world(make_nodes(1), jobs=[make_job("a", 1, work_s=100.0, restart_s=0.0, expected=known)])
    one = told(world)["a"]
    assert (one.finish_p50_s, one.finish_p90_s, one.coarse) == (100.0, 300.0, True)


def test_it_says_what_it_leaves_out_and_leaves_the_world_as_it_is() -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4)])
    version = world.version
    found = coarse_forecast(world, 50.0)
    assert (found.now_s, found.runs, found.notes) == (50.0, 0, (ALONE, COARSE))
    assert (world.version, world.now_s) == (version, 0.0)


@pytest.mark.parametrize("running", [0, 400])
def test_thousands_of_jobs_take_a_fraction_of_a_second(running: int) -> None:
    jobs = [Job(f"{k:04d}", submit_s=0.0, size=1 + k % 8, max=8, work_s=100.0 + k) for k in range(5_000)]
    held = {f"{k:04d}": f"n{k}:{'01234567'[: 1 + k % 8]}" for k in range(running)}
    world = make_world([Node(f"n{k}", 8) for k in range(500)], held, jobs)
    begun_s = time.process_time()
    found = coarse_forecast(world, 10.0)
    assert time.process_time() - begun_s < 1.0
    assert all(one.finish_p50_s < math.inf for one in found.jobs)
