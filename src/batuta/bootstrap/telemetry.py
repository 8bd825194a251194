"""What a server or an operator tells of its engine: log lines always, traces where somebody wants them."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass

from batuta.bootstrap import version
from batuta.core.world import World
from batuta.telemetry.cycle_log import CycleLog
from batuta.telemetry.cycle_trace import CycleTrace, StepWatcher
from batuta.telemetry.endpoint import Endpoint, read_endpoint
from batuta.telemetry.exporter import SpanExporter
from batuta.telemetry.span import Attributes

_log = logging.getLogger("batuta.telemetry")


@dataclass(slots=True)
class Telemetry:
    """The watcher for the engine, and who sends its spans."""

    watcher: StepWatcher
    exporter: SpanExporter | None = None
    trace: CycleTrace | None = None

    def close(self) -> None:
        """Sends what is left, within a few seconds. The engine must have ended."""
        if self.exporter is not None and self.trace is not None:
            self.trace.finish()
            self.exporter.close()


def check_otlp(url: str, what: str = "--otlp") -> Endpoint | None:
    """Where traces go; None when nobody wants them. An InputError for a URL that is none."""
    return read_endpoint(url, what, os.environ) if url else None


def telemetry(
    cycles: StepWatcher, world: World, otlp: str, *, place: str, tells_of_preempted: bool = True
) -> Telemetry:
    """Tells of the cycles that `cycles` counts. `place` is local or kubernetes."""
    logged = CycleLog(cycles, world)
    endpoint = check_otlp(otlp)
    if endpoint is None:
        return Telemetry(logged)
    exporter = SpanExporter(endpoint, _resource(place), version(), tell=_log.warning)
    trace = CycleTrace(logged, world, exporter.offer, tells_of_preempted=tells_of_preempted)
    _log.info("traces go to %s", endpoint)
    return Telemetry(trace, exporter, trace)


def _resource(place: str) -> Attributes:
    """Who sends, by the names that OpenTelemetry has for it."""
    host = socket.gethostname()
    return (
        ("service.name", "batuta"),
        ("service.version", version()),
        ("service.instance.id", f"{host}-{os.getpid()}"),
        ("host.name", host),
        ("batuta.place", place),
    )
