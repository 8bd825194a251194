"""What a move gains and costs: both sides of every migration, in the seconds that `core.weigh` counts in."""

from __future__ import annotations

from batuta.core.changes import lost_work_s
from batuta.core.cluster import Placement
from batuta.core.reason import Evidence
from batuta.core.weigh import Worth, worth_of_change
from batuta.placement.draft import Draft


def worth_of_move(draft: Draft, row: int, before: Placement, after: Placement) -> Worth:
    """Moving a job. One that starts or is resized in this cycle restarts anyway: only its speed counts."""
    job = draft.world.jobs.jobs[row]
    speeds = draft.speed(job, before), draft.speed(job, after)
    if row in draft.placements:
        return Worth((_worth(draft, row, *speeds, 0.0).gain_s, 0.0))
    return _worth(draft, row, *speeds, lost_work_s(draft.world, row, draft.now_s))


def gain_of_place(draft: Draft, row: int, without: float, after: Placement) -> float:
    """What a place is worth to a job that would run at the speed `without` if it did not get it."""
    return _worth(draft, row, without, draft.speed(draft.world.jobs.jobs[row], after), 0.0).gain_s


def evidence_of(gain_s: float, cost_s: float) -> Evidence:
    return (("gain_s", gain_s), ("cost_s", cost_s))


def _worth(draft: Draft, row: int, before: float, after: float, lost_s: float) -> Worth:
    jobs = draft.world.jobs
    elapsed_s = draft.now_s - float(jobs.f("anchor_s")[row])
    remaining_s = max(0.0, float(jobs.f("remaining_s")[row]) - float(jobs.f("rate")[row]) * elapsed_s)
    return worth_of_change(before, after, remaining_s, float(jobs.f("restart_s")[row]), lost_s, draft.costs)
