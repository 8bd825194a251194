"""Step 5 of a cycle: one typed reason with numbers for every job."""

from __future__ import annotations

from batuta.core.admission import Admitted
from batuta.core.allocate import Allocation
from batuta.core.changes import Changes
from batuta.core.placer import Placed
from batuta.core.plan import Decisions
from batuta.core.reason import Evidence, Reason
from batuta.core.world import World


def explain(
    world: World, allocation: Allocation, admitted: Admitted, placed: Placed, changes: Changes
) -> Decisions:
    """Why each job has what it will have.

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
    special.update(
        (row, refusal)
        for row, refusal in (admitted.refused or {}).items()
        if gpus[row] < high[row] and (gpus[row] == 0 or refusal[0] is Reason.QUOTA_REACHED)
    )
    return Decisions(
        ids=tuple(jobs.ids),
        gpus=gpus,
        moving=jobs.in_motion(),
        asked=asked,
        low=low,
        high=high,
        kind=allocation.gpu_type if len(allocation.capacity) > 1 or jobs.picky else None,
        capacity=tuple(allocation.capacity),
        free=tuple(layout.free_gpus(own & layout.usable) for own in world.nodes.by_type),
        special=special,
    )
