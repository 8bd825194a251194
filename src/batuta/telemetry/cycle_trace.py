"""Each cycle as a trace: the cycle, its steps, and its commands from the order to what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from batuta.core.event import Event, Planned
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.loop import Watcher
from batuta.telemetry.command_trace import CommandTraces
from batuta.telemetry.span import Attributes, Ids, Span

CARRY_OUT = "carry out"


class StepWatcher(Watcher, Protocol):
    """A watcher that is also told of the steps of a decision."""

    def after_step(self, step: str) -> None: ...


class CycleTrace:
    """A watcher that makes spans, and passes everything on. For the engine's thread."""

    def __init__(
        self,
        inner: StepWatcher,
        world: World,
        offer: Callable[[Sequence[Span]], None],
        *,
        tells_of_preempted: bool = True,
    ) -> None:
        """`tells_of_preempted`: whether the backend says when a job has left its GPUs."""
        self._inner = inner
        self._offer = offer
        self._ids = Ids()
        self._commands = CommandTraces(self._ids, tells_of_preempted)
        self._spans: list[Span] = []
        """Of the cycle that is on its way."""
        self._version = world.version
        self._trace_id = self._cycle_id = 0
        self._begun_ns = self._lap_ns = 0
        self._offset_ns = 0
        """From the clock that never jumps to that of people, as of the beginning of the cycle."""

    def saw(self, world: World, event: Event) -> None:
        self._inner.saw(world, event)
        self._version = world.version
        if isinstance(event, Planned):
            self._commands.ordered(event.plan, self._trace_id, self._cycle_id, self._now_ns())
        elif done := self._commands.saw(event):
            self._offer(done)

    def deciding(self) -> None:
        self._inner.deciding()
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self._begun_ns = self._lap_ns = self._now_ns()
        self._trace_id, self._cycle_id = self._ids.trace(), self._ids.span()
        self._spans = []

    def after_step(self, step: str) -> None:
        self._inner.after_step(step)
        self._step(step)

    def decided(self, world: World, plan: Plan) -> None:
        if not plan.empty:
            self._step(CARRY_OUT)
        cycle = Span(
            self._trace_id,
            self._cycle_id,
            0,
            "cycle",
            self._begun_ns,
            max(self._lap_ns, self._now_ns()),
            _attributes(world, plan),
        )
        given = self._commands.carried_out(self._now_ns())
        self._offer([cycle, *self._spans, *given])
        self._inner.decided(world, plan)

    def postponed(self, world: World) -> None:
        self._inner.postponed(world)

    def finish(self) -> None:
        """What nobody will tell of any more, because the engine ends."""
        self._offer(self._commands.finish(time.time_ns()))

    def _step(self, step: str) -> None:
        begun_ns, self._lap_ns = self._lap_ns, self._now_ns()
        attributes = (("batuta.cycle", self._version), ("batuta.step", step))
        self._spans.append(
            Span(self._trace_id, self._ids.span(), self._cycle_id, step, begun_ns, self._lap_ns, attributes)
        )

    def _now_ns(self) -> int:
        return time.perf_counter_ns() + self._offset_ns


def _attributes(world: World, plan: Plan) -> Attributes:
    return (
        ("batuta.cycle", plan.world_version),
        ("batuta.policy", plan.policy),
        ("batuta.jobs", world.jobs.n),
        ("batuta.commands", len(plan.commands)),
    )
