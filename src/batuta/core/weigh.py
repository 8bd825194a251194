"""Step 4 of a cycle: what would change for each job, whether it pays, and the commands that carry it out.

A change is charged its restart time and lost work against the speed that it gains over a horizon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.cluster import Placement
from batuta.core.job import DesiredState, Job
from batuta.core.job_table import Phase
from batuta.core.layout import Layout
from batuta.core.placer import Placed, Target
from batuta.core.plan import Command, Migrate, Preempt, Resize, Start, Stop
from batuta.core.reason import REPLICAS, Evidence, Reason
from batuta.core.world import World, speed_at


@dataclass(frozen=True, slots=True)
class Costs:
    """How changes are charged."""

    enabled: bool = True  # False carries out whatever the policy says: for parity with schedulers that do not weigh
    charge: float = 2.0  # restarts charged per change: one to make it, one because it will be undone some day
    horizon_restarts: float = 20.0  # a change has this many restart times to pay for itself, …
    least_horizon_s: float = 600.0  # … but at least this long
    growth: bool = True  # False where the policy itself charges growth its restart; then the sizes that it chose stand
    freeze_transitions: bool = True
    """A job that is just starting or resizing is left alone, so that it is not restarted for ever."""


class Worth(NamedTuple):
    """What a change gains and what it costs, in seconds of work on one GPU."""

    gain_s: float
    cost_s: float

    @property
    def pays(self) -> bool:
        return self.gain_s > self.cost_s


def worth_of_change(
    speed_before: float, speed_after: float, remaining_s: float, restart_s: float, lost_work_s: float, costs: Costs
) -> Worth:
    """Gain and cost of changing a running job's speed now."""
    horizon_s = max(costs.least_horizon_s, costs.horizon_restarts * restart_s)
    if speed_after > 0:
        horizon_s = min(horizon_s, remaining_s / speed_after + restart_s)
    gain_s = (speed_after - speed_before) * horizon_s
    cost_s = costs.charge * restart_s * max(speed_before, speed_after) + lost_work_s
    return Worth(gain_s if math.isfinite(gain_s) else 0.0, cost_s)


@dataclass(slots=True)
class Changes:
    """Rows that get other GPUs, or lose all of them; `weigh` removes those that do not pay."""

    after: dict[int, Placement | None]
    broken: set[int]
    moved: dict[int, tuple[Reason, Evidence]]
    dropped: dict[int, Evidence]  # growth that did not pay, with gain and cost

    @staticmethod
    def of(world: World, targets: Sequence[Target], placed: Placed, admitted: Admitted) -> Changes:
        jobs = world.jobs
        is_broken = jobs.is_broken()
        after: dict[int, Placement | None] = {}
        broken: set[int] = set()
        for target in targets:
            row = target.row
            if is_broken is not None and is_broken[row]:
                broken.add(row)
            placement = placed.placements.get(row)
            if placement is not None:
                after[row] = placement
            elif (held := jobs.placements[row]) is not None:
                if target.gpus == 0 or row in broken:
                    after[row] = None
                elif admitted.cap is not None and held.size > admitted.cap[row]:
                    # It found no place at a size that it may have, and what it has is more than that.
                    after[row] = None
                    placed.layout.remove(held, jobs.jobs[row])
        moved: dict[int, tuple[Reason, Evidence]] = {}
        for row, move in placed.moves.items():
            after[row] = move.placement
            moved[row] = (move.reason, move.evidence)
        return Changes(after, broken, moved, {})


def weigh(world: World, now_s: float, changes: Changes, placed: Placed, admitted: Admitted, costs: Costs) -> None:
    """Drops growth that does not pay, then every shrink or stop that no job profits from."""
    if not costs.enabled:
        return
    jobs, layout = world.jobs, placed.layout
    given_up: list[int] = []
    for row in sorted(changes.after):
        before, after = jobs.placements[row], changes.after[row]
        if before is None or row in changes.broken or row in changes.moved:
            continue
        exchanged = after is not None and _changes_type(world, before, after)
        if after is not None and (after.size > before.size or exchanged):
            if not costs.growth:
                continue
            worth = _worth(world, now_s, row, before, after, costs)
            job = jobs.jobs[row]
            # What a user asked for by raising its `min` need not pay.
            stays = _may_keep(job, before.size, row, admitted)
            if not worth.pays and stays and _put_back(layout, job, before, after):
                del changes.after[row]
                changes.dropped[row] = (("wanted", after.size), ("gain_s", worth.gain_s), ("cost_s", worth.cost_s))
        else:
            given_up.append(row)
    for row in given_up:
        before, after = jobs.placements[row], changes.after[row]
        job = jobs.jobs[row]
        if before is None or not _may_keep(job, before.size, row, admitted):
            continue
        if _put_back(layout, job, before, after):
            del changes.after[row]


def _changes_type(world: World, before: Placement, after: Placement) -> bool:
    nodes = world.nodes
    if len(nodes.types) <= 1 or not before.size:
        return False
    kinds = {nodes.type_of[nodes.index[placement.spans[0].node]] for placement in (before, after)}
    return len(kinds) > 1


def _worth(world: World, now_s: float, row: int, before: Placement, after: Placement, costs: Costs) -> Worth:
    jobs, job = world.jobs, world.jobs.jobs[row]
    anchor_s, rate = float(jobs.anchor_s[row]), float(jobs.rate[row])
    remaining_s = max(0.0, float(jobs.remaining_s[row]) - rate * (now_s - anchor_s))
    return worth_of_change(
        speed_at(world, job, before),
        speed_at(world, job, after),
        remaining_s,
        float(jobs.restart_s[row]),
        lost_work_s(world, row, now_s),
        costs,
    )


