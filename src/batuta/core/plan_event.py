"""What a plan changes: its commands are on their way, and GPUs count as taken from now on."""

from __future__ import annotations

from batuta.core import event as ev
from batuta.core.cluster import Span
from batuta.core.command import Migrate, Preempt, Resize, Start, Stop
from batuta.core.holdings import occupy, release
from batuta.core.idle import was_enlarged, was_made_small, was_parked, was_told
from batuta.core.job_table import Phase
from batuta.core.reason import Reason
from batuta.core.wish import Wish
from batuta.core.world import World


class StalePlanError(Exception):
    """The plan was made from an older World; it is dropped, not repaired."""


def carry_over(world: World, event: ev.Planned) -> None:
    plan = event.plan
    if plan.world_version != world.version:
        raise StalePlanError(f"plan is for version {plan.world_version}, the World has {world.version}")
    jobs, now_s = world.jobs, event.time_s
    for job, tier in plan.retiered:
        row = jobs.row(job)
        jobs.i("tier")[row] = tier
        jobs.f("tier_since_s")[row] = now_s
    # All GPUs are given back before any is taken: two jobs may swap places in one plan.
    taking: list[tuple[int, Start | Resize | Migrate, set[Span]]] = []
    for command in plan.commands:
        row = jobs.row(command.job)
        if isinstance(command, Preempt | Stop):
            release(world, row, now_s)
            if isinstance(command, Stop):
                jobs.set_phase(row, Phase.STOPPING)
            elif command.reason is Reason.PARKED_IDLE:
                jobs.hold_back(row, Wish.PARK)
                was_parked(world, command.job, command.evidence)
            continue
        if command.reason is Reason.SHRUNK_IDLE:
            was_made_small(world, command.job)
        elif world.idle and command.placement.size > max(jobs.jobs[row].min, int(jobs.i("gpus")[row])):
            was_enlarged(world, command.job)
        kept, held = set[Span](), jobs.placements[row]
        if held is not None:
            kept.update(held.spans)
            kept.intersection_update(command.placement.spans)
            world.layout.remove(held, jobs.jobs[row], kept)
        taking.append((row, command, kept))
    world.flavors.update(plan.flavors)
    for job in plan.found_idle:
        was_told(world, job)
    for row, command, kept in taking:
        world.layout.place(command.placement, jobs.jobs[row], kept)
        phase = Phase.STARTING if isinstance(command, Start) else Phase.RESIZING
        occupy(world, row, command.placement, now_s, phase)
