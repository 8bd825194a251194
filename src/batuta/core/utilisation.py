"""Jobs that hold GPUs without using them, and how busy jobs of a name are expected to keep a GPU.

The World notes what reports of use say (`note_use`); a cycle asks what follows from it (`restrain`).
Nothing follows from one report: a job is idle when all its GPUs were for `after_s`, and one that was made
small for it may grow again when it has used what it has for as long. So whatever is reported, a job is
changed at most once in that time, and it is never killed. What a trial run measured counts like what a
running job reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from batuta.core.admission import Admitted
from batuta.core.arrays import IntArray
from batuta.core.cluster import Placement
from batuta.core.job import NO_RESTART_S, Job, JobId
from batuta.core.job_table import Phase
from batuta.core.quota import IdleAction
from batuta.core.reason import Evidence, Reason

if TYPE_CHECKING:
    from batuta.core.world import World


MOST_NAMES = 1000
_NEWS = 0.3  # how much a new measurement counts against all before


def learn_name(world: World, name: str, busy: float) -> None:
    """Takes in how busy a job of a name keeps a GPU. Names that were not used for long are forgotten."""
    if name:
        before = world.loads.pop(name, busy)
        world.loads[name] = before + _NEWS * (busy - before)
        if len(world.loads) > MOST_NAMES:
            del world.loads[next(iter(world.loads))]


def known_load(world: World, job: Job) -> float | None:
    """What a job will probably use of a GPU, from 0 to 1; None where nothing is known of its like."""
    load, share = world.loads.get(_name(job)), job.share
    if load is not None and share is not None and share.compute_percent and not share.soft:
        return min(load, share.compute_percent / 100)
    return load


def expected_load(world: World, job: Job) -> float:
    """The same; 0 where nothing is known."""
    return known_load(world, job) or 0.0


def _name(job: Job) -> str:
    return job.application or job.name


IDLE_AT = 0.02
"""A GPU that is busy for at most this part of the time is not used: monitors and drivers do something too."""
STALE_S = 900.0  # what is known of a GPU for longer than this is not known any more


@dataclass(frozen=True, slots=True)
class IdleRules:
    """When a job counts as idle, and what follows."""

    after_s: float = 900.0
    action: IdleAction = IdleAction.REPORT


class Usage(NamedTuple):
    """How busy the GPUs of a node were, by number; None where it is unknown."""

    time_s: float
    gpus: tuple[float | None, ...]


class Idle(NamedTuple):
    """What is remembered of a job that left its GPUs idle."""

    since_s: float | None = None  # None while it uses them, or that is unknown
    busy_s: float | None = None  # since when a job that is kept small uses what it has
    told: bool = False
    kept_small: bool = False
    parked: Evidence = ()  # why it was parked, if it was for that


_FORGOTTEN = Idle()


class Verdict(NamedTuple):
    """What follows for one job."""

    most: int | None  # GPUs that it may have at most; None: as many as ever
    reason: Reason
    evidence: Evidence
    is_news: bool = False


def note_use(world: World, node: int, usage: Usage, own: Mapping[JobId, float]) -> None:
    """Takes in a report. `own` is what jobs that share a card had of it, where that is known."""
    before = world.usage.get(node)
    world.usage[node] = usage
    # What happened in a time without reports is unknown.
    goes_on = before is not None and usage.time_s - before.time_s <= STALE_S
    jobs, name = world.jobs, world.nodes.nodes[node].name
    for row, placement in enumerate(jobs.placements):
        if placement is None or all(span.node != name for span in placement.spans):
            continue
        if jobs.phase_of(row) is Phase.RUNNING:
            if not goes_on:
                _begin(world, jobs.ids[row])
            busy = _busiest(world, row, usage.time_s, own)
            _note(world, jobs.ids[row], busy, usage.time_s)
            if busy is not None:
                learn_name(world, _name(jobs.jobs[row]), busy)


def forget_use(world: World, left: Placement) -> None:
    """A job has left these GPUs: how busy those were that are free now was its doing, and tells nothing."""
    for node, gpus in left.spans:
        i = world.nodes.index[node]
        usage = world.usage.get(i)
        if usage is not None:
            gone = {gpu for gpu in gpus if world.layout.free[i] >> gpu & 1}
            known = tuple(
                None if gpu in gone and busy is not None and busy > IDLE_AT else busy
                for gpu, busy in enumerate(usage.gpus)
            )
            world.usage[i] = usage._replace(gpus=known)


def began_anew(world: World, row: int, now_s: float) -> None:
    """A job has just begun to run: what it did before does not count, what is known of its GPUs does."""
    job = world.jobs.ids[row]
    _begin(world, job)
    if world.usage and world.jobs.phase_of(row) is Phase.RUNNING:
        _note(world, job, _busiest(world, row, now_s, {}), now_s)


def _begin(world: World, job: JobId) -> None:
    known = world.idle.get(job)
    if known is not None:
        _keep(world, job, known._replace(since_s=None, busy_s=None, told=False, parked=()))


def was_told(world: World, job: JobId) -> None:
    known = world.idle.get(job)
    if known is not None:
        world.idle[job] = known._replace(told=True)


def was_enlarged(world: World, job: JobId) -> None:
    """Whatever it did before, it is not kept small any more."""
    known = world.idle.get(job)
    if known is not None:
        _keep(world, job, known._replace(kept_small=False))


def _busiest(world: World, row: int, now_s: float, own: Mapping[JobId, float]) -> float | None:
    """How busy the busiest GPU of a job is; None when one of them is not known."""
    jobs = world.jobs
    job, placement = jobs.jobs[row], jobs.placements[row]
    assert placement is not None
    if job.cpu_only:
        return None
    if job.share is not None and job.id in own:
        return own[job.id]
    most = 0.0
    for node, gpus in placement.spans:
        usage = world.usage.get(world.nodes.index[node])
        if usage is None or now_s - usage.time_s > STALE_S:
            return None
        for gpu in gpus:
            busy = usage.gpus[gpu] if gpu < len(usage.gpus) else None
            if busy is None:
                return None
            most = max(most, busy)
    # Of a card that others use too, it is not known who does.
    return most if job.share is None or most <= IDLE_AT else None


def mean_busy(world: World, row: int, now_s: float) -> float | None:
    """How busy the GPUs of a job are, 0 to 1, a shared card as a whole; None where it is not known."""
    placement = world.jobs.placements[row]
    known: list[float] = []
    for node, gpus in () if placement is None else placement.spans:
        usage = world.usage.get(world.nodes.index[node])
        if usage is not None and now_s - usage.time_s <= STALE_S:
            told = (usage.gpus[gpu] if gpu < len(usage.gpus) else None for gpu in gpus)
            known += [busy for busy in told if busy is not None]
    return sum(known) / len(known) if known else None


def _note(world: World, job: JobId, busy: float | None, now_s: float) -> None:
    known = world.idle.get(job, _FORGOTTEN)
    if busy is None:
        known = known._replace(since_s=None, busy_s=None)
    elif busy <= IDLE_AT:
        since_s = now_s if known.since_s is None else known.since_s
        known = known._replace(since_s=since_s, busy_s=None)
    else:
        busy_s = now_s if known.busy_s is None else known.busy_s
        known = known._replace(since_s=None, busy_s=busy_s, told=False)
    _keep(world, job, known)


def _keep(world: World, job: JobId, known: Idle) -> None:
    if known.since_s is None and not known.kept_small:
        world.idle.pop(job, None)
    else:
        world.idle[job] = known


def restrain(world: World, now_s: float, admitted: Admitted, rules: IdleRules) -> Admitted:
    """The same with less for jobs that leave their GPUs idle, where their queue wants that."""
    verdicts: dict[int, Verdict] = {}
    for job in world.idle:
        row = world.jobs.row(job)
        found = _judge(world, row, now_s, rules)
        if found is not None:
            verdicts[row] = found
    if not verdicts:
        return admitted
    return replace(
        admitted,
        cap=_lowered(world, admitted, verdicts),
        idle={row: (verdict.reason, verdict.evidence) for row, verdict in verdicts.items()},
        found_idle=tuple(sorted(world.jobs.ids[row] for row, verdict in verdicts.items() if verdict.is_news)),
    )


def _lowered(world: World, admitted: Admitted, verdicts: Mapping[int, Verdict]) -> IntArray | None:
    """The caps with those of idle jobs; as they were if these are only told."""
    lower = [(row, verdict.most) for row, verdict in verdicts.items() if verdict.most is not None]
    if not lower:
        return admitted.cap
    cap = (world.jobs.max if admitted.cap is None else admitted.cap).copy()
    for row, most in lower:
        cap[row] = min(int(cap[row]), most)
    return cap


def _judge(world: World, row: int, now_s: float, rules: IdleRules) -> Verdict | None:
    jobs = world.jobs
    job, known = jobs.jobs[row], world.idle[jobs.ids[row]]
    held = jobs.placements[row]
    action, after_s = _wanted(world, job, rules)
    is_kept_small = known.kept_small and action is IdleAction.SHRINK
    if held is None or jobs.phase_of(row) is not Phase.RUNNING:
        # Who is to be small stays so wherever it starts again.
        gpus = job.min if held is None else held.size
        return Verdict(gpus, Reason.KEPT_SMALL, ()) if is_kept_small else None
    if _is_over(known.since_s, after_s, now_s) and _is_fresh(world, held, now_s):
        assert known.since_s is not None
        numbers: Evidence = (("before", held.size), ("idle_s", now_s - known.since_s))
        if action is IdleAction.PARK:
            return Verdict(0, Reason.PARKED_IDLE, numbers)
        most = job.min if action is IdleAction.SHRINK else None
        return Verdict(most, Reason.IDLE, numbers, is_news=not known.told)
    if is_kept_small and not _is_over(known.busy_s, after_s, now_s):
        return Verdict(held.size, Reason.KEPT_SMALL, ())
    return None


def _is_fresh(world: World, held: Placement, now_s: float) -> bool:
    """Whether all nodes of a job are still looked at."""
    usages = [world.usage.get(world.nodes.index[span.node]) for span in held.spans]
    return all(usage is not None and now_s - usage.time_s <= STALE_S for usage in usages)


def _is_over(since_s: float | None, after_s: float, now_s: float) -> bool:
    """Whether so much time has passed. Asked as `next_idle_s` asks it: sums of floats are not their parts."""
    return since_s is not None and now_s >= since_s + after_s


def _wanted(world: World, job: Job, rules: IdleRules) -> tuple[IdleAction, float]:
    """What the job's queue wants, for a job that loses nothing by it; else it is only told."""
    wish = world.quota.idle_wish(job.namespace, job.queue)
    action = wish.action or rules.action
    keeps_work = job.checkpoint_interval_s is None and job.id not in world.jobs.unsaved
    can_go_on = keeps_work and job.restart_s < NO_RESTART_S
    return action if can_go_on else IdleAction.REPORT, wish.after_s or rules.after_s


def next_idle_s(world: World, now_s: float, rules: IdleRules) -> float:
    """When the first job will have been idle, or busy again, for long enough to do something about it."""
    first_s = math.inf
    for job, known in world.idle.items():
        _, after_s = _wanted(world, world.jobs.jobs[world.jobs.row(job)], rules)
        for since_s in (known.since_s, known.busy_s):
            if since_s is not None and now_s < since_s + after_s:
                first_s = min(first_s, since_s + after_s)
    return first_s
