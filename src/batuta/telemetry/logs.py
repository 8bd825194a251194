"""Decisions and job events as log lines with the ids of cycle and job, written by a background thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from contextvars import ContextVar

from batuta.core import event as ev
from batuta.core.plan import Command, Plan, Preempt, Stop
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.observers import Observer

_cycle: ContextVar[int | None] = ContextVar("cycle", default=None)


def begin_cycle(cycle: int) -> None:
    """Tag the log lines of this thread with a cycle from now on."""
    _cycle.set(cycle)


def end_cycle() -> None:
    _cycle.set(None)


def tag_with_cycle(record: logging.LogRecord) -> None:
    """Set the cycle of this thread on a record, unless it has one."""
    cycle = _cycle.get()
    if cycle is not None and not hasattr(record, "cycle"):
        record.cycle = cycle


MAX_COMMANDS = 200
"""Lines for the commands of one plan; the rest are counted."""
_log = logging.getLogger("batuta.engine")


def _emit(level: int, event: str, **fields: object) -> None:
    """Emit a line without finding the caller, which would take longer than all the rest."""
    if _log.isEnabledFor(level):
        record = logging.LogRecord(_log.name, level, "", 0, event, None, None)
        record.__dict__.update(fields)
        _log.handle(record)


class CycleLog(Observer):
    """An observer of the engine that writes log lines. For the engine's thread.

    A cycle that changes nothing writes none, and neither do reports of progress.
    """

    def __init__(self, world: World) -> None:
        self._version = world.version
        self._begun_s = 0.0

    def saw(self, world: World, event: ev.Event) -> None:
        self._version = world.version
        _log_event(event)

    def deciding(self) -> None:
        begin_cycle(self._version)
        self._begun_s = time.perf_counter()

    def decided(self, world: World, plan: Plan) -> None:
        if plan.commands:
            took_ms = round(1000 * (time.perf_counter() - self._begun_s), 3)
            count = len(plan.commands)
            _emit(logging.INFO, "planned", policy=plan.policy, commands=count, took_ms=took_ms)
            for command in plan.commands[:MAX_COMMANDS]:
                _log_command(command)
            if count > MAX_COMMANDS:
                _emit(logging.INFO, "more commands", commands=count - MAX_COMMANDS)
        end_cycle()


def _log_command(command: Command) -> None:
    fields: dict[str, object] = {
        "job": command.job,
        "kind": type(command).__name__.lower(),
        "reason": command.reason.name,
    }
    if not isinstance(command, Preempt | Stop):
        fields |= {"gpus": command.placement.size, "nodes": list(command.placement.nodes[:8])}
    _emit(logging.INFO, "command", **fields)


def _log_event(event: ev.Event) -> None:
    """Log changes of the state of jobs, nodes and GPUs."""
    match event:
        case ev.JobSubmitted():
            _emit(logging.INFO, "job submitted", job=event.job.id, queue=event.job.queue)
        case ev.JobStarted():
            _emit(logging.INFO, "job runs", job=event.job)
        case ev.JobInterrupted():
            _emit(logging.WARNING, "job interrupted", job=event.job, cause=event.cause, why=event.detail)
        case ev.JobEnded():
            _emit(logging.INFO, "job ended", job=event.job, state=event.state.value, why=event.detail)
        case ev.NodeLost() | ev.NodeReturned() | ev.NodeCordoned() | ev.NodeUncordoned():
            _emit(logging.WARNING, _EVENT_NAMES[type(event)], node=event.node, cause=event.cause)
        case ev.GpuFailed() | ev.GpuRepaired():
            words = _EVENT_NAMES[type(event)]
            _emit(logging.WARNING, words, node=event.node, gpu=event.gpu, cause=event.cause)
        case ev.PolicySet():
            _emit(logging.INFO, "policy chosen", policy=event.policy, cause=event.cause)


_EVENT_NAMES: dict[type, str] = {
    ev.NodeLost: "node lost",
    ev.NodeReturned: "node returned",
    ev.NodeCordoned: "node cordoned",
    ev.NodeUncordoned: "node uncordoned",
    ev.GpuFailed: "GPU failed",
    ev.GpuRepaired: "GPU repaired",
}


MAX_LINES = 10_000
_CLOSE_S = 3.0
_TOGETHER_S = 0.05


class BackgroundLogHandler(logging.Handler):
    """Passes records to another handler in a thread, so that a slow disk or a full pipe delays no caller.

    Records beyond the limit are dropped, and a line says how many.
    """

    def __init__(self, target: logging.Handler, limit: int = MAX_LINES) -> None:
        super().__init__()
        self.dropped = 0
        self._target = target
        self._limit = limit
        self._records: deque[logging.LogRecord] = deque()
        self._changed = threading.Condition()
        self._is_closed = self._is_writing = self._is_flushing = False
        self._unreported = 0
        self._fence = Fence()
        self._thread = self._fence.start("log", self._run)

    def handle(self, record: logging.LogRecord) -> bool:
        """Skip the lock of `logging.Handler`: this handler holds its own for a shorter time."""
        kept = self.filter(record)
        if kept:
            self.emit(record)
        return bool(kept)

    def emit(self, record: logging.LogRecord) -> None:
        tag_with_cycle(record)
        self._fence.tend()
        if record.args:
            # Its arguments may have changed when it is written. Other handlers need the original record.
            message, record = record.getMessage(), logging.makeLogRecord(vars(record))
            record.msg, record.args = message, None
        with self._changed:
            if self._is_closed or len(self._records) >= self._limit:
                self.dropped += 1
                self._unreported += 1
                return
            self._records.append(record)
            if len(self._records) in (1, self._limit // 2):
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, for at most a few seconds."""
        with self._changed:
            self._is_flushing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._records and not self._is_writing, _CLOSE_S)
            self._is_flushing = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._target.close()
        super().close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._records or self._is_closed)
                if not self._records:
                    return
                # Lines that come together are written together: that interrupts callers less often.
                self._changed.wait_for(self._is_due, _TOGETHER_S)
                taken, unreported = list(self._records), self._unreported
                self._records.clear()
                self._unreported, self._is_writing = 0, True
            for record in taken:
                self._target.handle(record)
            if unreported:
                self._target.handle(_notice(unreported))

    def _is_due(self) -> bool:
        return self._is_closed or self._is_flushing or len(self._records) >= self._limit // 2


def _notice(dropped: int) -> logging.LogRecord:
    name, text = "batuta.log", f"{dropped} lines could not be written in time and are lost"
    return logging.LogRecord(name, logging.WARNING, __file__, 0, text, None, None)
