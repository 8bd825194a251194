"""Running jobs that lie on more nodes or racks than they need move closer together, if that pays."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.core.cluster import Placement
from batuta.core.job import Job
from batuta.core.job_table import Phase
from batuta.core.placer import Move
from batuta.core.reason import Reason
from batuta.placement.draft import Draft
from batuta.placement.resizing import resettle
from batuta.placement.worth import evidence_of, worth_of_move

# NumPy takes three times as long to compare with a member of an enumeration.
RUNNING = int(Phase.RUNNING)


def consolidate(draft: Draft) -> None:
    """Moves the jobs that lose most by being spread, a bounded number in each cycle."""
    layout, options = draft.room.layout, draft.options
    # Without free GPUs nobody can move; on a busy cluster this ends here.
    if not draft.costs.enabled or not options.moves or not layout.usable & ~layout.buckets[0]:
        return
    found = sorted((-loss, row) for row, loss in _losses(draft))
    for _, row in found[: options.tries]:
        if _move_closer(draft, row) and len(draft.moves) >= options.moves:
            break


def _losses(draft: Draft) -> Iterator[tuple[int, float]]:
    """Running jobs that could be faster elsewhere, with the part of their speed that they lose."""
    jobs, table, layout = draft.world.jobs, draft.room.table, draft.room.layout
    gpus, phase, placements = jobs.i("gpus"), jobs.i("phase"), jobs.placements
    # These lines see every job of several GPUs in every cycle; the others only the few that are spread.
    several = gpus > 1
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
        if placement is None or row in left_alone or phase[row] != RUNNING:
            continue
        if not draft.minds_spread(job) or draft.is_tight(job, placement):
            continue
        loss, size = _loss(draft, row, job, placement), int(gpus[row])
        if loss > 0 and (size > table.largest or _fits_somewhere(draft, placement, size, widest)):
            yield row, loss


def _loss(draft: Draft, row: int, job: Job, placement: Placement) -> float:
    curve, kind = job.curve, int(draft.world.jobs.i("gpu_type")[row])
    fewest, nodes = draft.fewest_nodes(job, placement.size, kind), len(placement.nodes)
    factor = curve.spread(nodes, draft.room.table.racks(placement))
    if curve.across_nodes == 1.0 and nodes > fewest:
        factor *= draft.options.scattered
    return curve.spread(fewest, 1) - factor


def _fits_somewhere(draft: Draft, placement: Placement, size: int, widest: int) -> bool:
    """A quick look whether one node could take the whole job, before its GPUs are given back to try."""
    free, own = draft.room.layout.free, draft.room.masks(placement)
    return widest >= size or any(free[i].bit_count() + own[i].bit_count() >= size for i in own)


def _move_closer(draft: Draft, row: int) -> bool:
    jobs, room = draft.world.jobs, draft.room
    job, held = jobs.jobs[row], jobs.placements[row]
    if held is None:
        return False
    room.vacate(held, job)
    nodes = room.suited(job, int(jobs.i("gpu_type")[row]))
    placement = resettle(room, job, held, held.size, nodes)
    if placement is not None:
        worth = worth_of_move(draft, row, held, placement)
        if worth.pays:
            draft.moves[row] = Move(placement, Reason.CONSOLIDATED, evidence_of(worth.gain_s, worth.cost_s))
            return True
        room.vacate(placement, job)
    room.occupy(held, job)
    return False
