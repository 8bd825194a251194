"""The jobs that may be moved out of another one's way, by node."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from batuta.core.cluster import Placement
from batuta.core.job import Job
from batuta.core.job_table import Phase
from batuta.placement.draft import Draft
from batuta.placement.workers import NO_GPUS
from batuta.placement.worth import worth_of_move


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job that may be moved, and what that costs if it is as fast elsewhere."""

    row: int
    job: Job
    placement: Placement
    """Where it is, or where this cycle has put it."""
    held: Placement
    """Where its workers are now: nowhere if it has not started."""
    gpu_type: int
    cost_s: float


class Tenants:
    """Running jobs and those that this cycle places. Finding them looks at every job: only on need.

    Jobs with a share stay: two moves of shares seldom free a card.
    """

    __slots__ = ("_draft", "_kinds", "by_node", "placements")

    def __init__(self, draft: Draft) -> None:
        jobs, index = draft.world.jobs, draft.room.table.index
        self._draft = draft
        self._kinds = {target.row: target.gpu_type for target in draft.targets}
        self.placements = {
            row: placement for row, placement in draft.placements.items() if jobs.jobs[row].share is None
        }
        # A placer that does not weigh moves nobody who runs; the jobs of this cycle are not there yet.
        if draft.costs.enabled:
            for row in np.flatnonzero(jobs.i("phase") == int(Phase.RUNNING)).tolist():
                placement = jobs.placements[row]
                if placement is None or row in self._kinds or row in draft.moves or jobs.jobs[row].share:
                    continue
                self.placements[row] = placement
        self.by_node: dict[int, list[int]] = {}
        for row, placement in self.placements.items():
            for node in placement.nodes if len(placement.spans) > 1 else (placement.spans[0].node,):
                self.by_node.setdefault(index[node], []).append(row)

    def get(self, row: int) -> Tenant:
        jobs, placement = self._draft.world.jobs, self.placements[row]
        kind = self._kinds[row] if row in self._kinds else int(jobs.i("gpu_type")[row])
        cost_s = worth_of_move(self._draft, row, placement, placement).cost_s
        return Tenant(row, jobs.jobs[row], placement, jobs.placements[row] or NO_GPUS, kind, cost_s)

    def on(self, i: int, but: Container[int]) -> list[Tenant]:
        """Those on a node, except for some rows."""
        return [self.get(row) for row in self.by_node.get(i, ()) if row not in but]

    def inside(self, nodes: int, but: Container[int]) -> list[Tenant]:
        """Those that lie on these nodes with all their workers."""
        inside = {row for i, rows in self.by_node.items() if nodes >> i & 1 for row in rows}
        outside = {row for i, rows in self.by_node.items() if not nodes >> i & 1 for row in rows}
        return [self.get(row) for row in sorted(inside - outside) if row not in but]
