"""Jobs that report nonsense: rent goes on, others get their turn, and nobody is resized in circles."""

from dataclasses import replace
from itertools import cycle
from random import Random

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.curve import SpeedCurve
from batuta.core.decide import decide
from batuta.core.job import Job, JobState
from batuta.core.plan import Preempt, Resize, Start
from batuta.core.world import World
from batuta.engine.jobs.progress import ReportMeter
from batuta.engine.profile import profile_for
from batuta.prediction import Sample
from tests.support.worlds import make_nodes

LIARS, HONEST, CYCLE_S = 6, 6, 20.0
MOST_AT_FIRST, MOST_PER_HOUR = 12.0, 9.0
"""Changes of a job."""


def wild_curve(random: Random) -> SpeedCurve:
    return SpeedCurve((0.0, *(random.choice((0.0, 0.01, 1.0, 50.0, 1e6)) for _ in range(8))))


class Liars:
    """Jobs of which each event says something else about what is left and how fast they are."""

    def __init__(self, random: Random, jobs: list[Job]) -> None:
        self._random = random

    def began(self, now_s: float, job: str, gpus: int, nodes: int) -> None:
        pass

    def tell(self, now_s: float, job: str) -> ev.JobProgressed | None:
        lie = self._random.choice((0.0, 1e-9, 1e15, float("nan"), float("inf"), 500.0))
        return ev.JobProgressed(now_s, job, lie, wild_curve(self._random))


class WildReporters:
    """Jobs that report nonsense, which is measured and fitted as what anybody says."""

    def __init__(self, random: Random, jobs: list[Job]) -> None:
        self._random = random
        self._meters = {job.id: ReportMeter(job) for job in jobs}

    def began(self, now_s: float, job: str, gpus: int, nodes: int) -> None:
        self._meters[job].began(now_s, gpus, nodes)

    def tell(self, now_s: float, job: str) -> ev.JobProgressed | None:
        draw, meter = self._random.choice, self._meters[job]
        odd = (None, 0.0, -1.0, 1e-9, 64.0, 1e17, float("nan"), float("inf"))
        for k in range(5):
            sample = Sample(
                now_s - CYCLE_S + 4.0 * k + draw((0.0, 0.0, -500.0, 900.0)),
                step=draw((None, 1, int(now_s) + k, int(now_s) * 50, 10**12)),
                total_steps=draw((None, 1, 2000, int(now_s) + 5, 10**15)),
                samples=draw(odd),
                noise_scale=draw(odd),
                rank=draw((0, 0, 1)),
            )
            meter.add([sample])
        return meter.news(now_s)


ONE, TWO = ("T4",), ("T4", "A100")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed", "hours", "types"),
    [
        *((Liars, 0, 4.0, ONE), (Liars, 1, 4.0, ONE), (Liars, 2, 4.0, TWO)),
        *((WildReporters, 0, 1.5, ONE), (WildReporters, 1, 1.5, TWO)),
    ],
)
def test_liars_neither_break_the_scheduler_nor_starve_others_nor_are_restarted_for_ever(
    kind: type[Liars] | type[WildReporters], seed: int, hours: float, types: tuple[str, ...]
) -> None:
    random, world, rules = Random(seed), World(), profile_for("rent")
    for node, gpu_type in zip(make_nodes(4, 4), cycle(types), strict=False):
        apply(world, ev.NodeAdded(0.0, replace(node, gpu_type=gpu_type)))
    for k in range(LIARS + HONEST):
        name = f"liar-{k}" if k < LIARS else f"honest-{k}"
        request = Job(name, 0.0, min=1, max=8, curve=SpeedCurve((0.0, 1.0, 1.8, 2.5, 3.0)), work_s=1200.0)
        apply(world, ev.JobSubmitted(0.0, request))
    liars = kind(random, list(world.jobs.jobs))
    changes: dict[str, int] = {}
    left_s = {job: 1200.0 for job in world.jobs.ids if job.startswith("honest")}
    now_s = 0.0
    while now_s < hours * 3600:
        now_s += CYCLE_S
        for job in list(world.jobs.ids):
            if job in left_s:
                row = world.jobs.row(job)
                gpus = int(world.jobs.held[row])
                left_s[job] -= CYCLE_S * world.jobs.jobs[row].curve.at(gpus)
                if left_s[job] <= 0:
                    apply(world, ev.JobEnded(now_s, job, JobState.SUCCEEDED))
                    continue
                apply(world, ev.JobProgressed(now_s, job, left_s[job]))
            elif (lie := liars.tell(now_s, job)) is not None:
                apply(world, lie)
        plan = decide(world, now_s, rules)
        apply(world, ev.Planned(now_s, plan))
        for command in plan.commands:
            changes[command.job] = changes.get(command.job, 0) + isinstance(command, Preempt | Resize)
            if isinstance(command, Start | Resize):
                apply(world, ev.JobStarted(now_s, command.job))
                placement = world.jobs.placements[world.jobs.row(command.job)]
                assert placement is not None
                liars.began(now_s, command.job, placement.size, len(placement.nodes))
    assert all(left <= 0 for left in left_s.values())
    assert max(changes.values()) <= MOST_AT_FIRST + MOST_PER_HOUR * hours
