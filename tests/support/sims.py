"""Simulated jobs and what happens to them, with numbers that can be checked by hand."""

from collections.abc import Sequence
from random import Random
from typing import Any

from batuta.backends.sim.backend import SimBackend
from batuta.backends.sim.failures import FailureOptions, FailureRecord, draw_failures
from batuta.backends.sim.forecast.sampling import believed_left_s, certain
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.curve import SpeedCurve, amdahl_curve
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.prediction.duration import Quantiles
from tests.support.quotas import short
from tests.support.worlds import make_job, make_nodes

NIGHT_NODES = make_nodes(4, 4, 8)
NIGHT_QUOTA = short(("default", {}), ("research", {"*": 6}), ("product", {"gpu": 8}))


def sim_job(
    name: str,
    size: int = 1,
    *,
    work_s: float = 100.0,
    restart_s: float = 0.0,
    truth: tuple[float, SpeedCurve] | None = None,
    **changes: Any,
) -> SimJob:
    """A job that the scheduler knows all about, unless `truth` says that its work and curve are others.

    It scales perfectly, and starts in no time unless told otherwise.
    """
    job = make_job(name, size, work_s=work_s, restart_s=restart_s, **changes)
    true_work_s, true_curve = truth or (work_s, job.curve)
    return SimJob(job, true_work_s, true_curve)


class QueuedBackend(SimBackend):
    """Simulated machines of a cluster that has queues with quotas."""

    def opening(self) -> list[ev.Event]:
        return [*SimBackend.opening(self), ev.QuotaSet(0.0, NIGHT_QUOTA)]


def eventful_night(seed: int, jobs: int = 40) -> QueuedBackend:
    """Elastic jobs of two queues with quotas, while nodes and GPUs fail, slow down and return."""
    chance, sims, now_s = Random(seed), list[SimJob](), 0.0
    for k in range(jobs):
        now_s += chance.expovariate(1 / 200)
        size = chance.choice((1, 2, 2, 4))
        largest = chance.choice((size, 2 * size, 8))
        sims.append(
            sim_job(
                f"j{k:02}",
                size,
                min=chance.choice((1, size)),
                max=largest,
                submit_s=now_s,
                work_s=chance.uniform(300, 9000),
                restart_s=chance.choice((0.0, 12.5, 40.0)),
                curve=amdahl_curve(largest, chance.choice((0.02, 0.2))),
                checkpoint_interval_s=chance.choice((None, None, 300.0)),
                queue=chance.choice(("default", "research", "product")),
                priority=chance.choice((0, 0, 5)),
            )
        )
    return QueuedBackend(sims, NIGHT_NODES, failures=night_failures(seed))


def night_failures(seed: int) -> Sequence[FailureRecord]:
    options = FailureOptions(
        until_s=10_000.0,
        seed=seed,
        node_mtbf_s=3000.0,
        node_mttr_s=700.0,
        gpu_mtbf_s=20_000.0,
        gpu_mttr_s=900.0,
        straggler_mtbf_s=5000.0,
    )
    return draw_failures(NIGHT_NODES, options)


def exact_estimates(world: World) -> dict[JobId, Quantiles]:
    """The World's own estimates of the work that its jobs have left, without uncertainty."""
    return {job: certain(believed_left_s(world, row)) for row, job in enumerate(world.jobs.ids)}
