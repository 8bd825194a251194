"""Whoever follows a suggestion sees the job start, whatever the cluster looks like."""

import pytest

from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.plan import Start
from batuta.engine.profile import profile_for
from batuta.engine.suggest import Remedy, suggest
from tests.support.walks import Walk

POLICIES = ("fifo", "elastic-fifo", "tiresias", "elastic-srjf")


@pytest.mark.parametrize("seed", range(24))
def test_a_suggestion_that_is_followed_starts_the_job(seed):
    policy = POLICIES[seed % len(POLICIES)]
    walk = Walk(seed, policy).go(80)
    world = walk.world
    waiting = [job for job, placed in zip(world.jobs.ids, world.jobs.placements, strict=True) if not placed]
    for job in waiting[:6]:
        for found in suggest(world, walk.now_s, job, lambda: profile_for(policy), most_trials=40):
            changed = world.fork()
            for event in found.events:
                apply(changed, event)
            plan = decide(changed, walk.now_s, profile_for(policy))
            (start,) = (one for one in plan.commands if isinstance(one, Start) and one.job == job)
            assert start.placement.size == found.gpus
            assert str(found)


@pytest.mark.slow
def test_the_walks_lead_to_suggestions_of_many_kinds():
    kinds: set[Remedy] = set()
    for seed in range(12):
        walk = Walk(seed, "fifo").go(80)
        for job, placed in zip(walk.world.jobs.ids, walk.world.jobs.placements, strict=True):
            if placed is None and len(kinds) < len(Remedy):
                found = suggest(walk.world, walk.now_s, job, lambda: profile_for("fifo"), most_trials=40)
                kinds |= {one.remedy for one in found}
    assert len(kinds) >= 5, kinds
