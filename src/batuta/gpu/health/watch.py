"""Watch the health of GPUs: put findings into the health state machine and carry out its orders.

The state machine (core/health.py) decides; the threads here bring it findings, store it, and act. A change of
its state is durable before anything is done about it, and everything but job restarts is derived from the
state as it is: so the watch may be killed at any instant.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName, Span
from batuta.core.health_record import WHOLE_NODE, Alert, State, Target
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine import health as health_events
from batuta.engine.fence import Fence, FencedThread
from batuta.engine.health import HealthSeen
from batuta.engine.ports import Settings
from batuta.engine.requests import RequestFn
from batuta.gpu.health.findings import FindingSources
from batuta.gpu.health.repair import RepairWorker
from batuta.gpu.health.state import EngineRequests, FailureAttribution, HealthState, load_state

STEP_S = 1.0
FINDINGS, REPAIRS = "GPU health", "repair of GPUs"
"""The two parts that may fail on their own: to collect and store findings; to read metrics and to repair."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """How the health watch reads and changes the engine."""

    ask: Callable[[RequestFn], Future[Sequence[ev.Event]]]
    reading: Callable[[], AbstractContextManager[tuple[World, object]]]
    """Gives the World, and what comes with it, as long as the block lasts."""
    fence: Fence = field(default_factory=Fence)
    """Contains errors of the watch: no job ends because a GPU could not be read."""


class HealthWatch:
    """The one owner of the health state. Public methods may be called from any thread.

    Its lock is taken before the engine's guard and never after it.
    """

    def __init__(
        self,
        rules: HealthRules,
        nodes: Sequence[Node],
        store: Settings,
        engine: EngineAccess,
        sources: FindingSources,
        repair: RepairWorker,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state: HealthState = load_state(store, rules, nodes)
        self._store, self._engine, self._sources, self._repair = store, engine, sources, repair
        self._clock = clock
        self._lock = threading.RLock()
        self._suspicions: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._attribution = FailureAttribution()
        self._reported = health_events.told_of(self._state.machine)
        self._applied: dict[health_events.GpuPlace, str] | None = None
        """The GPUs that the engine was last asked to take out of service; None: nothing yet."""
        self._requests = EngineRequests(engine.ask)
        self._acting = threading.Lock()  # around requests to the engine: the newest state has to arrive last
        self._wake, self._stop = threading.Event(), threading.Event()
        self._fence = engine.fence
        self._threads: tuple[FencedThread, ...] = ()

    def start(self) -> None:
        self._match_cordons()
        self._threads = (self._fence.start(FINDINGS, self._collect_loop), self._fence.start(REPAIRS, self._repair_loop))

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(10.0)
        with self._lock, self._fence.around(FINDINGS):
            # With the latest metrics: after the next start only a change from them is new.
            self._state.save(self._store)
        self._repair.close()
        self._sources.close()

    def seen(self) -> HealthSeen:
        with self._lock:
            machine = self._state.machine
            alerts = tuple(order for order in machine.standing() if isinstance(order, Alert))
            records = {target: machine.look(target) for target in machine.records}
            return HealthSeen(records, dict(machine.cordons), alerts, dict(self._state.found))

    def suspect(self, node: NodeName, job: JobId, why: str, gpu: int | None = None) -> None:
        """Note the suspicion that a node, or a GPU of it, slows a job down.

        It takes no lock, so that the engine may call it in the middle of an event.
        """
        is_hearsay = not self._sources.believes_jobs
        found = Finding(self._clock(), node, Source.BEHAVIOUR, text=why, gpu=gpu, jobs=(job,), is_hearsay=is_hearsay)
        self._suspicions.put(found)
        self._wake.set()

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        """Note that a repair is done: a burn-in follows. Raise ValueError if none was due."""
        figures = self._sources.look(at_once=True)
        with self._lock:
            machine, target = self._state.machine, Target(node, WHOLE_NODE if gpu is None else gpu)
            record = machine.records.get(target)
            if record is None or record.state is not State.ILL:
                ill = [str(one) for one in sorted(machine.records) if machine.records[one].state is State.ILL]
                raise ValueError(f"{target} is not ill{'; what is: ' + ', '.join(ill) if ill else ''}")
            # Faults that are still there are for the burn-in to find: they do not count as new ones.
            self._add(self._sources.figures(self._state, figures, self._clock()))
            machine.mended(target, self._clock(), who)
            self._save()

    def cordoned(self, node: NodeName, who: str) -> None:
        with self._lock:
            self._state.machine.cordoned(node, who, self._clock())
            self._save()

    def uncordoned(self, node: NodeName, who: str) -> None:
        """Note that a user has uncordoned a node; without a cordon, the user declares the node healthy."""
        with self._lock:
            self._state.machine.uncordoned(node, who, self._clock())
            self._save()

    def excuse(self, job: JobId, workers: Sequence[Span], since_s: float) -> str:
        """Return why a job that has just failed may run again, or an empty text if the failure is its own.

        For the engine's thread, which sees the end of a job before the driver's messages about it are read.
        `workers`: where its ranks ran; `since_s`: since when.
        """
        state, sources = self._state, self._sources
        with self._lock:
            with self._fence.around(FINDINGS):
                self._add([*sources.kernel_log(state), *sources.job_log(state, job, workers, self._clock())])
            return self._attribution.excuse(job, since_s)

    def _collect_loop(self) -> None:
        while not self._stop.is_set():
            with self._fence.around(FINDINGS):
                self.collect()
            self._wake.wait(STEP_S)
            self._wake.clear()

    def _repair_loop(self) -> None:
        while not self._stop.wait(STEP_S):
            with self._fence.around(REPAIRS):
                self.repair()

    def collect(self) -> None:
        """Add the findings of the kernel log and the suspicions, and act on them."""
        state, sources = self._state, self._sources
        with self._lock:
            now_s = self._clock()
            suspicions = [self._suspicions.get_nowait() for _ in range(self._suspicions.qsize())]
            self._add([*sources.kernel_log(state), *suspicions])
            state.machine.passes(now_s, self._idle())
            self._save_changes()
            # The queued lines up to here are in the state, and that is stored.
            sources.done(state.last_note)
        with self._acting:
            self._act()

    def repair(self) -> None:
        """Read the metrics of the GPUs, and repair those that are out of service.

        A driver may take minutes to answer for a GPU that is lost. So it is asked without the lock, in a
        thread that no other waits for: the kernel log and failed jobs come first.
        """
        state, figures = self._state, self._sources.look()
        with self._lock:
            orders = state.machine.standing()
        results = self._repair.work(orders)
        with self._lock:
            now_s = self._clock()
            for result in results:
                result(state.machine, now_s)
            self._add(self._sources.figures(state, figures, now_s))
            self._save_changes()
        with self._acting:
            self._act()

    def _match_cordons(self) -> None:
        """Take over the World's cordons: the server may have died before they were noted."""
        with self._lock:
            with self._engine.reading() as (world, _):
                closed = {node.name for i, node in enumerate(world.nodes.nodes) if world.cordoned >> i & 1}
            cordons = self._state.machine.cordons
            for node in [node for node in cordons if node not in closed]:
                del cordons[node]
            for node in closed - cordons.keys():
                self._state.machine.cordoned(node, "", self._clock())

    def _add(self, findings: Sequence[Finding]) -> None:
        """Add findings to the state, and store it. With the lock."""
        for finding in findings:
            self._attribution.record(self._state, self._with_jobs(finding))
        if findings:
            self._save()

    def _with_jobs(self, finding: Finding) -> Finding:
        """Return a finding with the jobs that it hit: all jobs on the GPU where none is named."""
        if finding.jobs:
            return finding
        with self._engine.reading() as (world, _):
            return replace(finding, jobs=health_events.jobs_on(world, finding.node, finding.gpu))

    def _idle(self) -> set[Target]:
        """Return the GPUs without a job, if an order waits for a GPU to be idle."""
        records = self._state.machine.records.values()
        if not any(one.state is State.SUSPECT and one.remedy.takes_out for one in records):
            return set()
        with self._engine.reading() as (world, _):
            return health_events.idle_gpus(world)

    def _save_changes(self) -> None:
        """Store the state if it differs from what was reported to the engine."""
        if health_events.told_of(self._state.machine) != self._reported:
            self._save()

    def _save(self) -> None:
        """Store the state, and wake the thread that acts on it."""
        self._state.save(self._store)
        self._wake.set()

    def _act(self) -> None:
        """Ask the engine to bring the World to the health state, and report what has changed. With `_acting`."""
        with self._lock:
            now_s, machine = self._clock(), self._state.machine
            out, current = health_events.gpus_out(machine), health_events.told_of(machine)
            news = health_events.news(self._reported, current, now_s)
            has_failed, ordered = self._requests.settle(self._state), self._requests.unsent(self._state)
            if out == self._applied and not (news or ordered or has_failed):
                return
            self._reported, self._applied = current, dict(out)
        for event in news:
            target = Target(event.node, WHOLE_NODE if event.gpu is None else event.gpu)
            _log.warning("%s: %s%s", target, event.state, f" ({event.reason})" if event.reason else "")

        def make(world: World) -> Sequence[ev.Event]:
            at_s = max(now_s, world.now_s)
            return [
                *(replace(event, time_s=at_s) for event in news),
                *health_events.levelling(world, out, at_s),
                *health_events.restarts(world, ordered, at_s),
            ]

        self._requests.ask(make, ordered)
