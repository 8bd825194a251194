"""What is done about jobs that some of their ranks hold up: told, moved when that pays, restarted when hung.

Backends tell what they found; here it becomes requests to the engine, with the World before their eyes. The
job leaves its GPUs by the wish by which it also leaves a node that is drained, and gets others at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from batuta.core import event as ev
from batuta.core.cluster import NodeName
from batuta.core.held_up import CAUSE
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.reason import Evidence, Reason
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.requests import EngineStopped, Make
from batuta.engine.stragglers.hang_search import HangSearch
from batuta.engine.stragglers.rank_watch import HeldUp
from batuta.engine.stragglers.room import room_without, worth_of_leaving
from batuta.prediction.hang import Silence
from batuta.prediction.straggler import Straggle

AVOID_S = 3600.0
"""For so long a job is not placed on a node that held it up."""
TELL_AGAIN_S = 600.0
"""What has not changed is told no more often than this."""
_log = logging.getLogger(__name__)


class StragglerDesk:
    """For the engine's thread."""

    def __init__(
        self,
        ask: Callable[[Make], Future[Sequence[ev.Event]]],
        suspect: Callable[[NodeName, JobId, str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`suspect` is told of nodes that are to blame, with the job and why. It must not wait."""
        self._ask = ask
        self._suspect = suspect
        self._clock = clock
        self._search = HangSearch()
        self._told: dict[JobId, tuple[float, tuple[NodeName, ...]]] = {}
        self._last_hang: dict[JobId, ev.JobHeldUp] = {}
        self._moved: dict[JobId, frozenset[int]] = {}
        """By job: ranks because of which it has left a node. Who is slow elsewhere too has more work."""

    def found(self, found: HeldUp) -> None:
        """A backend has found something."""
        _log.info("job %s is held up: %s", found.job, found.found, extra={"job": found.job})
        with suppress(EngineStopped):
            self._ask(lambda world: self._answer(world, found))

    def after_step(self, world: World) -> None:
        """Sees whether jobs that once hung go on now, which tells who was to blame."""
        if not self._search.searched:
            return
        now_s = self._now_s(world)
        for job, lead in self._search.survivors(world, now_s).items():
            if lead.guilty:
                event = replace(
                    self._last_hang[job],
                    time_s=now_s,
                    nodes=tuple(sorted(lead.guilty)),
                    avoid=tuple(sorted(lead.avoid)),
                    until_s=now_s + AVOID_S,
                )
                with suppress(EngineStopped):
                    self._ask(lambda world, event=event: self._told_of(world, event))  # type: ignore[misc]

    # ------------------------------------------------------------------------------- in the engine's thread

    def _answer(self, world: World, found: HeldUp) -> Sequence[ev.Event]:
        """What follows at this moment; nothing if the job is elsewhere by now."""
        jobs = world.jobs
        if found.job not in jobs:
            return ()
        row = jobs.row(found.job)
        placement = jobs.placements[row]
        if placement is None or frozenset(placement.nodes) != found.gang:
            return ()
        if jobs.phase_of(row) is not Phase.RUNNING or jobs.wish_of(row) is not Wish.RUN:
            return ()
        if isinstance(found.found, Silence):
            return self._restart(world, row, found, found.found)
        return self._move(world, row, found, found.found)

    def _move(self, world: World, row: int, found: HeldUp, slow: Straggle) -> Sequence[ev.Event]:
        """Tells of a straggler; the job leaves its node if there is another place and that pays."""
        now_s, held = self._now_s(world), world.jobs.placements[row]
        assert held is not None
        worth = worth_of_leaving(world, row, slow)
        reason = Reason.STRAGGLER if slow.is_clear else Reason.UNEVEN_RANKS
        numbers = (*_numbers(slow), ("gain_s", worth.gain_s), ("cost_s", worth.cost_s))
        moved = self._moved.get(found.job, frozenset())
        blamed = () if moved & set(slow.ranks) else found.nodes
        event = ev.JobHeldUp(now_s, found.job, reason, numbers, slow.ranks, blamed)
        goes = bool(blamed) and found.may_move and worth.pays
        if goes and room_without(world, row, blamed) >= held.size:
            self._moved[found.job] = moved | set(slow.ranks)
            event = replace(event, avoid=blamed, until_s=now_s + AVOID_S)
            return (*self._told_of(world, event), ev.JobWished(now_s, found.job, Wish.EVICT, CAUSE))
        told_s, nodes = self._told.get(found.job, (-TELL_AGAIN_S, ()))
        if nodes == blamed and now_s < told_s + TELL_AGAIN_S:
            return ()
        return self._told_of(world, event)

    def _restart(self, world: World, row: int, found: HeldUp, silence: Silence) -> Sequence[ev.Event]:
        """A job that hangs is restarted, without the nodes that are to blame where it can do without."""
        jobs, now_s = world.jobs, self._now_s(world)
        held = jobs.placements[row]
        assert held is not None
        nodes, avoid, least = found.nodes, frozenset(found.nodes), jobs.jobs[row].min
        if not nodes:
            ran_s = now_s - silence.silent_s - float(jobs.f("last_start_s")[row])
            lead = self._search.hung(found.job, found.gang, max(0.0, ran_s))
            nodes, avoid = tuple(sorted(lead.guilty)), lead.avoid
            # On a mere suspicion nobody is made smaller.
            least = jobs.jobs[row].min if nodes else held.size
        if room_without(world, row, avoid) < least:
            avoid = frozenset()
        numbers: Evidence = (
            ("silent_s", silence.silent_s),
            ("usual_s", silence.usual_s),
            ("ranks", silence.of),
        )
        event = ev.JobHeldUp(
            now_s,
            found.job,
            Reason.HANG,
            numbers,
            silence.ranks,
            nodes,
            tuple(sorted(avoid)),
            now_s + AVOID_S if avoid else 0.0,
        )
        self._last_hang[found.job] = event
        return (*self._told_of(world, event), ev.JobWished(now_s, found.job, Wish.EVICT, CAUSE))

    def _told_of(self, world: World, event: ev.JobHeldUp) -> Sequence[ev.Event]:
        if event.job not in world.jobs:
            return ()
        self._told = {job: one for job, one in self._told.items() if job in world.jobs}
        self._last_hang = {job: one for job, one in self._last_hang.items() if job in world.jobs}
        self._moved = {job: one for job, one in self._moved.items() if job in world.jobs}
        self._told[event.job] = event.time_s, event.nodes
        kind = "hang" if event.reason is Reason.HANG else "straggler"
        why = f"{kind}: job {event.job} {event.reason.sentence(event.evidence)}"
        for node in event.nodes:
            self._suspect(node, event.job, why)
        return (event,)

    def _now_s(self, world: World) -> float:
        """Time never goes back in the journal, whatever somebody does to the clock."""
        return max(self._clock(), world.now_s)


def _numbers(slow: Straggle) -> Evidence:
    return (
        ("rank", slow.ranks[0]),
        ("ranks", slow.of),
        ("slow", len(slow.ranks)),
        ("slowdown", slow.slowdown),
        ("own_s", slow.own_s),
        ("usual_s", slow.usual_s),
        ("steps", slow.steps),
    )
