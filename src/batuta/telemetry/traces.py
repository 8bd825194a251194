"""Each cycle as a trace: the cycle, its steps, and its commands until their outcome is known."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from batuta.core import event as ev
from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.plan import Command, Plan, Preempt, Stop
from batuta.core.world import World
from batuta.engine.observers import Observer

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = tuple[tuple[str, Attribute], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval of OpenTelemetry. Ids are numbers here, and become text when they are exported."""

    trace_id: int
    span_id: int
    parent_id: int  # 0 for the root of a trace
    name: str
    start_ns: int
    end_ns: int  # both since 1970
    attributes: Attributes = ()
    error: str = ""  # the error message; empty for success


class IdGenerator:
    """Random, unique ids. Zero is invalid by the standard."""

    def __init__(self) -> None:
        self._numbers = random.Random(os.urandom(32))

    def trace(self) -> int:
        return self._numbers.getrandbits(128) or 1

    def span(self) -> int:
        return self._numbers.getrandbits(64) or 1


_JOB_EVENTS = (ev.JobStarted, ev.JobFound, ev.JobInterrupted, ev.JobEnded, ev.TransitionTimed)


@dataclass(frozen=True, slots=True)
class _OpenCommand:
    """A command whose outcome is not known yet."""

    span: Span  # its end is not known yet
    kind: type[Command]

    def ended(self, end_ns: int, outcome: str, error: str = "") -> Span:
        span = self.span
        attributes = (*span.attributes, ("batuta.outcome", outcome))
        return replace(span, end_ns=max(end_ns, span.start_ns), attributes=attributes, error=error)


class CommandTraces:
    """Spans of commands until their outcome is known, by job: a job has one at a time."""

    def __init__(self, ids: IdGenerator, tells_of_preempted: bool) -> None:
        self._ids = ids
        self._tells_of_preempted = tells_of_preempted
        self._open: dict[JobId, _OpenCommand] = {}
        self._timed: dict[JobId, Span] = {}  # finished commands whose steps may still be reported
        self._replaced: list[Span] = []
        self._unreported: list[JobId] = []  # jobs of this cycle's commands whose outcome the backend does not report

    def ordered(self, plan: Plan, trace_id: int, cycle_id: int, now_ns: int) -> None:
        for command in plan.commands:
            self._timed.pop(command.job, None)
            if before := self._open.pop(command.job, None):
                self._replaced.append(before.ended(now_ns, "replaced"))
            name = type(command).__name__.lower()
            attributes = _command_attributes(command, plan.world_version, name)
            span = Span(trace_id, self._ids.span(), cycle_id, name, now_ns, now_ns, attributes)
            self._open[command.job] = _OpenCommand(span, type(command))
            if isinstance(command, Preempt) and not self._tells_of_preempted:
                self._unreported.append(command.job)

    def carried_out(self, now_ns: int) -> list[Span]:
        """End the commands of a cycle whose outcome the backend does not report; all were carried out."""
        done, unreported, self._replaced, self._unreported = self._replaced, self._unreported, [], []
        return done + [self._open.pop(job).ended(now_ns, "given") for job in unreported if job in self._open]

    def saw(self, event: ev.Event) -> list[Span]:
        if not isinstance(event, _JOB_EVENTS):
            return []
        at_ns = int(event.time_s * 1e9)
        if isinstance(event, ev.TransitionTimed):
            return self._steps(event, at_ns)
        if isinstance(event, ev.JobEnded):
            self._timed.pop(event.job, None)
        order = self._open.pop(event.job, None)
        if order is None:
            return []
        span = _outcome(order, event, at_ns)
        if isinstance(event, ev.JobStarted):
            self._timed[event.job] = span
        return [span]

    def finish(self, now_ns: int) -> list[Span]:
        left, self._open = self._open, {}
        return [order.ended(now_ns, "unknown") for order in left.values()]

    def _steps(self, event: ev.TransitionTimed, at_ns: int) -> list[Span]:
        """Return spans for the checkpoint, the stop of the old replicas and the start of new ones."""
        found: list[Span] = []
        span = self._timed.pop(event.job, None)
        order = self._open.get(event.job)
        if event.gpus == 0 and order is not None and order.kind is Preempt:
            span = order.ended(at_ns, "left")
            del self._open[event.job]
            found.append(span)
        if span is None:
            return found
        begun_ns = span.start_ns
        for name, seconds in (("checkpoint", event.checkpoint_s), ("stop replicas", event.stop_s)):
            if seconds is not None:
                end_ns = begun_ns + int(seconds * 1e9)
                found.append(self._step(span, event.job, name, begun_ns, end_ns))
                begun_ns = end_ns
        if event.start_s is not None:
            begun_ns = max(span.start_ns, span.end_ns - int(event.start_s * 1e9))
            found.append(self._step(span, event.job, "start replicas", begun_ns, span.end_ns))
        return found

    def _step(self, of: Span, job: JobId, name: str, begun_ns: int, end_ns: int) -> Span:
        attributes: Attributes = (("batuta.job", job),)
        return Span(of.trace_id, self._ids.span(), of.span_id, name, begun_ns, end_ns, attributes)