def lost_work_s(world: World, row: int, now_s: float) -> float:
    """Work on one GPU that a stop would throw away: half a checkpoint interval, or all if none was seen."""
    jobs = world.jobs
    interval_s = jobs.jobs[row].checkpoint_interval_s
    if jobs.ids[row] in jobs.unsaved:
        interval_s = math.inf
    elif interval_s is None:
        return 0.0
    # Since the last start or resize, not since the last report of progress: that is no checkpoint.
    begun_s = jobs.run_start_s(row)
    return 0.0 if begun_s is None else jobs.rate.item(row) * min(interval_s / 2, max(now_s - begun_s, 0.0))


def _may_keep(job: Job, size: int, row: int, admitted: Admitted) -> bool:
    """Whether the size that the job has is still one that it may have."""
    if not job.min <= size <= job.max or (job.sizes is not None and size not in job.sizes):
        return False
    return admitted.cap is None or size <= int(admitted.cap[row])


def _put_back(layout: Layout, job: Job, before: Placement, after: Placement | None) -> bool:
    """Undoes a change in the layout, if what the job had is still there."""
    if after is not None:
        layout.remove(after, job)
    if layout.holds(before, job):
        layout.place(before, job)
        return True
    if after is not None:
        layout.place(after, job)
    return False


def commands_for(world: World, now_s: float, changes: Changes, admitted: Admitted) -> tuple[Command, ...]:
    """Commands in the order in which they free and take GPUs: stops, shrinks, moves, growth, starts."""
    jobs = world.jobs
    stops: list[Command] = list(_ends(world))
    shrinks: list[Command] = []
    moves: list[Command] = []
    grows: list[Command] = []
    starts: list[Command] = []
    for row in sorted(changes.after):
        after, before, job = changes.after[row], jobs.placements[row], jobs.jobs[row].id
        if after is None:
            if jobs.wish_of(row) is not DesiredState.CANCEL:
                stops.append(_preempt(world, row, changes, admitted))
        elif before is None:
            starts.append(Start(job, after, Reason.ADMITTED, _counted(world, row, after)))
        elif row in changes.broken:
            gone = int(jobs.lost_gpus[row])
            grows.append(Resize(job, after, Reason.REPAIRED, (("lost", gone), *_counted(world, row, after))))
        elif row in changes.moved:
            reason, evidence = changes.moved[row]
            moves.append(Migrate(job, after, reason, evidence))
        else:
            own = jobs.jobs[row]
            had, gets = before.units, after.units
            numbers: Evidence = (("before", had), *_counted(world, row, after))
            if _changes_type(world, before, after):
                moves.append(Resize(job, after, Reason.CHANGED_TYPE, numbers))
            elif gets > had:
                grows.append(Resize(job, after, Reason.GREW, numbers))
            elif had > (most := own.max):
                shrinks.append(Resize(job, after, Reason.CUT_TO_MAX, (*numbers, ("max", most))))
            elif row in admitted.idle and admitted.idle[row][0] is Reason.IDLE:
                idle_s = dict(admitted.idle[row][1])["idle_s"]
                shrinks.append(Resize(job, after, Reason.SHRUNK_IDLE, (*numbers, ("idle_s", idle_s))))
            elif job in jobs.unsaved:
                lost: Evidence = (("lost_s", now_s - (jobs.run_start_s(row) or 0.0)),)
                shrinks.append(Resize(job, after, Reason.SHRANK_UNSAVED, (*numbers, *lost)))
            else:
                shrinks.append(Resize(job, after, Reason.SHRANK, numbers))
    return (*stops, *shrinks, *moves, *grows, *starts)


def _counted(world: World, row: int, placement: Placement) -> Evidence:
    """The size of a placement as evidence: GPUs, or the replicas of a CPU-only job."""
    return ((REPLICAS if world.jobs.jobs[row].cpu_only else "gpus", placement.units),)


def _ends(world: World) -> Iterator[Stop]:
    """Jobs that are cancelled, with GPUs or without; each is told once."""
    jobs = world.jobs
    if jobs.held_back:
        fresh = (jobs.wish == DesiredState.CANCEL) & (jobs.phase != Phase.STOPPING)
        for row in np.flatnonzero(fresh).tolist():
            yield Stop(jobs.ids[row], Reason.CANCELLING)


def _preempt(world: World, row: int, changes: Changes, admitted: Admitted) -> Preempt:
    jobs = world.jobs
    wish = jobs.wish_of(row)
    if wish is not DesiredState.RUN:
        return Preempt(jobs.ids[row], Reason.PARKED if wish is DesiredState.PARK else Reason.EVICTED)
    counts = ((REPLICAS, jobs.jobs[row].size),) if jobs.jobs[row].cpu_only else ()
    if row in changes.broken:
        lost = int(jobs.lost_gpus[row])
        return Preempt(jobs.ids[row], Reason.LOST_NODE, (("lost", lost), *counts))
    if row in admitted.idle and admitted.idle[row][0] is Reason.PARKED_IDLE:
        return Preempt(jobs.ids[row], *admitted.idle[row])
    reason = admitted.losers.get(row, Reason.PREEMPTED)
    return Preempt(jobs.ids[row], reason, (("before", int(jobs.held[row])), *counts))
