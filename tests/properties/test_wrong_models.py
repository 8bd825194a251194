"""Jobs that report nonsense: rent goes on, others get their turn, and nobody is resized in circles."""

from random import Random

import pytest

from batuta.bootstrap import rules_for
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.command import Preempt, Resize, Start
from batuta.core.curve import SpeedCurve
from batuta.core.decide import decide
from batuta.core.job import Job, JobState
from batuta.core.world import World
from tests.support.worlds import make_nodes

LIARS, HONEST, CYCLE_S, HOURS = 6, 6, 20.0, 4.0
MOST_PER_HOUR = 12.0
"""Changes of a job in an hour, a few in its first one included."""


def wild_curve(random: Random) -> SpeedCurve:
    return SpeedCurve((0.0, *(random.choice((0.0, 0.01, 1.0, 50.0, 1e6)) for _ in range(8))))


@pytest.mark.parametrize("seed", range(3))
def test_liars_neither_break_the_scheduler_nor_starve_others_nor_are_restarted_for_ever(seed: int) -> None:
    random, world, rules = Random(seed), World(), rules_for("rent")
    for node in make_nodes(4, 4):
        apply(world, ev.NodeAdded(0.0, node))
    for k in range(LIARS + HONEST):
        name = f"liar-{k}" if k < LIARS else f"honest-{k}"
        request = Job(name, 0.0, min=1, max=8, curve=SpeedCurve((0.0, 1.0, 1.8, 2.5, 3.0)), work_s=1200.0)
        apply(world, ev.JobSubmitted(0.0, request))
    changes: dict[str, int] = {}
    left_s = {job: 1200.0 for job in world.jobs.ids if job.startswith("honest")}
    now_s = 0.0
    while now_s < HOURS * 3600:
        now_s += CYCLE_S
        for job in list(world.jobs.ids):
            if job in left_s:
                row = world.jobs.row(job)
                gpus = int(world.jobs.i("gpus")[row])
                left_s[job] -= CYCLE_S * world.jobs.jobs[row].curve.at(gpus)
                if left_s[job] <= 0:
                    apply(world, ev.JobEnded(now_s, job, JobState.SUCCEEDED))
                    continue
                apply(world, ev.JobProgressed(now_s, job, left_s[job]))
            else:
                lie = random.choice((0.0, 1e-9, 1e15, float("nan"), float("inf"), 500.0))
                apply(world, ev.JobProgressed(now_s, job, lie, wild_curve(random)))
        plan = decide(world, now_s, rules)
        apply(world, ev.Planned(now_s, plan))
        for command in plan.commands:
            changes[command.job] = changes.get(command.job, 0) + isinstance(command, Preempt | Resize)
            if isinstance(command, Start | Resize):
                apply(world, ev.JobStarted(now_s, command.job))
    assert all(left <= 0 for left in left_s.values())
    assert max(changes.values()) <= MOST_PER_HOUR * HOURS
