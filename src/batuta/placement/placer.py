"""The topology-aware, stable placer: who runs stays, newcomers go close together, and moves have to pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from batuta.core.cluster import Placement
from batuta.core.job import Job, JobId
from batuta.core.job_table import Phase
from batuta.core.placer import EVERYWHERE, Placed, Target
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement.attempt import (
    PlacementAttempt,
    PlacerOptions,
    begins_with,
    enlarge,
    grow_at_home,
    keep_order,
    largest_grown,
    legal_above,
    legal_floor,
    most,
    pack,
    shrink,
    tighten,
    whole_replicas,
    why,
)
from batuta.placement.cluster_state import ClusterState, Part
from batuta.placement.defragmentation import consolidate, make_room
from batuta.placement.sharing import place_share

# NumPy takes three times as long to compare with a member of an enumeration.
BROKEN = int(Phase.BROKEN)
ChooseNodes: TypeAlias = Callable[[ClusterState, Job, int, int], list[Part] | None]


@dataclass(frozen=True, slots=True)
class TopologyPlacer:
    """Chooses GPUs so that constraints hold, running jobs stay, jobs lie close together and gaps are few."""

    options: PlacerOptions = field(default_factory=PlacerOptions)

    def place(
        self,
        world: World,
        now_s: float,
        targets: Sequence[Target],
        costs: Costs,
        within: Mapping[JobId, int] = EVERYWHERE,
    ) -> Placed:
        draft = PlacementAttempt(world, now_s, costs, self.options, self.options.room(world, within), targets)
        work = _Work.sorted_from(world, targets)
        # 1. GPUs are given back before any is taken.
        _release(draft, work.stops, work.shrinks)
        # 2. Who lost GPUs goes before who wants more.
        for target in work.repairs:
            _repair(draft, target)
        # 3. Who changes the type frees GPUs of the old one.
        _exchange(draft, work.exchanges)
        # 4. Growth on the nodes that a job has costs no other job a better place; the rest competes by size.
        rest = [target for target in work.grows if not _grow_at_home(draft, target)]
        _start_and_grow(draft, work.starts + rest)
        # 5. Others move for a job that fits nowhere, or only far apart, if that pays.
        make_room(draft, work.repairs + work.starts)
        # 6. Running jobs move closer together, if that pays.
        consolidate(draft)
        return draft.done()


@dataclass(slots=True)
class _Work:
    """The targets by what has to be done."""

    stops: list[Target] = field(default_factory=list)
    shrinks: list[Target] = field(default_factory=list)
    repairs: list[Target] = field(default_factory=list)
    exchanges: list[Target] = field(default_factory=list)
    grows: list[Target] = field(default_factory=list)
    starts: list[Target] = field(default_factory=list)

    @staticmethod
    def sorted_from(world: World, targets: Sequence[Target]) -> _Work:
        work, jobs = _Work(), world.jobs
        placements, phase, gpu_type, held = jobs.placements, jobs.phase.item, jobs.gpu_type.item, jobs.held.item
        for target in targets:
            row, gpus, kind = target
            if placements[row] is None:
                if gpus:
                    work.starts.append(target)
            elif not gpus:
                work.stops.append(target)
            elif phase(row) == BROKEN:
                work.repairs.append(target)
            elif gpu_type(row) != kind:
                work.exchanges.append(target)
            elif held(row) < gpus:
                work.grows.append(target)
            elif held(row) > gpus:
                work.shrinks.append(target)
        return work


def _largest_first(target: Target) -> tuple[int, int]:
    return -target.gpus, target.row


def _release(draft: PlacementAttempt, stops: Sequence[Target], shrinks: Sequence[Target]) -> None:
    room = draft.room
    for target in stops:
        job, held = _running(draft, target)
        room.vacate(held, job)
    for target in shrinks:
        job, held = _running(draft, target)
        draft.placements[target.row] = shrink(room, job, held, target.gpus)
    for target in shrinks:
        # Only now all GPUs are back, so that a closer place may be found.
        _settle(draft, target, draft.placements[target.row])


def _settle(draft: PlacementAttempt, target: Target, placement: Placement) -> None:
    job, held = _running(draft, target)
    if len(placement.spans) > 1:
        placement = tighten(draft, job, held, placement, draft.room.suited(job, target.gpu_type))
    draft.placements[target.row] = placement


def _repair(draft: PlacementAttempt, target: Target) -> None:
    """Makes a job whole that lost GPUs, at a smaller legal size if need be; failing that, it loses all."""
    room = draft.room
    job, held = _running(draft, target)
    room.vacate(held, job)
    if draft.world.jobs.gpu_type[target.row] != target.gpu_type:
        _start(draft, target)
        return
    left = whole_replicas(held, job.gpus_per_replica)
    room.occupy(left, job)
    placement = None
    if target.gpus > left.size:
        nodes = room.suited(job, target.gpu_type)
        placement = grow_at_home(room, job, left, target.gpus, nodes) or _grown(draft, job, left, target)
    if placement is None:
        size = legal_floor(job, min(target.gpus, left.size))
        if not size:
            room.vacate(left, job)
            draft.failures[target.row] = why(room, job, job.min, target.gpu_type)
            return
        placement = shrink(room, job, left, size)
    if left != held:
        # New replicas take the numbers of those that are no longer whole.
        placement = keep_order(room.table, held, room.masks(placement), job.gpus_per_replica)
    _settle(draft, target, placement)


def _exchange(draft: PlacementAttempt, targets: list[Target]) -> None:
    """Moves jobs to another GPU type. They keep the old GPUs until they have new ones."""
    waiting = targets
    while waiting:
        still = [target for target in waiting if not _swap(draft, target, target.gpus)]
        if len(still) == len(waiting):
            break
        waiting = still
    if len(waiting) > 1 and _swap_all(draft, waiting):
        return
    for target in waiting:
        job = draft.world.jobs.jobs[target.row]
        fits = most(draft.room, job, draft.room.suited(job, target.gpu_type)) if job.share is None else 0
        size = legal_floor(job, min(target.gpus - 1, fits))
        if not size or not _swap(draft, target, size):
            draft.failures[target.row] = why(draft.room, job, job.min, target.gpu_type)


def _swap(draft: PlacementAttempt, target: Target, gpus: int) -> bool:
    job, held = _running(draft, target)
    placement = place_new(draft.room, job, gpus, target.gpu_type)
    if placement is None:
        return False
    draft.room.vacate(held, job)
    draft.placements[target.row] = placement
    return True


def _swap_all(draft: PlacementAttempt, targets: list[Target]) -> bool:
    """Lets jobs that stand in each other's way leave together, if then all of them find a place."""
    room, found = draft.room, dict[int, Placement]()
    for target in targets:
        job, held = _running(draft, target)
        room.vacate(held, job)
    for target in sorted(targets, key=_largest_first):
        placement = place_new(room, draft.world.jobs.jobs[target.row], target.gpus, target.gpu_type)
        if placement is None:
            break
        found[target.row] = placement
    if len(found) == len(targets):
        draft.placements.update(found)
        return True
    for row, placement in found.items():
        room.vacate(placement, draft.world.jobs.jobs[row])
    for target in targets:
        job, held = _running(draft, target)
        room.occupy(held, job)
    return False


