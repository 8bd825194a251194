"""Running jobs that lie on more nodes or racks than they need move closer together, if that pays."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.core.cluster import Placement
from batuta.core.job import Job
from batuta.core.job_table import Phase
from batuta.core.placer import Move
from batuta.core.reason import Evidence, Reason
from batuta.core.weigh import Worth, lost_work_s, worth_of_change
from batuta.placement.attempt import PlacementAttempt
from batuta.placement.resizing import resettle


def worth_of_move(draft: PlacementAttempt, row: int, before: Placement, after: Placement) -> Worth:
    """Moving a job. One that starts or is resized in this cycle restarts anyway: only its speed counts."""
    job = draft.world.jobs.jobs[row]
    speeds = draft.speed(job, before), draft.speed(job, after)
    if row in draft.placements:
        return Worth((_worth(draft, row, *speeds, 0.0).gain_s, 0.0))
    return _worth(draft, row, *speeds, lost_work_s(draft.world, row, draft.now_s))


def gain_of_place(draft: PlacementAttempt, row: int, without: float, after: Placement) -> float:
    """What a place is worth to a job that would run at the speed `without` if it did not get it."""
    return _worth(draft, row, without, draft.speed(draft.world.jobs.jobs[row], after), 0.0).gain_s


def evidence_of(gain_s: float, cost_s: float) -> Evidence:
    return (("gain_s", gain_s), ("cost_s", cost_s))


def _worth(draft: PlacementAttempt, row: int, before: float, after: float, lost_s: float) -> Worth:
    jobs = draft.world.jobs
    elapsed_s = draft.now_s - float(jobs.anchor_s[row])
    remaining_s = max(0.0, float(jobs.remaining_s[row]) - float(jobs.rate[row]) * elapsed_s)
    return worth_of_change(before, after, remaining_s, float(jobs.restart_s[row]), lost_s, draft.costs)


# NumPy takes three times as long to compare with a member of an enumeration.
RUNNING = int(Phase.RUNNING)


def consolidate(draft: PlacementAttempt) -> None:
    """Moves the jobs that lose most by being spread, a bounded number in each cycle."""
    layout, options = draft.room.layout, draft.options
    # Without free GPUs no job can move; on a busy cluster this ends here.
    if not draft.costs.enabled or not options.moves or not layout.usable & ~layout.buckets[0]:
        return
    found = sorted((-loss, row) for row, loss in _losses(draft))
    for _, row in found[: options.tries]:
        if _move_closer(draft, row) and len(draft.moves) >= options.moves:
            break


def _losses(draft: PlacementAttempt) -> Iterator[tuple[int, float]]:
    """Running jobs that could be faster elsewhere, with the part of their speed that they lose."""
    jobs, table, layout = draft.world.jobs, draft.room.table, draft.room.layout
    gpus, phase, placements = jobs.held, jobs.phase, jobs.placements
    # These lines see every job of several GPUs in every cycle; the others only the few that are spread.
    several = gpus > 1
    cpu_only = jobs.without_gpus()
    if cpu_only is not None:
        several &= ~cpu_only
    if len(table.by_rack) < 2 and draft.options.scattered == 1.0:
        # Within one rack, a job that is wider than a node loses nothing by lying on several.
        several &= gpus <= table.largest
    rows = several.nonzero()[0].tolist()
    spread = [row for row in rows if len(placements[row].spans) > 1]  # type: ignore[union-attr]
    if not spread:
        return
    left_alone = {target.row for target in draft.targets} | draft.moves.keys()
    widest = max(k for k, level in enumerate(layout.buckets) if level & layout.usable)
    for row in spread:
        placement, job = placements[row], jobs.jobs[row]
        if placement is None or row in left_alone or phase[row] != RUNNING or job.id in jobs.unsaved:
            continue
        if not draft.minds_spread(job) or draft.is_tight(job, placement):
            continue
        loss, size = _loss(draft, row, job, placement), int(gpus[row])
        if loss > 0 and (size > table.largest or _fits_somewhere(draft, placement, size, widest)):
            yield row, loss


def _loss(draft: PlacementAttempt, row: int, job: Job, placement: Placement) -> float:
    curve, kind = job.curve, int(draft.world.jobs.gpu_type[row])
    fewest, nodes = draft.fewest_nodes(job, placement.size, kind), len(placement.nodes)
    factor = curve.spread(nodes, draft.room.table.racks(placement))
    if curve.across_nodes == 1.0 and nodes > fewest:
        factor *= draft.options.scattered
    return curve.spread(fewest, 1) - factor


def _fits_somewhere(draft: PlacementAttempt, placement: Placement, size: int, widest: int) -> bool:
    """A quick look whether one node could take the whole job, before its GPUs are given back to try."""
    free, own = draft.room.layout.free, draft.room.masks(placement)
    return widest >= size or any(free[i].bit_count() + own[i].bit_count() >= size for i in own)


def _move_closer(draft: PlacementAttempt, row: int) -> bool:
    jobs, room = draft.world.jobs, draft.room
    job, held = jobs.jobs[row], jobs.placements[row]
    if held is None:
        return False
    room.vacate(held, job)
    nodes = room.suited(job, int(jobs.gpu_type[row]))
    placement = resettle(room, job, held, held.size, nodes)
    if placement is not None:
        worth = worth_of_move(draft, row, held, placement)
        if worth.pays:
            draft.moves[row] = Move(placement, Reason.CONSOLIDATED, evidence_of(worth.gain_s, worth.cost_s))
            return True
        room.vacate(placement, job)
    room.occupy(held, job)
    return False
