"""What would be if: the same jobs with the same luck, once as things are and once changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from batuta.backends.sim.foresight.forecast import Rulebook, Scene, futures_of
from batuta.backends.sim.foresight.fork import Outside, told
from batuta.backends.sim.foresight.future import Future
from batuta.backends.sim.foresight.lengths import exactly
from batuta.backends.sim.workload import SimJob
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.job import Job, JobId
from batuta.core.quota import Quota
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.prediction.duration import Quantiles


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What is changed. Who decides is not part of it: that is said by a Rulebook."""

    nodes: tuple[Node, ...] = ()
    quota: Quota | None = None
    jobs: tuple[Job, ...] = ()
    """Submitted now."""
    drained: tuple[NodeName, ...] = ()

    def events(self, world: World, now_s: float) -> list[ev.Event]:
        """What happens at once if it comes true."""
        found: list[ev.Event] = [ev.NodeAdded(now_s, node) for node in self.nodes]
        if self.quota is not None:
            found.append(ev.QuotaSet(now_s, self.quota))
        leaving = set(self.drained)
        found += [ev.NodeCordoned(now_s, node) for node in self.drained]
        found += [
            ev.JobWished(now_s, job, Wish.EVICT)
            for job, placement in zip(world.jobs.ids, world.jobs.placements, strict=True)
            if placement is not None and leaving.intersection(placement.nodes)
        ]
        return found


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job as things are, and changed; means over all runs, NaN for what does not happen in each."""

    job: JobId
    jct_s: tuple[float, float]
    """From its submission."""
    wait_s: tuple[float, float]
    """Without GPUs, from now on."""
    fairness: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All jobs together, in one of both worlds; those of the means end in both."""

    jct_s: float
    wait_s: float
    fairness: float
    worst_fairness: float
    utilisation: float
    makespan_s: float
    """From now on."""
    restarts: float
    preemptions: float
    unfinished: int
    """Jobs that do not end in every run."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """As things are, and changed."""

    now_s: float
    runs: int
    before: Outcome
    after: Outcome
    jobs: tuple[JobOutcome, ...]
    """Those that live now, then those that would be submitted."""
    notes: tuple[str, ...] = ()


def compare(scene: Scene, hypothesis: Hypothesis, usual: Rulebook, changed: Rulebook) -> Comparison:
    """Looks ahead twice from the same World, with the same luck."""
    before = futures_of(scene, usual, measured=True)
    known = {**scene.known, **{job.id: _of_request(job) for job in hypothesis.jobs}}
    submitted = scene.draws.left_s({job.id: known[job.id] for job in hypothesis.jobs})

    def outside(run: int) -> Outside:
        usual = scene.outside(run)
        new = [
            SimJob(told(job, job.work_s, job.restart_s), float(submitted[job.id][run]), job.curve)
            for job in hypothesis.jobs
        ]
        script = [*hypothesis.events(scene.world, scene.now_s), *usual.script]
        return replace(usual, arrivals=[*new, *usual.arrivals], script=script)

    awaited = scene.awaited
    if awaited is None:
        awaited = frozenset((*scene.world.jobs.ids, *(job.id for job in hypothesis.jobs)))
    after = futures_of(replace(scene, outside=outside, awaited=awaited), changed, measured=True)
    return _compared(scene, before, after, [job.id for job in hypothesis.jobs])


def _of_request(job: Job) -> Quantiles:
    """What earlier jobs said of its length; else it is the same guess in all runs."""
    return exactly(job.work_s) if job.expected is None else Quantiles.of(job.expected.seconds)


def _compared(
    scene: Scene, before: Sequence[Future], after: Sequence[Future], submitted: Sequence[JobId]
) -> Comparison:
    runs = min(len(before), len(after))
    before, after = before[:runs], after[:runs]
    submit_s = {job.id: job.submit_s for job in scene.world.jobs.jobs}
    submit_s |= dict.fromkeys(submitted, scene.now_s)
    both = [job for job in scene.world.jobs.ids if all(job in one.end_s for one in (*before, *after))]
    jobs = tuple(_job_outcome(job, submit_s[job], before, after) for job in submit_s)
    return Comparison(
        scene.now_s,
        runs,
        _outcome(before, both, submit_s, scene.world.jobs.ids),
        _outcome(after, both, submit_s, [*scene.world.jobs.ids, *submitted]),
        jobs,
    )


def _job_outcome(job: JobId, submit_s: float, *worlds: Sequence[Future]) -> JobOutcome:
    def pair(value: Callable[[Future], float]) -> tuple[float, float]:
        first, second = (_mean(value(future) for future in futures) for futures in worlds)
        return first, second

    return JobOutcome(
        job,
        pair(lambda future: future.end_s.get(job, math.nan) - submit_s),
        pair(lambda future: future.wait_s.get(job, math.nan) if job in future.end_s else math.nan),
        pair(lambda future: future.fairness.get(job, math.nan)),
    )


def _outcome(
    futures: Sequence[Future], both: Sequence[JobId], submit_s: dict[JobId, float], everyone: Sequence[JobId]
) -> Outcome:
    def over_jobs(value: Callable[[Future, JobId], float]) -> float:
        return _mean(value(future, job) for future in futures for job in both)

    fairness = [future.fairness[job] for future in futures for job in both if job in future.fairness]
    return Outcome(
        jct_s=over_jobs(lambda future, job: future.end_s[job] - submit_s[job]),
        wait_s=over_jobs(lambda future, job: future.wait_s.get(job, 0.0)),
        fairness=_mean(fairness),
        worst_fairness=max(fairness, default=math.nan),
        utilisation=_mean(future.utilisation for future in futures),
        makespan_s=_mean(future.until_s - future.now_s for future in futures),
        restarts=_mean(float(future.restarts) for future in futures),
        preemptions=_mean(float(future.preemptions) for future in futures),
        unfinished=sum(not all(job in future.end_s for future in futures) for job in everyone),
    )


def _mean(values: Iterable[float]) -> float:
    found = np.fromiter(values, dtype=np.float64)
    return float(found.mean()) if found.size else math.nan
