"""What is done about jobs that some of their ranks hold up: told, moved when that pays, restarted when hung.

Backends report; here it becomes requests to the engine, made on the World of that moment. The job leaves
its GPUs by the desired state by which it also leaves a node that is drained, and gets others at once.

Which node makes a job hang is found by what becomes of its restarts. The job itself is the probe: it has to
be restarted anyway, it is what hangs, and it goes on with its work meanwhile; a test on idle nodes would
need all of them at once and might not hang at all. Each restart leaves half of the suspects out, if there
is room for that. What is known is lost with the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from batuta.core import event as ev
from batuta.core.arrays import bits
from batuta.core.cluster import NodeName
from batuta.core.job import NO_RESTART_S, DesiredState, JobId
from batuta.core.job_table import Phase
from batuta.core.node_table import NO_TYPE
from batuta.core.reason import Evidence, Reason
from batuta.core.weigh import Costs, Worth, worth_of_change
from batuta.core.world import ExcludedNodes, World
from batuta.engine.requests import EngineStopped, RequestFn
from batuta.engine.stragglers.rank_watch import HeldUp
from batuta.prediction.hang import FaultyNodes, GangTest, HangReport, NodesToTest, find_faulty_nodes
from batuta.prediction.straggler import StragglerReport

MOST_TRIED = 64
PATIENCE = 2.0
"""A run that goes on for so many times the longest that it took to hang does not hang; …"""
LEAST_S = 60.0
"""… but no rank is cleared in less than this."""


@dataclass(frozen=True, slots=True)
class Lead:
    """What follows from all that was tried."""

    guilty: frozenset[NodeName] = frozenset()
    avoid: frozenset[NodeName] = frozenset()
    """What the next run should do without."""


@dataclass(slots=True)
class _Search:
    tried: list[GangTest] = field(default_factory=list)
    longest_s: float = 0.0
    """It took to hang."""
    judged_s: float = -1.0
    """The start of the run that was judged last."""


class HangSearch:
    """Of all jobs that have hung without a rank, GPU or node at fault. For the engine's thread."""

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
        return _lead(search, GangTest(nodes, hung=True))

    def survivors(self, world: World, now_s: float) -> dict[JobId, Lead]:
        """Jobs that have gone on for long enough in their present run, each told once; others are dropped."""
        found: dict[JobId, Lead] = {}
        for job, search in list(self._searches.items()):
            if job not in world.jobs:
                del self._searches[job]
                continue
            row = world.jobs.row(job)
            placement, began_s = world.jobs.placements[row], float(world.jobs.last_start_s[row])
            if placement is None or world.jobs.phase_of(row) is not Phase.RUNNING:
                continue
            if began_s > search.judged_s and now_s - began_s > max(LEAST_S, PATIENCE * search.longest_s):
                search.judged_s = began_s
                found[job] = _lead(search, GangTest(frozenset(placement.nodes), hung=False))
        return found


def _lead(search: _Search, tried: GangTest) -> Lead:
    search.tried = [*search.tried[1 - MOST_TRIED :], tried]
    if not any(one.hung for one in search.tried):
        return Lead()
    finding = find_faulty_nodes(search.tried)
    if isinstance(finding, FaultyNodes):
        # Of two that only hang together it is enough to leave one out.
        return Lead(finding.nodes, frozenset(sorted(finding.nodes)[:1]))
    if isinstance(finding, NodesToTest):
        suspects = frozenset.intersection(*(one.nodes for one in search.tried if one.hung))
        return Lead(avoid=suspects - finding.nodes)
    # What was seen contradicts itself: it begins anew with what was seen last.
    search.tried = [tried] if tried.hung else []
    return Lead()


_NEVER = Worth((0.0, float("inf")))


def room_without(world: World, row: int, nodes: Iterable[NodeName]) -> int:
    """How many GPUs of one type a job could have now on other nodes, if it left all that it has.

    None for a CPU-only job: it is told where it is slow, and stays.
    """
    jobs, layout, table = world.jobs, world.layout, world.nodes
    job, held = jobs.jobs[row], jobs.placements[row]
    if job.cpu_only:
        return 0
    avoided = world.avoided.get(job.id, ExcludedNodes(0, 0.0)).nodes
    for name in nodes:
        avoided |= 1 << table.index.get(name, len(table.nodes))
    own = {} if held is None else held.counts()
    found = [0] * len(table.types)
    for i in bits(layout.usable & table.matching(job) & ~avoided):
        if table.type_of[i] == NO_TYPE:
            continue
        free = layout.free[i].bit_count() + own.get(table.nodes[i].name, 0)
        found[table.type_of[i]] += free - free % job.gpus_per_replica
    return max(found, default=0)


