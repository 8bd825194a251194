"""Assembles what decides on a live cluster: recovery, journal, history, observers, retention, maintenance.

The local server and the operator are this assembly with a backend each. They differ in what they record at
their start and in whom they tell, never in how an engine is put together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from batuta.core import event as ev
from batuta.core.decide import SchedulerProfile
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.history import History
from batuta.engine.journal import JournaledWorld
from batuta.engine.loop import Engine, Live
from batuta.engine.observed_time import ObservedTime
from batuta.engine.observers import Observer, Observers
from batuta.engine.ports import Journal, LiveBackend, RecoveredWorld, Settings
from batuta.engine.profile import live_cadence
from batuta.engine.requests import Requests
from batuta.engine.retention import Keep, Retention
from batuta.engine.service import RetryingJournal, Service
from batuta.engine.shadow import Shadow


class Maintenance(Protocol):
    """Snapshots of the World and removal of old events."""

    def after_step(self, world: World) -> None: ...

    def finish(self, world: World) -> None: ...


class StateStore(Protocol):
    """All that is durable."""

    @property
    def journal(self) -> Journal: ...

    @property
    def settings(self) -> Settings: ...

    def recover(self) -> RecoveredWorld: ...

    def maintenance(self, recovered: RecoveredWorld, fence: Fence, time: ObservedTime) -> Maintenance: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class AssemblyOptions:
    """What the user chose of the engine."""

    profile_of: Callable[[str], SchedulerProfile]  # returns the profile of a policy as this server applies it
    default_policy: str
    policy: str = ""  # recorded at the start; empty: the one that the journal has
    shadow: str = ""  # a second policy, which only watches
    keep: Keep = field(default_factory=Keep)  # how long jobs that are over are kept
    policy_by: str | None = None  # who chose the policy that is recorded, where that is known


class Assembly:
    """An engine with all that is around it.

    It recovers the World; `start` records what this start was told; `attach` names the backend, which may
    need both; `build` puts the engine together. Nothing runs before the service is started.
    """

    service: Service  # from `build` on

    def __init__(self, store: StateStore, options: AssemblyOptions) -> None:
        self.fence = Fence()
        self.recovered = store.recover()
        self.world = self.recovered.world
        self._store, self._options = store, options
        self._journal = RetryingJournal(store.journal)
        self._state = JournaledWorld(self.world, self._journal)
        self.time = ObservedTime(store.settings, self.world.now_s)
        self._maintenance = store.maintenance(self.recovered, self.fence, self.time)
        self.history = History(store.settings, fence=self.fence)
        self.shadow = Shadow(self.world, options.profile_of, options.shadow, fence=self.fence)
        self._engine: Engine | None = None
        self._retention: Retention | None = None

    @property
    def policy(self) -> str:
        return self.world.policy or self._options.default_policy

    def start(self, now_s: float, events: Iterable[ev.Event] = ()) -> None:
        """Record what this start was told: events of nodes, the policy, and that time has passed."""
        recorded, chosen = list(events), self._options.policy
        if chosen and chosen != self.world.policy:
            recorded.append(ev.PolicySet(now_s, chosen, cause="start", actor=self._options.policy_by))
        if self.world.jobs.n:
            # What is decided and found now is of now, however long no server was there.
            recorded.append(ev.TimePassed(now_s, cause="start"))
        self._state.record_all(recorded)
        self.history.recall(self.world)

    def attach(self, backend: LiveBackend) -> Requests:
        """Name the backend that carries commands out; return the way to ask the engine for something."""
        self._backend = backend
        self.requests = Requests(backend.wake)
        return self.requests

    def build(
        self,
        measuring: Iterable[tuple[str, Observer]],
        observers: Iterable[tuple[str, Observer]],
        forget: Callable[[JobId], None],
        next_due_s: Callable[[World], float] = lambda _: math.inf,
    ) -> Service:
        """Put the engine together and return the service that runs it.

        `measuring` are the observers that time a decision: the others stand within their brackets. `forget`
        removes the files of a job that is kept no longer. At `next_due_s` the engine takes a step in any case.
        """
        own = (("shadow policy", self.shadow), ("learning from jobs", self.history))
        guard, profile_of = threading.RLock(), self._options.profile_of
        engine = self._engine = Engine(
            self._state,
            self._backend,
            profile_of(self.policy),
            Observers(self.fence, (*measuring, *own, *observers)),
            live_cadence(),
            Live(self.requests, profile_of, guard, next_due_s),
        )
        self.service = Service(engine, self.requests, self._journal, guard, self._backend.wake, self.fence)
        retention = self._retention = Retention(self._options.keep, self.requests.ask, forget, self.time)
        self.service.after_step("snapshots of the journal", self._maintenance.after_step)
        self.service.after_step("forgetting of jobs", retention.after_step)
        self.service.after_step("learning from jobs", self.history.after_step)
        return self.service

    def reconfigure(self, keep: Keep) -> None:
        """Keep jobs that are over for another time, and take up the profile of the policy anew.

        For the engine's thread, or before there is one.
        """
        self._options = replace(self._options, keep=keep)
        if self._engine is not None and self._retention is not None:
            self._retention.keep = keep
            self._engine.reload_profile()

    def end(self, around: Iterable[tuple[str, Callable[[], None]]] = ()) -> None:
        """End the engine, then what stands around it, in an order that loses nothing."""
        has_stopped = self.service.stop()
        for part, close in around:
            self.fence.run(part, close)
        # An engine that died within an event, or still is in one, leaves a World that never was.
        if has_stopped and self.service.failure is None:
            self._maintenance.finish(self.world)
        self.history.finish()
        self.shadow.close()
        self._store.close()
