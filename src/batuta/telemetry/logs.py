"""Structured logs: decisions and job events as lines with the ids of cycle and job, written by a background thread."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

from batuta.core import event as ev
from batuta.core.plan import Command, Plan, Preempt, Stop
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.observers import Observer
from batuta.telemetry import LogFormat

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_cycle: ContextVar[int | None] = ContextVar("cycle", default=None)


"""The cycle that this thread is in: its log lines are tagged with it."""
MAX_COMMANDS = 200  # lines for the commands of one plan; the rest are counted
MAX_LINES = 10_000
_CLOSE_S = 3.0
_TOGETHER_S = 0.05
_MOST_BYTES, _KEPT = 10 << 20, 3
_LIBRARIES = ("uvicorn", "asyncio")  # what else has something to say: what went wrong within a request, for one
_USUAL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""What every record has, or has once it was formatted."""
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
        _cycle.set(self._version)
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
        _cycle.set(None)


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
        cycle = _cycle.get()
        if cycle is not None and not hasattr(record, "cycle"):
            record.cycle = cycle
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


def open_log(path: Path, form: LogFormat = LogFormat.JSON) -> FilteringBoundLogger:
    """A logger that appends to a file that does not grow for ever; what libraries warn of goes there too."""
    file = _PrivateFile(path, maxBytes=_MOST_BYTES, backupCount=_KEPT, encoding="utf-8", delay=True)
    logger = logging.getLogger("batuta")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    _attach(file, form, (logger, *map(logging.getLogger, _LIBRARIES)))
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    wrapped = structlog.wrap_logger(
        logger,
        processors=[structlog.stdlib.add_log_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("FilteringBoundLogger", wrapped)


def log_to_stderr(form: LogFormat = LogFormat.JSON) -> None:
    """All that this process has to say goes to stderr, from where a cluster takes it."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    logging.getLogger("batuta").propagate = True
    _attach(logging.StreamHandler(sys.stderr), form, (root,))


def _attach(behind: logging.Handler, form: LogFormat, loggers: Sequence[logging.Logger]) -> None:
    """In place of what was attached before."""
    for name in ("", "batuta", *_LIBRARIES):
        logger = logging.getLogger(name)
        for old in [old for old in logger.handlers if isinstance(old, BackgroundLogHandler)]:
            logger.removeHandler(old)
            old.close()
    behind.setFormatter(_formatter(form))
    handler = BackgroundLogHandler(behind)
    for logger in loggers:
        logger.addHandler(handler)


def _formatter(form: LogFormat) -> logging.Formatter:
    renderers: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    if form is LogFormat.TEXT:
        renderers = [structlog.dev.ConsoleRenderer(colors=False)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name, _add_extra],
        processors=[_when_and_where, structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


def _add_extra(logger: WrappedLogger, name: str, event_dict: EventDict) -> EventDict:
    """What was said beside the sentence: `_log.info("…", extra={"job": job})`."""
    own = vars(event_dict["_record"]).items()
    event_dict.update({key: value for key, value in own if key not in _USUAL and not key.startswith("_")})
    return event_dict


def _when_and_where(logger: WrappedLogger, name: str, event_dict: EventDict) -> EventDict:
    """The time at which it was said, which is not when it is written; and the cycle in which it was."""
    record: logging.LogRecord = event_dict["_record"]
    event_dict["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    cycle = getattr(record, "cycle", None)
    if cycle is not None:
        event_dict.setdefault("cycle", cycle)
    return event_dict


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """A log that only its owner may read: it names jobs, users and paths."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=partial(os.open, mode=0o600))
