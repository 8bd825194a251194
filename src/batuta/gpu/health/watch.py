"""Looks after the health of GPUs: what is found goes into the book, and what the book orders is done.

The book decides (core/health.py); here are the threads that bring it news, keep it, and obey. Whatever
changes the book is durable before anything is done about it, and all that is done but restarts of jobs is
done from the book as it is: so this may be killed at any instant.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace

from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName, Span
from batuta.core.health_record import WHOLE_NODE, Alert, State, Target
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.health import events as health_events
from batuta.engine.health.seen import HealthSeen
from batuta.engine.requests import EngineStopped, Make
from batuta.gpu.health.asks import Asks
from batuta.gpu.health.care import Care
from batuta.gpu.health.jury import Jury
from batuta.gpu.health.memory import HealthMemory, Texts, recall
from batuta.gpu.health.sources import Sources

STEP_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Doors:
    """The ways to the engine."""

    ask: Callable[[Make], Future[Sequence[ev.Event]]]
    reading: Callable[[], AbstractContextManager[tuple[World, object]]]
    """The World, and whatever comes with it, as long as the block lasts."""


class HealthWatch:
    """The one owner of the book. What is public may be called from any thread.

    Its lock is taken before the engine's guard and never after it.
    """

    def __init__(
        self,
        rules: HealthRules,
        nodes: Sequence[Node],
        texts: Texts,
        doors: Doors,
        sources: Sources,
        care: Care,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._memory: HealthMemory = recall(texts, rules, nodes)
        self._texts, self._doors, self._sources, self._care = texts, doors, sources, care
        self._clock = clock
        self._lock = threading.RLock()
        self._suspicions: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._jury = Jury()
        self._told = health_events.told_of(self._memory.book)
        self._levelled: dict[health_events.GpuPlace, str] | None = None
        """What the engine was last told to have out of service; None: nothing yet."""
        self._trouble: dict[str, str] = {}
        """By what was tried: why that did not work lately."""
        self._asks = Asks(doors.ask)
        self._obeying = threading.Lock()
        """Around what is asked of the engine: the last word has to be the last."""
        self._wake, self._stop = threading.Event(), threading.Event()
        self._threads = (
            threading.Thread(target=self._listen_on, name="batuta-health", daemon=True),
            threading.Thread(target=self._tend_on, name="batuta-health-care", daemon=True),
        )

    def start(self) -> None:
        self._match_cordons()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10.0)
        with self._lock, self._told_of_trouble("saving"):
            # Figures that were only looked at: so that what comes meanwhile is new, and nothing else.
            self._memory.save(self._texts)
        self._care.close()
        self._sources.close()

    # ------------------------------------------------------------------------------------- for other threads

    def seen(self) -> HealthSeen:
        """How things are now."""
        with self._lock:
            book = self._memory.book
            alerts = tuple(order for order in book.standing() if isinstance(order, Alert))
            records = {target: book.look(target) for target in book.records}
            return HealthSeen(records, dict(book.cordons), alerts, dict(self._memory.found))

    def suspect(self, node: NodeName, job: JobId, why: str, gpu: int | None = None) -> None:
        """Somebody who watches a job thinks that a node, or a GPU of it, holds the job up.

        It takes no lock, so that the engine may say so in the middle of an event.
        """
        self._suspicions.put(Finding(self._clock(), node, Source.BEHAVIOUR, text=why, gpu=gpu, jobs=(job,)))
        self._wake.set()

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        """What was to be done is done: it has to prove itself now. A ValueError where nothing was to be."""
        figures = self._sources.look(at_once=True)
        with self._lock:
            book, target = self._memory.book, Target(node, WHOLE_NODE if gpu is None else gpu)
            record = book.records.get(target)
            if record is None or record.state is not State.ILL:
                ill = [str(one) for one in sorted(book.records) if book.records[one].state is State.ILL]
                raise ValueError(f"{target} is not ill{'; what is: ' + ', '.join(ill) if ill else ''}")
            # What is still wrong with it is for the burn-in to say: it is no new illness that comes after it.
            self._take(self._sources.figures(self._memory, figures, self._clock()))
            book.mended(target, self._clock(), who)
            self._keep()

    def cordoned(self, node: NodeName, who: str) -> None:
        """A human has cordoned a node."""
        with self._lock:
            self._memory.book.cordoned(node, who, self._clock())
            self._keep()

    def uncordoned(self, node: NodeName, who: str) -> None:
        """A human has uncordoned a node; where there was no cordon, the node is well by their word."""
        with self._lock:
            self._memory.book.uncordoned(node, who, self._clock())
            self._keep()

    def excuse(self, job: JobId, workers: Sequence[Span], since_s: float) -> str:
        """Why a job that has just failed is not to blame, or shall have another try; empty: it has failed.

        For the engine's thread, which knows of the end of a job before anybody has read what the driver said
        of it. `workers`: where its ranks ran, `since_s`: since when.
        """
        memory, sources = self._memory, self._sources
        with self._lock:
            with self._told_of_trouble("excusing"):
                self._take(
                    [*sources.kernel_log(memory), *sources.job_log(memory, job, workers, self._clock())]
                )
            return self._jury.excuse(job, since_s)

    # -------------------------------------------------------------------------------------------- its threads

    def _listen_on(self) -> None:
        with suppress(EngineStopped):
            while not self._stop.is_set():
                with self._told_of_trouble("listening"):
                    self.listen()
                self._wake.wait(STEP_S)
                self._wake.clear()

    def _tend_on(self) -> None:
        with suppress(EngineStopped):
            while not self._stop.wait(STEP_S):
                with self._told_of_trouble("tending"):
                    self.tend()

    @contextmanager
    def _told_of_trouble(self, what: str) -> Iterator[None]:
        """Nobody's job ends because a GPU could not be looked at. The same trouble is told once."""
        try:
            yield
            self._trouble.pop(what, None)
        except EngineStopped:
            raise
        except Exception as error:
            if self._trouble.get(what) != repr(error):
                self._trouble[what] = repr(error)
                _log.exception("the health of GPUs cannot be looked after")

    def listen(self) -> None:
        """Takes in what the log and others say, and has done what follows."""
        memory, sources = self._memory, self._sources
        with self._lock:
            now_s = self._clock()
            said = [self._suspicions.get_nowait() for _ in range(self._suspicions.qsize())]
            self._take([*sources.kernel_log(memory), *said])
            memory.book.passes(now_s, self._idle())
            self._keep_news()
            # Whatever was in the ledger up to here is in the book, and that is kept.
            sources.done(memory.last_note)
        self._obey()

    def tend(self) -> None:
        """Looks at the GPUs themselves, and treats those that are ill.

        A driver may think for minutes about a GPU that is lost. So it is asked without the lock, by a thread
        that nobody waits for: what the log says, and jobs that fail, come first.
        """
        memory, figures = self._memory, self._sources.look()
        with self._lock:
            orders = memory.book.standing()
        done = self._care.give(orders)
        with self._lock:
            now_s = self._clock()
            for one in done:
                one.tell(memory.book, now_s)
            self._take(self._sources.figures(memory, figures, now_s))
            self._keep_news()
        self._obey()

    def _match_cordons(self) -> None:
        """A server may have died between a cordon and the book's hearing of it."""
        with self._lock:
            with self._doors.reading() as (world, _):
                closed = {node.name for i, node in enumerate(world.nodes.nodes) if world.cordoned >> i & 1}
            cordons = self._memory.book.cordons
            for node in [node for node in cordons if node not in closed]:
                del cordons[node]
            for node in closed - cordons.keys():
                self._memory.book.cordoned(node, "", self._clock())

    def _take(self, findings: Sequence[Finding]) -> None:
        """Puts findings into the book, and keeps it. With the lock."""
        for finding in findings:
            self._jury.judge(self._memory, self._with_jobs(finding))
        if findings:
            self._keep()

    def _with_jobs(self, finding: Finding) -> Finding:
        """Whose work was hit: where nobody knows, that of all who are there."""
        if finding.jobs:
            return finding
        with self._doors.reading() as (world, _):
            return replace(finding, jobs=health_events.jobs_on(world, finding.node, finding.gpu))

    def _idle(self) -> set[Target]:
        """GPUs without a job, if anything waits for one to be so."""
        records = self._memory.book.records.values()
        if not any(one.state is State.SUSPECT and one.remedy.takes_out for one in records):
            return set()
        with self._doors.reading() as (world, _):
            return health_events.idle_gpus(world)

    def _keep_news(self) -> None:
        """Makes the book durable if there is anything in it that nobody was told of."""
        if health_events.told_of(self._memory.book) != self._told:
            self._keep()

    def _keep(self) -> None:
        """Makes the book durable. What follows from it is done afterwards, and soon."""
        self._memory.save(self._texts)
        self._wake.set()

    def _obey(self) -> None:
        """Has the engine bring the World to what the book says, and tells what has changed."""
        with self._obeying:
            self._ask()

    def _ask(self) -> None:
        with self._lock:
            now_s, book = self._clock(), self._memory.book
            out, told = health_events.gpus_out(book), health_events.told_of(book)
            news = health_events.news(self._told, told, now_s)
            has_failed, ordered = self._asks.settle(self._memory), self._asks.unasked(self._memory)
            if out == self._levelled and not (news or ordered or has_failed):
                return
            self._told, self._levelled = told, dict(out)
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

        self._asks.ask(make, ordered)