def _outcome(
    order: _OpenCommand, event: ev.JobStarted | ev.JobFound | ev.JobInterrupted | ev.JobEnded, at_ns: int
) -> Span:
    if isinstance(event, ev.JobStarted):
        return order.ended(at_ns, "running")
    if isinstance(event, ev.JobFound):
        return order.ended(at_ns, "found", event.detail)
    if isinstance(event, ev.JobInterrupted):
        is_preempted = order.kind is Preempt
        return order.ended(
            at_ns, "left" if is_preempted else "interrupted", "" if is_preempted else event.detail or event.cause
        )
    is_failure = order.kind is not Stop and event.state.value.startswith("FAILED")
    return order.ended(at_ns, event.state.value.lower(), event.detail or "failed" if is_failure else "")


def _command_attributes(command: Command, cycle: int, kind: str) -> Attributes:
    common: Attributes = (
        ("batuta.cycle", cycle),
        ("batuta.job", command.job),
        ("batuta.kind", kind),
        ("batuta.reason", command.reason.name),
    )
    if isinstance(command, Preempt | Stop):
        return common
    return (*common, ("batuta.gpus", command.placement.size), ("batuta.nodes", len(command.placement.nodes)))


CARRY_OUT = "carry out"


class CycleTrace(Observer):
    """An observer of the engine that makes spans. For the engine's thread."""

    def __init__(
        self, world: World, offer: Callable[[Sequence[Span]], None], *, tells_of_preempted: bool = True
    ) -> None:
        """`tells_of_preempted`: whether the backend reports when a preempted job has left its GPUs."""
        self._offer = offer
        self._ids = IdGenerator()
        self._commands = CommandTraces(self._ids, tells_of_preempted)
        self._spans: list[Span] = []
        self._version = world.version
        self._trace_id = self._cycle_id = 0
        self._begun_ns = self._lap_ns = 0
        self._offset_ns = 0  # from the monotonic clock to wall-clock time, as of the beginning of the cycle

    def saw(self, world: World, event: Event) -> None:
        self._version = world.version
        if isinstance(event, Planned):
            self._commands.ordered(event.plan, self._trace_id, self._cycle_id, self._now_ns())
        elif done := self._commands.saw(event):
            self._offer(done)

    def deciding(self) -> None:
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self._begun_ns = self._lap_ns = self._now_ns()
        self._trace_id, self._cycle_id = self._ids.trace(), self._ids.span()
        self._spans = []

    def step_done(self, step: str) -> None:
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
            _cycle_attributes(world, plan),
        )
        given = self._commands.carried_out(self._now_ns())
        self._offer([cycle, *self._spans, *given])

    def finish(self) -> None:
        self._offer(self._commands.finish(time.time_ns()))

    def _step(self, step: str) -> None:
        begun_ns, self._lap_ns = self._lap_ns, self._now_ns()
        attributes = (("batuta.cycle", self._version), ("batuta.step", step))
        self._spans.append(
            Span(self._trace_id, self._ids.span(), self._cycle_id, step, begun_ns, self._lap_ns, attributes)
        )

    def _now_ns(self) -> int:
        return time.perf_counter_ns() + self._offset_ns


def _cycle_attributes(world: World, plan: Plan) -> Attributes:
    return (
        ("batuta.cycle", plan.world_version),
        ("batuta.policy", plan.policy),
        ("batuta.jobs", world.jobs.n),
        ("batuta.commands", len(plan.commands)),
    )
