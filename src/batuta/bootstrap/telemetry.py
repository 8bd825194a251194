"""Structured logs and OpenTelemetry traces of a server or an operator."""

from __future__ import annotations

import logging
import logging.handlers
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, cast

import structlog

from batuta import __version__
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.observers import Observer
from batuta.telemetry import LogFormat
from batuta.telemetry.exporter import SpanExporter
from batuta.telemetry.logs import BackgroundLogHandler, CycleLog
from batuta.telemetry.otlp import Endpoint, parse_endpoint
from batuta.telemetry.traces import Attributes, CycleTrace

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger


_log = logging.getLogger("batuta.telemetry")


@dataclass(slots=True)
class Telemetry:
    """What is told of the engine, and who sends its spans."""

    log: CycleLog
    exporter: SpanExporter | None = None
    trace: CycleTrace | None = None

    def measuring(self, cycles: SchedulerCounters) -> list[tuple[str, Observer]]:
        """The observers that time decisions."""
        traces: list[tuple[str, Observer]] = [] if self.trace is None else [("traces of cycles", self.trace)]
        return [*traces, ("metrics", cycles)]

    def logging(self) -> list[tuple[str, Observer]]:
        """The last observer: log lines of all others belong to the cycle in which they are written."""
        return [("cycle log", self.log)]

    def close(self) -> None:
        """Sends what is left, within a few seconds. The engine must have ended."""
        if self.exporter is not None and self.trace is not None:
            self.trace.finish()
            self.exporter.close()


def check_otlp(url: str, what: str = "--otlp") -> Endpoint | None:
    """Where traces go; None when no URL is given. Raises InputError for a URL that is not valid."""
    return parse_endpoint(url, what, os.environ) if url else None


def telemetry(fence: Fence, world: World, otlp: str, *, place: str, tells_of_preempted: bool = True) -> Telemetry:
    """What is told of cycles. `place` is local or kubernetes."""
    logged = CycleLog(world)
    endpoint = check_otlp(otlp)
    if endpoint is None:
        return Telemetry(logged)
    exporter = SpanExporter(endpoint, _resource(place), __version__, tell=_log.warning, fence=fence)
    trace = CycleTrace(world, exporter.offer, tells_of_preempted=tells_of_preempted)
    _log.info("traces go to %s", endpoint)
    return Telemetry(logged, exporter, trace)


def _resource(place: str) -> Attributes:
    """Who sends, by the names that OpenTelemetry has for it."""
    host = socket.gethostname()
    return (
        ("service.name", "batuta"),
        ("service.version", __version__),
        ("service.instance.id", f"{host}-{os.getpid()}"),
        ("host.name", host),
        ("batuta.place", place),
    )


_MOST_BYTES, _KEPT = 10 << 20, 3
_LIBRARIES = ("uvicorn", "asyncio")
"""Who else has something to say: what went wrong within a request, for one."""
_USUAL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""What every record has, or has once it was formatted."""


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
        return open(self.baseFilename, "a", encoding=self.encoding, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
