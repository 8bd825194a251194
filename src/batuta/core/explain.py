"""Step 5 of a cycle: one typed reason with numbers for every job."""

from __future__ import annotations

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.allocate import Allocation
from batuta.core.arrays import IntArray, mask_of
from batuta.core.cluster import Placement
from batuta.core.cpu_only import explain_cpu_only
from batuta.core.eligibility import held, unsaved_rows, why_held
from batuta.core.holdings import masks_of, without
from batuta.core.job import Spread
from batuta.core.job_table import Phase
from batuta.core.node_table import Reach
from batuta.core.placer import Placed
from batuta.core.plan import Decisions
from batuta.core.reason import Evidence, Reason
from batuta.core.weigh import Changes
from batuta.core.world import World

_LIMITS = (Reason.QUOTA_REACHED, Reason.QUEUE_HELD, Reason.RESIZE_BACKOFF)
"""Refusals that say why a job with GPUs does not have more."""


def explain(
    world: World,
    now_s: float,
    allocation: Allocation,
    admitted: Admitted,
    placed: Placed,
    changes: Changes,
    steady: bool,
) -> Decisions:
    """Why each job has what it will have; `steady` policies leave jobs alone that were just changed.

    Most reasons follow from a few columns, which are kept; only rows with a story of their own cost a step.
    """
    jobs, layout = world.jobs, placed.layout
    gpus, _, asked, low, high = jobs.outlook()
    for row, placement in changes.after.items():
        gpus[row] = 0 if placement is None else placement.size
    special: dict[int, tuple[Reason, Evidence]] = {
        row: (Reason.CHANGE_DOES_NOT_PAY, evidence) for row, evidence in changes.dropped.items()
    }
    for row, failure in placed.failures.items():
        if gpus[row] < high[row]:
            special[row] = (failure.reason, failure.evidence)
    kind = allocation.gpu_type
    if allocation.reach is not None:
        special |= _beyond_reach(world, allocation.reach, gpus, low, kind)
    if admitted.cap is not None:
        # A refusal is the reason only for who has all that it was admitted to; others wait for GPUs.
        special.update(
            (row, refusal)
            for row, refusal in (admitted.refused or {}).items()
            if admitted.cap[row] <= gpus[row] < high[row] and (gpus[row] == 0 or refusal[0] in _LIMITS)
        )
    if steady and layout.total_free and jobs.elastic:
        still = held(world, now_s) & (gpus == jobs.held) & (gpus < high)
        special.update(
            (row, (Reason.SETTLING, why_held(world, row, now_s)))
            for row in np.flatnonzero(still).tolist()
            if row not in special
        )
    if jobs.unsaved:
        kept = unsaved_rows(jobs, admitted.cap)
        special.update((row, (Reason.KEEPS_SIZE, ())) for row in kept[gpus[kept] < high[kept]].tolist())
    special |= _waiting_for_release(world, changes)
    special.update((row, why) for row, why in admitted.idle.items() if gpus[row] or why[0] is Reason.PARKED_IDLE)
    if jobs.cpu_only:
        special |= explain_cpu_only(world, admitted, placed, changes)
        gpus = np.where(jobs.is_cpu_only, 0, gpus)
    return Decisions(
        ids=tuple(jobs.ids),
        gpus=gpus,
        moving=jobs.in_motion(),
        asked=asked,
        low=low,
        high=high,
        kind=kind,
        capacity=tuple(allocation.capacity),
        free=tuple(layout.free_gpus(own & layout.usable) for own in world.nodes.by_type),
        special=special,
    )


def _waiting_for_release(world: World, changes: Changes) -> dict[int, tuple[Reason, Evidence]]:
    """Why jobs that start do not run yet: other jobs, which make room for them, are still on their GPUs."""
    jobs = world.jobs
    left = [masks_of(placement) for placement in world.leaving.values()]
    starts: dict[int, Placement] = {}
    for row, after in changes.after.items():
        before, job = jobs.placements[row], jobs.jobs[row]
        if before is None and after is not None:
            starts[row] = after
        elif before is not None and not job.cpu_only and job.share is None:
            left.append(masks_of(before if after is None else without(before, masks_of(after))))
    if not left:
        return {}
    for row in np.flatnonzero(jobs.phase == Phase.STARTING).tolist():
        placement = jobs.placements[row]
        if placement is not None and row not in changes.after:
            starts[row] = placement
    busy: dict[str, int] = {}
    for masks in left:
        for node, mask in masks.items():
            busy[node] = busy.get(node, 0) | mask
    return {
        row: (Reason.WAITING_FOR_RELEASE, ())
        for row, placement in starts.items()
        if any(mask_of(gpus) & busy.get(node, 0) for node, gpus in placement.spans)
    }


def _beyond_reach(
    world: World, reach: Reach, gpus: IntArray, low: IntArray, kind: IntArray | None
) -> dict[int, tuple[Reason, Evidence]]:
    """Why jobs could not run even if they were alone. A thousand that want the same are looked at once."""
    rows, most = reach
    out = (gpus[rows] == 0) & (most < low[rows])
    known: dict[tuple[int, int, int], tuple[Reason, Evidence]] = {}
    found: dict[int, tuple[Reason, Evidence]] = {}
    for row, best in zip(rows[out].tolist(), most[out].tolist(), strict=True):
        of_type = 0 if kind is None else int(kind[row])
        # Jobs with equal wishes share the list of what they could have.
        alike = id(world.most_for(row)), of_type, world.jobs.jobs[row].min
        if alike not in known:
            known[alike] = _why_beyond_reach(world, row, of_type, best)
        found[row] = known[alike]
    return found


def _why_beyond_reach(world: World, row: int, kind: int, most: int) -> tuple[Reason, Evidence]:
    """Why a job could not run even if it were alone."""
    job, nodes = world.jobs.jobs[row], world.nodes
    if not nodes.by_type[kind] & nodes.matching(job):
        return Reason.NO_MATCHING_NODE, ()
    if job.topology.single_numa or (job.topology.required and job.topology.within is not Spread.ANY):
        return Reason.TOPOLOGY_UNMET, (("needs", job.min), ("best", most))
    return Reason.EXCEEDS_CLUSTER, (("needs", job.min), ("capacity", most))