def worth_of_leaving(world: World, row: int, found: StragglerReport, costs: Costs = Costs()) -> Worth:  # noqa: B008
    """What a job gains when its slow ranks become as fast as most, and what a restart costs.

    A step takes as long as the slowest needs for its part, and what all do together after that.
    """
    jobs, job = world.jobs, world.jobs.jobs[row]
    speed, restart_s = float(jobs.rate[row]), float(jobs.restart_s[row])
    if speed <= 0 or restart_s >= NO_RESTART_S or job.id in jobs.unsaved:
        return _NEVER
    progress = world.progress.get(job.id)
    step_s = max(found.own_s, (progress.step_s if progress is not None else None) or 0.0)
    faster = speed * step_s / (step_s - (found.own_s - found.usual_s))
    lost_s = speed * (job.checkpoint_interval_s or 0.0) / 2
    return worth_of_change(speed, faster, float(jobs.remaining_s[row]), restart_s, lost_s, costs)


AVOID_S = 3600.0
"""For so long a job is not placed on a node that held it up."""
TELL_AGAIN_S = 600.0
"""What has not changed is told no more often than this."""
_log = logging.getLogger(__name__)


class StragglerController:
    """For the engine's thread."""

    def __init__(
        self,
        ask: Callable[[RequestFn], Future[Sequence[ev.Event]]],
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
        if jobs.phase_of(row) is not Phase.RUNNING or jobs.wish_of(row) is not DesiredState.RUN:
            return ()
        if isinstance(found.found, HangReport):
            return self._restart(world, row, found, found.found)
        return self._move(world, row, found, found.found)

    def _move(self, world: World, row: int, found: HeldUp, slow: StragglerReport) -> Sequence[ev.Event]:
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
        if goes and room_without(world, row, blamed) >= held.units:
            self._moved[found.job] = moved | set(slow.ranks)
            event = replace(event, avoid=blamed, until_s=now_s + AVOID_S)
            return (
                *self._told_of(world, event),
                ev.JobWished(now_s, found.job, DesiredState.EVICT, ev.HELD_UP_CAUSE),
            )
        told_s, nodes = self._told.get(found.job, (-TELL_AGAIN_S, ()))
        if nodes == blamed and now_s < told_s + TELL_AGAIN_S:
            return ()
        return self._told_of(world, event)

    def _restart(self, world: World, row: int, found: HeldUp, silence: HangReport) -> Sequence[ev.Event]:
        """A job that hangs is restarted, without the nodes that are to blame where it can do without."""
        jobs, now_s = world.jobs, self._now_s(world)
        held = jobs.placements[row]
        assert held is not None
        nodes, avoid, least = found.nodes, frozenset(found.nodes), jobs.jobs[row].min
        if not nodes:
            ran_s = now_s - silence.silent_s - float(jobs.last_start_s[row])
            lead = self._search.hung(found.job, found.gang, max(0.0, ran_s))
            nodes, avoid = tuple(sorted(lead.guilty)), lead.avoid
            # On a mere suspicion no job is made smaller.
            least = jobs.jobs[row].min if nodes else held.units
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
        return (
            *self._told_of(world, event),
            ev.JobWished(now_s, found.job, DesiredState.EVICT, ev.HELD_UP_CAUSE),
        )

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
        """Time never goes back in the journal, whatever happens to the clock."""
        return max(self._clock(), world.now_s)


def _numbers(slow: StragglerReport) -> Evidence:
    return (
        ("rank", slow.ranks[0]),
        ("ranks", slow.of),
        ("slow", len(slow.ranks)),
        ("slowdown", slow.slowdown),
        ("own_s", slow.own_s),
        ("usual_s", slow.usual_s),
        ("steps", slow.steps),
    )
