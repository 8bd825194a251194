"""What is decided and what becomes of jobs, as log lines that carry the ids of cycle and job."""

from __future__ import annotations

import logging
import time

from batuta.core import event as ev
from batuta.core.command import Command, Preempt, Stop
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.telemetry.cycle_trace import StepWatcher
from batuta.telemetry.log_ids import begin_cycle, end_cycle

MOST_COMMANDS = 200
"""Lines for the commands of one plan; of the others there is a number."""
_log = logging.getLogger("batuta.engine")


def _say(level: int, event: str, **about: object) -> None:
    """A line, without a look at who calls: that takes longer than all the rest."""
    if _log.isEnabledFor(level):
        record = logging.LogRecord(_log.name, level, "", 0, event, None, None)
        record.__dict__.update(about)
        _log.handle(record)


class CycleLog:
    """A watcher that writes lines, and passes everything on. For the engine's thread.

    A cycle that changes nothing writes none, and neither do reports of progress.
    """

    def __init__(self, inner: StepWatcher, world: World) -> None:
        self._inner = inner
        self._version = world.version
        self._begun_s = 0.0

    def saw(self, world: World, event: ev.Event) -> None:
        self._inner.saw(world, event)
        self._version = world.version
        _tell_of(event)

    def deciding(self) -> None:
        begin_cycle(self._version)
        self._begun_s = time.perf_counter()
        self._inner.deciding()

    def after_step(self, step: str) -> None:
        self._inner.after_step(step)

    def decided(self, world: World, plan: Plan) -> None:
        self._inner.decided(world, plan)
        if plan.commands:
            took_ms = round(1000 * (time.perf_counter() - self._begun_s), 3)
            count = len(plan.commands)
            _say(logging.INFO, "planned", policy=plan.policy, commands=count, took_ms=took_ms)
            for command in plan.commands[:MOST_COMMANDS]:
                _tell_command(command)
            if count > MOST_COMMANDS:
                _say(logging.INFO, "more commands", commands=count - MOST_COMMANDS)
        end_cycle()

    def postponed(self, world: World) -> None:
        self._inner.postponed(world)


def _tell_command(command: Command) -> None:
    about: dict[str, object] = {
        "job": command.job,
        "kind": type(command).__name__.lower(),
        "reason": command.reason.name,
    }
    if not isinstance(command, Preempt | Stop):
        about |= {"gpus": command.placement.size, "nodes": list(command.placement.nodes[:8])}
    _say(logging.INFO, "command", **about)


def _tell_of(event: ev.Event) -> None:
    """The turns in a job's life, and what becomes of nodes and GPUs."""
    match event:
        case ev.JobSubmitted():
            _say(logging.INFO, "job submitted", job=event.job.id, queue=event.job.queue)
        case ev.JobStarted():
            _say(logging.INFO, "job runs", job=event.job)
        case ev.JobInterrupted():
            _say(logging.WARNING, "job interrupted", job=event.job, cause=event.cause, why=event.detail)
        case ev.JobEnded():
            _say(logging.INFO, "job ended", job=event.job, state=event.state.value, why=event.detail)
        case ev.NodeLost() | ev.NodeReturned() | ev.NodeCordoned() | ev.NodeUncordoned():
            _say(logging.WARNING, _NODE_WORDS[type(event)], node=event.node, cause=event.cause)
        case ev.GpuFailed() | ev.GpuRepaired():
            words = _NODE_WORDS[type(event)]
            _say(logging.WARNING, words, node=event.node, gpu=event.gpu, cause=event.cause)
        case ev.PolicySet():
            _say(logging.INFO, "policy chosen", policy=event.policy, cause=event.cause)


_NODE_WORDS: dict[type, str] = {
    ev.NodeLost: "node lost",
    ev.NodeReturned: "node returned",
    ev.NodeCordoned: "node cordoned",
    ev.NodeUncordoned: "node uncordoned",
    ev.GpuFailed: "GPU failed",
    ev.GpuRepaired: "GPU repaired",
}
