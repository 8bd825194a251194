"""Looks for the node that makes a job hang, where nobody can see it: by what becomes of its restarts.

The job itself is the probe. It has to be restarted anyway, it is what hangs, and it goes on with its work
while it is tried out; a test on idle nodes would need all of them at once and might not hang at all. Each
restart leaves half of the suspects out, if there is room for that. What is known is lost with the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.world import World
from batuta.prediction.bisect_gang import Guilty, Tried, TryNext, find_guilty

MOST_TRIED = 64
PATIENCE = 2.0
"""A run that goes on for so many times the longest that it took to hang does not hang; …"""
LEAST_S = 60.0
"""… but nobody is cleared in less than this."""


@dataclass(frozen=True, slots=True)
class Lead:
    """What follows from all that was tried."""

    guilty: frozenset[NodeName] = frozenset()
    avoid: frozenset[NodeName] = frozenset()
    """What the next run should do without."""


@dataclass(slots=True)
class _Search:
    tried: list[Tried] = field(default_factory=list)
    longest_s: float = 0.0
    """It took to hang."""
    judged_s: float = -1.0
    """The start of the run that was judged last."""


class HangSearch:
    """Of all jobs that have hung without anybody to blame. For the engine's thread."""

    def __init__(self) -> None:
        self._searches: dict[JobId, _Search] = {}

    @property
    def searched(self) -> Mapping[JobId, object]:
        """The jobs that it is about."""
        return self._searches

    def hung(self, job: JobId, nodes: frozenset[NodeName], ran_s: float) -> Lead:
        """A job has hung on these nodes so long after its start."""
        search = self._searches.setdefault(job, _Search())
        search.longest_s = max(search.longest_s, ran_s)
        return _lead(search, Tried(nodes, hung=True))

    def survivors(self, world: World, now_s: float) -> dict[JobId, Lead]:
        """Jobs that have gone on for long enough in their present run, each told once; others are dropped."""
        found: dict[JobId, Lead] = {}
        for job, search in list(self._searches.items()):
            if job not in world.jobs:
                del self._searches[job]
                continue
            row = world.jobs.row(job)
            placement, began_s = world.jobs.placements[row], float(world.jobs.f("last_start_s")[row])
            if placement is None or world.jobs.phase_of(row) is not Phase.RUNNING:
                continue
            if began_s > search.judged_s and now_s - began_s > max(LEAST_S, PATIENCE * search.longest_s):
                search.judged_s = began_s
                found[job] = _lead(search, Tried(frozenset(placement.nodes), hung=False))
        return found


def _lead(search: _Search, tried: Tried) -> Lead:
    search.tried = [*search.tried[1 - MOST_TRIED :], tried]
    if not any(one.hung for one in search.tried):
        return Lead()
    finding = find_guilty(search.tried)
    if isinstance(finding, Guilty):
        # Of two that only hang together it is enough to leave one out.
        return Lead(finding.nodes, frozenset(sorted(finding.nodes)[:1]))
    if isinstance(finding, TryNext):
        suspects = frozenset.intersection(*(one.nodes for one in search.tried if one.hung))
        return Lead(avoid=suspects - finding.nodes)
    # What was seen contradicts itself: it begins anew with what was seen last.
    search.tried = [tried] if tried.hung else []
    return Lead()
