"""A fork that looks ahead sees what comes, keeps to itself, and sees the same when it looks again."""

from dataclasses import replace

import pytest

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.forecast.forecast import (
    Forecast,
    ForecastInput,
    ProfileSource,
    duration_estimates,
    projections_of,
    summarise,
)
from batuta.backends.sim.forecast.projection import ExternalEvents
from batuta.backends.sim.forecast.queries import Hypothesis, compare
from batuta.backends.sim.forecast.sampling import Effort, Sampler
from batuta.backends.sim.run import RunOptions, simulate
from batuta.backends.sim.workload import SimJob
from batuta.core.plan import Plan
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from tests.support.invariants import fingerprint
from tests.support.sims import NIGHT_NODES, NIGHT_QUOTA, eventful_night, exact_estimates

NIGHTS = [
    *(("fifo", 1), ("elastic-fifo", 2), ("srjf", 1), ("elastic-srjf", 2)),
    *(("elastic-tiresias", 1), ("afs-l", 1), ("afs-l", 2)),
]
TIERED = Cadence(every_s=60)


def quiet_night(seed: int) -> list[SimJob]:
    """Elastic jobs of two queues on machines that do not fail."""
    return list(eventful_night(seed, jobs=24).jobs)


def cadence_of(policy: str) -> Cadence:
    return TIERED if "tiresias" in policy else Cadence()


def lived(
    policy: str, jobs: list[SimJob], at_cycles: set[int], quota: Quota = NIGHT_QUOTA
) -> tuple[dict[str, float], list[World]]:
    """When each job of a simulation ended, and forks of its World after cycles that changed nothing."""
    forks, cycles = list[World](), [0]

    def watch(world: World, plan: Plan) -> None:
        cycles[0] += plan.empty
        if plan.empty and cycles[0] in at_cycles:
            forks.append(world.fork())

    backend = SimBackend(jobs, NIGHT_NODES)
    setting = RunOptions("night", "16 GPUs", quota=quota)
    run = simulate(backend, profile_for(policy), setting, cadence_of(policy), watch=watch, explains=False)
    return {job.id: job.end_s for job in run.jobs}, forks


def looked(world: World, policy: str, jobs: list[SimJob], draws: Sampler, **more: object) -> Forecast:
    """A forecast by somebody who knows all that is still to come, and believes the World to the second."""
    to_come = ExternalEvents([sim for sim in jobs if sim.job.submit_s > world.now_s])
    inputs = ForecastInput(
        world,
        world.now_s,
        exact_estimates(world),
        draws,
        external=lambda run: to_come,
        **more,  # type: ignore[arg-type]
    )
    return summarise(inputs, projections_of(inputs, ProfileSource(lambda: profile_for(policy), cadence_of(policy))))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "seed"), NIGHTS)
def test_a_fork_that_knows_everything_foretells_what_then_happens(policy: str, seed: int) -> None:
    jobs = quiet_night(seed)
    ended, forks = lived(policy, jobs, {5, 15, 25})
    compared = 0
    for world in forks:
        told = looked(world, policy, jobs, Sampler(1), decides_at_once=False)
        for one in told.jobs:
            assert one.finish_p50_s == pytest.approx(ended[one.job], abs=1e-3), one.job
            compared += 1
    assert compared > 10


def test_looking_ahead_changes_nothing() -> None:
    jobs = quiet_night(3)
    _, (world,) = lived("elastic-srjf", jobs, {12})
    before = fingerprint(world)
    looked(world, "elastic-srjf", jobs, Sampler(4))
    known = duration_estimates(world, world.now_s)
    book = ProfileSource(lambda: profile_for("fifo"))
    compare(ForecastInput(world, world.now_s, known, Sampler(2)), Hypothesis(drained=("n0",)), book, book)
    assert fingerprint(world) == before


def test_the_same_seed_has_the_same_answer_and_another_one_has_not() -> None:
    _, (world,) = lived("elastic-fifo", quiet_night(1), {12})
    book, known = ProfileSource(lambda: profile_for("elastic-fifo")), duration_estimates(world, world.now_s)

    def told(seed: int) -> Forecast:
        inputs = ForecastInput(world, world.now_s, known, Sampler(6, seed))
        return summarise(inputs, projections_of(inputs, book))

    assert told(1) == told(1)
    assert told(1) != told(2)


def test_a_what_if_without_a_change_finds_no_difference() -> None:
    _, (world,) = lived("elastic-srjf", quiet_night(2), {12})
    book = ProfileSource(lambda: profile_for("elastic-srjf"))
    inputs = ForecastInput(world, world.now_s, duration_estimates(world, world.now_s), Sampler(4))
    told = compare(inputs, Hypothesis(), book, book)
    assert told.before == told.after
    assert all(job.jct_s[0] == job.jct_s[1] and job.wait_s[0] == job.wait_s[1] for job in told.jobs)


def test_a_coarse_look_is_about_as_good_as_a_close_one() -> None:
    jobs = quiet_night(2)
    _, (world,) = lived("elastic-fifo", jobs, {12})
    close = looked(world, "elastic-fifo", jobs, Sampler(1))
    coarse = looked(world, "elastic-fifo", jobs, Sampler(1), effort=Effort(1, precision=0.02))
    for one, other in zip(close.jobs, coarse.jobs, strict=True):
        ahead_s, other_s = (told.finish_p50_s - world.now_s for told in (one, other))
        assert other_s == pytest.approx(ahead_s, rel=0.25, abs=120.0)


def test_more_gpus_end_jobs_sooner() -> None:
    _, (world,) = lived("elastic-fifo", quiet_night(1), {12}, Quota())
    book = ProfileSource(lambda: profile_for("elastic-fifo"))
    inputs = ForecastInput(world, world.now_s, exact_estimates(world), Sampler(1))
    more = tuple(replace(node, name=f"new-{node.name}") for node in NIGHT_NODES)
    told = compare(inputs, Hypothesis(nodes=more), book, book)
    assert told.after.jct_s < told.before.jct_s
    assert told.after.wait_s <= told.before.wait_s
