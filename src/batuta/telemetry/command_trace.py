"""Commands as spans: from the order to the event that says what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.core import event as ev
from batuta.core.command import Command, Preempt, Stop
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.telemetry.span import Attributes, Ids, Span

_JOB_EVENTS = (ev.JobStarted, ev.JobFound, ev.JobInterrupted, ev.JobEnded, ev.TransitionTimed)


@dataclass(frozen=True, slots=True)
class _Order:
    """A command that was given, and what is known of it so far."""

    span: Span
    """Its end is not known yet."""
    kind: type[Command]

    def ended(self, end_ns: int, outcome: str, error: str = "") -> Span:
        span = self.span
        attributes = (*span.attributes, ("batuta.outcome", outcome))
        return replace(span, end_ns=max(end_ns, span.start_ns), attributes=attributes, error=error)


class CommandTraces:
    """Commands on their way, by job: a job has one at a time."""

    def __init__(self, ids: Ids, tells_of_preempted: bool) -> None:
        self._ids = ids
        self._tells_of_preempted = tells_of_preempted
        self._open: dict[JobId, _Order] = {}
        self._timed: dict[JobId, Span] = {}
        """Commands that are done, whose single steps may be told yet."""
        self._replaced: list[Span] = []
        self._untold: list[JobId] = []
        """Jobs of this cycle's commands of which nobody will tell what came of them."""

    def ordered(self, plan: Plan, trace_id: int, cycle_id: int, now_ns: int) -> None:
        """The commands of a plan are on their way."""
        for command in plan.commands:
            self._timed.pop(command.job, None)
            if before := self._open.pop(command.job, None):
                self._replaced.append(before.ended(now_ns, "replaced"))
            name = type(command).__name__.lower()
            attributes = _attributes(command, plan.world_version, name)
            span = Span(trace_id, self._ids.span(), cycle_id, name, now_ns, now_ns, attributes)
            self._open[command.job] = _Order(span, type(command))
            if isinstance(command, Preempt) and not self._tells_of_preempted:
                self._untold.append(command.job)

    def carried_out(self, now_ns: int) -> list[Span]:
        """All commands of a cycle were given; those that nobody tells of any more are over with that."""
        done, untold, self._replaced, self._untold = self._replaced, self._untold, [], []
        return done + [self._open.pop(job).ended(now_ns, "given") for job in untold if job in self._open]

    def saw(self, event: ev.Event) -> list[Span]:
        """What an event brings to an end."""
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
        """The end of all that has none yet."""
        left, self._open = self._open, {}
        return [order.ended(now_ns, "unknown") for order in left.values()]

    def _steps(self, event: ev.TransitionTimed, at_ns: int) -> list[Span]:
        """Where the time went: the checkpoint, the end of the old replicas, the start of new ones."""
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
    order: _Order, event: ev.JobStarted | ev.JobFound | ev.JobInterrupted | ev.JobEnded, at_ns: int
) -> Span:
    if isinstance(event, ev.JobStarted):
        return order.ended(at_ns, "running")
    if isinstance(event, ev.JobFound):
        return order.ended(at_ns, "found", event.detail)
    if isinstance(event, ev.JobInterrupted):
        asked_for = order.kind is Preempt
        return order.ended(
            at_ns, "left" if asked_for else "interrupted", "" if asked_for else event.detail or event.cause
        )
    is_failure = order.kind is not Stop and event.state.value.startswith("FAILED")
    return order.ended(at_ns, event.state.value.lower(), event.detail or "failed" if is_failure else "")


def _attributes(command: Command, cycle: int, kind: str) -> Attributes:
    common: Attributes = (
        ("batuta.cycle", cycle),
        ("batuta.job", command.job),
        ("batuta.kind", kind),
        ("batuta.reason", command.reason.name),
    )
    if isinstance(command, Preempt | Stop):
        return common
    return (
        *common,
        ("batuta.gpus", command.placement.size),
        ("batuta.nodes", len(command.placement.nodes)),
    )