def place_new(room: ClusterState, job: Job, gpus: int, gpu_type: int, choose: ChooseNodes = pack) -> Placement | None:
    """Place a job that has no GPUs of this type; None when there is no room. `choose` finds nodes for whole GPUs."""
    nodes = room.suited(job, gpu_type)
    if job.share is not None:
        return place_share(room, job, job.share, nodes)
    parts = choose(room, job, gpus, nodes)
    return None if parts is None else room.seat(job, parts)


def _start_and_grow(draft: PlacementAttempt, targets: list[Target]) -> None:
    """Places by size. A job that grows elsewhere leaves GPUs behind: then the refused jobs are tried again."""
    placements, refused, left_behind = draft.world.jobs.placements, list[Target](), False
    for target in sorted(targets, key=_largest_first):
        if placements[target.row] is not None:
            left_behind |= _grow(draft, target)
        elif not _start(draft, target):
            refused.append(target)
    if left_behind:
        for target in refused:
            _start(draft, target)


def _start(draft: PlacementAttempt, target: Target) -> bool:
    """Places a job that has no GPUs; where the target does not fit, the largest smaller size that does."""
    row, gpus, kind = target
    room, job = draft.room, draft.world.jobs.jobs[row]
    placement = place_new(room, job, gpus, kind)
    if placement is None and gpus > job.min:
        size = legal_floor(job, min(gpus - 1, most(room, job, room.suited(job, kind))))
        placement = place_new(room, job, size, kind) if size else None
    if placement is None:
        draft.failures[row] = why(room, job, job.min, kind)
        return False
    draft.placements[row] = placement
    draft.failures.pop(row, None)
    return True


def _grow_at_home(draft: PlacementAttempt, target: Target) -> bool:
    job, held = _running(draft, target)
    placement = grow_at_home(draft.room, job, held, target.gpus, draft.room.suited(job, target.gpu_type))
    if placement is None:
        return False
    _settle(draft, target, placement)
    return True


def _grow(draft: PlacementAttempt, target: Target) -> bool:
    """Gives a running job more GPUs, as many of the wanted ones as fit; whether it leaves GPUs behind."""
    job, held = _running(draft, target)
    placement = _grown(draft, job, held, target)
    if placement is None:
        needs = legal_above(job, held.size)
        draft.failures[target.row] = why(draft.room, job, needs, target.gpu_type, held.size)
        return False
    _settle(draft, target, placement)
    return not begins_with(draft.placements[target.row], held)


def _grown(draft: PlacementAttempt, job: Job, held: Placement, target: Target) -> Placement | None:
    """The job with the GPUs that it shall have, or as many as there is room for; None: no more."""
    room, nodes = draft.room, draft.room.suited(job, target.gpu_type)
    placement = enlarge(draft, job, held, target.gpus, nodes)
    if placement is None:
        gpus = legal_floor(job, min(target.gpus - 1, largest_grown(room, job, held, nodes)))
        if gpus > held.size:
            return grow_at_home(room, job, held, gpus, nodes) or enlarge(draft, job, held, gpus, nodes)
    return placement


def _running(draft: PlacementAttempt, target: Target) -> tuple[Job, Placement]:
    jobs = draft.world.jobs
    held = jobs.placements[target.row]
    assert held is not None
    return jobs.jobs[target.row], held
