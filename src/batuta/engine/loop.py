"""The one loop: events in, World updated, a decision when one is due, commands out."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from batuta.core import event as ev
from batuta.core.decide import SchedulerProfile, decide
from batuta.core.eligibility import next_release_s
from batuta.core.plan import Plan, no_decisions
from batuta.core.reason import Reason
from batuta.core.utilisation import next_idle_s
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld
from batuta.engine.observers import Observer
from batuta.engine.ports import Backend
from batuta.engine.requests import Requests

_AT_ROUND_S = 1e-6  # so near to a whole multiple it is time for a round
_NEWS = (ev.JobProgressed, ev.JobCheckpointed, ev.TransitionTimed, ev.GpusUsed, ev.HealthChanged, ev.ActionTaken)
"""What is reported all the time: good to know, but nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Cadence:
    """When to decide."""

    round_s: float | None = None  # only at whole multiples of this, in rounds; None decides after every event
    min_interval_s: float = 0.0  # not sooner than this after the last decision that changed something
    calm_s: float = 0.0  # after reports of progress alone, not sooner than this after the last decision
    every_s: float | None = None  # at least this often while jobs wait: some orders change with time alone

    def __post_init__(self) -> None:
        # Otherwise the loop would decide again and again without time going on.
        for name, seconds in (("round_s", self.round_s), ("every_s", self.every_s)):
            if seconds is not None and not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds > 0, found {seconds}")
        for name, seconds in (("min_interval_s", self.min_interval_s), ("calm_s", self.calm_s)):
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{name} must be finite and ≥ 0, found {seconds}")


@dataclass(frozen=True, slots=True)
class Live:
    """What an engine needs that serves people: it never runs out of things to come."""

    requests: Requests
    profile_of: Callable[[str], SchedulerProfile]  # finds the profile of a policy that is chosen at run time
    guard: AbstractContextManager[object]  # held while the World changes or is decided upon: other threads read it
    next_due_s: Callable[[World], float] = lambda _: math.inf  # when another part of the server wants a step


class Engine:
    """Owns a World: takes events in, decides when that is due, and has commands carried out."""

    def __init__(
        self,
        state: JournaledWorld,
        backend: Backend,
        profile: SchedulerProfile,
        observer: Observer,
        cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
        live: Live | None = None,
    ) -> None:
        self.world, self._state, self._journal = state.world, state, state.journal
        self.backend, self.profile, self.cadence, self._observer = backend, profile, cadence, observer
        self.last_plan: Plan | None = None
        self.trouble = ""  # why nothing can be decided just now; empty when all is well
        self._live = live
        self._guard: AbstractContextManager[object] = nullcontext() if live is None else live.guard
        self._last_change_s = self._last_cycle_s = -math.inf
        # The server before this one may have been killed between an event and the decision on it.
        self._owed = self._urgent = live is not None  # what happened since the last decision; more than progress
        self._settled = False  # the last decision changed nothing, and nothing has happened since

    def run(self) -> None:
        """Go on until nothing can happen any more."""
        while self.step():
            pass

    def step(self) -> bool:
        """Take in what happens next and decide when that is due; False when nothing is left to come."""
        if self._settled and self.backend.quiet():
            return False
        events = self.backend.next_events(self._wake_s())
        if not events and self._live is None:
            return False
        with self._guard:
            for event in events:
                self._take(event)
        asked = self._live is not None and self._serve(self._live.requests)
        if not asked and not events:
            return True
        self._owed = True
        self._urgent |= asked or not all(isinstance(event, _NEWS) for event in events)
        self._settled = False
        if self._due(self.world.now_s):
            self._cycle(self.world.now_s)
        else:
            self._observer.postponed(self.world)
        self._journal.commit()
        return True

    def _serve(self, requests: Requests) -> bool:
        """Take in requests, which are answered when all is durable; False without any."""
        waiting = requests.take()
        if not waiting:
            return False
        for request in waiting:
            with self._guard:
                try:
                    request.events = request.make(self.world)
                    for event in request.events:
                        self._take(event)
                except Exception as error:
                    # The caller's to know, not the engine's to die of.
                    request.done.set_exception(error)
        self._journal.commit()
        requests.answer(waiting)
        return True

    def reload_profile(self) -> None:
        """Take up what the profile of the same policy is by now. For the engine's thread."""
        if self._live is not None and self.world.policy:
            self.profile = self._live.profile_of(self.world.policy)

    def _take(self, event: ev.Event) -> None:
        self._state.record(event)
        if isinstance(event, ev.PolicySet):
            self.reload_profile()
        self._observer.saw(self.world, event)

    def _due(self, now_s: float) -> bool:
        cadence = self.cadence
        if cadence.round_s is not None:
            return math.isclose(math.remainder(now_s, cadence.round_s), 0.0, abs_tol=_AT_ROUND_S)
        return now_s >= self._owed_from_s()

    def _owed_from_s(self) -> float:
        """When a decision on what has happened may be made."""
        calm_s = -math.inf if self._urgent else self._last_cycle_s + self.cadence.calm_s
        return max(self._last_change_s + self.cadence.min_interval_s, calm_s)

    def _wake_s(self) -> float | None:
        """When to decide even if nothing happens until then; None to wait for as long as it takes."""
        cadence, world = self.cadence, self.world
        if not world.jobs.n:
            return None
        if cadence.round_s is not None:
            # The quotient of a time since 1970 may fall short of the round that has just been: time would stand still.
            return (math.floor((world.now_s + _AT_ROUND_S) / cadence.round_s) + 1) * cadence.round_s
        if self._owed:
            return max(self._owed_from_s(), world.now_s)
        wake_s = next_release_s(world, world.now_s)
        if world.idle:
            wake_s = min(wake_s, next_idle_s(world, world.now_s, self.profile.idle))
        if self._live is not None:
            wake_s = min(wake_s, self._live.next_due_s(world))
        if cadence.every_s is not None and (world.jobs.held == 0).any():
            wake_s = min(wake_s, world.now_s + cadence.every_s)
        return wake_s if wake_s < math.inf else None

    def _cycle(self, now_s: float) -> None:
        self._observer.deciding()
        with self._guard:
            plan = self._decide(now_s)
            if not plan.empty:
                self._take(ev.Planned(now_s, plan))
        self._last_cycle_s = now_s
        self._owed = self._urgent = False
        self._settled = plan.empty
        if not plan.empty:
            self._last_change_s = now_s
            # A job that had to leave its GPUs may have others at once.
            self._owed = self._urgent = any(one.reason is Reason.EVICTED for one in plan.commands)
            # Nothing is carried out that a restart would not know of.
            self._journal.commit()
            done = self.backend.execute(plan.commands, now_s)
            with self._guard:
                for event_ in done:
                    self._take(event_)
                    # That a job runs was to be expected; anything else may call for another decision.
                    self._owed |= not isinstance(event_, ev.JobStarted)
                    self._urgent = self._owed
        self._observer.decided(self.world, plan)

    def _decide(self, now_s: float) -> Plan:
        """The plan of this moment. An engine that serves people outlives a policy that cannot decide."""
        try:
            plan = decide(self.world, now_s, self.profile, self._observer.step_done)
        except Exception as error:
            if self._live is None:
                raise
            self.trouble = f"nothing is decided: {error}" if str(error) else f"nothing is decided: {error!r}"
            return Plan(self.world.version, now_s, self.profile.policy.name, (), (), no_decisions())
        self.trouble = ""
        self.last_plan = plan
        return plan
