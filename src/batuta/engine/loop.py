"""The one loop: events in, World updated, a decision when one is due, commands out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from batuta.core.decide import Rules, decide
from batuta.core.event import Event, JobStarted, Planned
from batuta.core.plan import Plan
from batuta.core.world import World, apply
from batuta.engine.ports import Backend, Journal


@dataclass(frozen=True, slots=True)
class Cadence:
    """When to decide."""

    round_s: float | None = None
    """Only at whole multiples of this, as round-based schedulers do; None decides after every event."""
    min_interval_s: float = 0.0
    """Not sooner than this after the last decision that changed something."""
    every_s: float | None = None
    """At least this often while jobs wait, for policies whose order changes with time alone."""

    def __post_init__(self) -> None:
        # Otherwise the loop would decide again and again without time going on.
        for name in ("round_s", "every_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds > 0, found {seconds}")
        if not 0 <= self.min_interval_s < math.inf:
            raise ValueError(f"min_interval_s must be finite and ≥ 0, found {self.min_interval_s}")


class Watcher(Protocol):
    """Is told of everything that happens, and changes nothing."""

    def saw(self, world: World, event: Event) -> None:
        """After an event was applied."""
        ...

    def deciding(self) -> None:
        """Before a decision."""
        ...

    def decided(self, world: World, plan: Plan) -> None:
        """After a plan was made, and applied when it was not empty."""
        ...

    def postponed(self, world: World) -> None:
        """After events on which a decision is not due yet."""
        ...


class Engine:
    """Owns the World: the only caller of `apply`."""

    def __init__(
        self,
        world: World,
        backend: Backend,
        rules: Rules,
        journal: Journal,
        watcher: Watcher,
        cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
        after_step: Callable[[str], None] | None = None,
        reasons: bool = True,
    ) -> None:
        self.world = world
        self.backend = backend
        self.rules = rules
        self.journal = journal
        self.watcher = watcher
        self.cadence = cadence
        self._after_step = after_step
        self._reasons = reasons
        self._last_change_s = -math.inf
        self._owed = False
        """Something happened that no decision has taken into account yet."""
        self._settled = False
        """The last decision changed nothing, and nothing has happened since."""

    def run(self) -> None:
        """Goes on until nothing can happen any more."""
        while self.step():
            pass

    def step(self) -> bool:
        """Takes in what happens next and decides when that is due; False when nothing is left to come."""
        if self._settled and self.backend.quiet():
            return False
        events = self.backend.next_events(self._wake_s())
        if not events:
            return False
        for event in events:
            self._take(event)
        self._owed = True
        self._settled = False
        if self._due(self.world.now_s):
            self._cycle(self.world.now_s)
        else:
            self.watcher.postponed(self.world)
        return True

    def _take(self, event: Event) -> None:
        apply(self.world, event)
        self.journal.append(event)
        self.watcher.saw(self.world, event)

    def _due(self, now_s: float) -> bool:
        cadence = self.cadence
        if cadence.round_s is not None:
            return math.isclose(math.remainder(now_s, cadence.round_s), 0.0, abs_tol=1e-6)
        return now_s >= self._last_change_s + cadence.min_interval_s

    def _wake_s(self) -> float | None:
        """When to decide even if nothing happens until then; None to wait for as long as it takes."""
        cadence, world = self.cadence, self.world
        if not world.jobs.n:
            return None
        if cadence.round_s is not None:
            return (math.floor(world.now_s / cadence.round_s + 1e-9) + 1) * cadence.round_s
        if self._owed:
            return self._last_change_s + cadence.min_interval_s
        if cadence.every_s is not None and (world.jobs.i("gpus") == 0).any():
            return world.now_s + cadence.every_s
        return None

    def _cycle(self, now_s: float) -> None:
        self.watcher.deciding()
        plan = decide(self.world, now_s, self.rules, self._after_step, self._reasons)
        self._owed = False
        self._settled = plan.empty
        if not plan.empty:
            self._last_change_s = now_s
            event = Planned(now_s, plan)
            self.journal.append(event)
            apply(self.world, event)
            self.watcher.saw(self.world, event)
            for done in self.backend.execute(plan.commands, now_s):
                self._take(done)
                # That a job runs was to be expected; anything else may call for another decision.
                self._owed |= not isinstance(done, JobStarted)
        self.watcher.decided(self.world, plan)
