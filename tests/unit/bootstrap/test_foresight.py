"""Looking ahead in a process of its own: the same answers, whatever becomes of the process."""

from collections.abc import Iterator

import pytest

from batuta.backends.sim.forecast.queries import EtaQuery
from batuta.bootstrap.forecast_process import ForecastFailed, ForecastProcess, answer
from batuta.core.world import World
from batuta.spec.problem import InputError
from tests.support.worlds import make_job, make_nodes, make_world

QUESTION = EtaQuery(10.0, "elastic-fifo")


@pytest.fixture(scope="module")
def process() -> Iterator[ForecastProcess]:
    found = ForecastProcess()
    yield found
    found.close()


def small_world() -> World:
    jobs = [make_job(f"j{k}", 2, min=1, max=4, work_s=500.0 + k) for k in range(300)]
    return make_world(make_nodes(4), {"j0": "n0:01"}, jobs)


def test_it_answers_as_if_it_were_here(process: ForecastProcess) -> None:
    world = small_world()
    few = EtaQuery(10.0, "elastic-fifo", budget_s=0.5)
    assert process(world.fork(), few) == answer(world, few)


def test_bad_input_is_told_as_such(process: ForecastProcess) -> None:
    with pytest.raises(InputError, match="nope"):
        process(small_world(), EtaQuery(10.0, "nope"))


def test_another_one_takes_the_place_of_one_that_was_killed(process: ForecastProcess) -> None:
    world = make_world(make_nodes(4), jobs=[make_job("a", 4, work_s=400.0)])
    before = process(world.fork(), QUESTION)
    assert process._process is not None
    process._process.kill()
    process._process.wait()
    assert process(world.fork(), QUESTION) == before


def test_one_that_takes_too_long_is_ended() -> None:
    hurried = ForecastProcess(within_s=0.01)
    with pytest.raises(ForecastFailed, match="too long"):
        hurried(small_world(), QUESTION)
    hurried.close()
