"""Exports spans from a background thread, for which the caller never waits; and what is told of an engine's cycles."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batuta import __version__
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.telemetry.logs import CycleLog
from batuta.telemetry.otlp import Endpoint, ExportResponse, encode_spans, parse_endpoint, rejected_spans
from batuta.telemetry.traces import Attributes, CycleTrace, Span

SENT, QUEUE_FULL, GIVEN_UP, REFUSED = "sent", "queue_full", "given_up", "refused"
OUTCOMES = (SENT, QUEUE_FULL, GIVEN_UP, REFUSED)
"""Outcomes of a span: accepted; dropped because the queue was full, after all attempts, or as rejected."""


_log = logging.getLogger("batuta.telemetry")


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """Sizes, intervals and retries of the export."""

    queued: int = 8192  # spans that wait at most; more are dropped
    batch: int = 512
    every_s: float = 1.0  # no span waits longer than this for its batch to fill
    attempts: int = 5
    timeout_s: float = 10.0  # of each wait for the endpoint
    first_pause_s: float = 1.0  # between attempts; it doubles
    longest_pause_s: float = 30.0  # also when the endpoint asks for more by Retry-After
    flush_s: float = 3.0  # for all that is queued at `close`


class SpanExporter:
    """Accepts spans from any thread, and posts them in batches."""

    def __init__(
        self,
        receiver: Endpoint,
        resource: Attributes,
        version: str,
        limits: ExportLimits = ExportLimits(),  # noqa: B008  (frozen)
        tell: Callable[[str], None] = lambda sentence: None,
        fence: Fence | None = None,
    ) -> None:
        """`tell` is called when the export begins to fail, and when it works again."""
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._receiver = receiver
        self._resource = resource
        self._version = version
        self._limits = limits
        self._tell = tell
        self._jitter = random.Random()
        self._queue: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._give_up_s = float("inf")  # from then on, by the monotonic clock, nothing is sent
        self.is_failing = False
        self._thread = (fence or Fence()).start("traces", self._run)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def offer(self, spans: Sequence[Span]) -> None:
        """Queue spans. It neither waits nor raises; spans beyond the limit are dropped and counted."""
        with self._changed:
            before, batch = len(self._queue), self._limits.batch
            room = 0 if self._closing.is_set() else self._limits.queued - before
            self._queue.extend(spans[:room] if room > 0 else ())
            self.counts[QUEUE_FULL] += max(0, len(spans) - max(0, room))
            if before == 0 or before < batch <= len(self._queue):
                # Only when there is something to do: a wake-up costs the caller time.
                self._changed.notify()

    def close(self) -> None:
        """Send what is queued, for at most `flush_s`; drop the rest."""
        with self._changed:
            self._give_up_s = time.monotonic() + self._limits.flush_s
            self._closing.set()
            self._changed.notify()
        self._thread.join(self._limits.flush_s)
        if self._thread.is_alive():
            self._receiver.abort()
            self._thread.join(0.5)
        with self._changed:
            self.counts[GIVEN_UP] += len(self._queue)
            self._queue.clear()

    def _run(self) -> None:
        while batch := self._next_batch():
            outcome = self._deliver(batch)
            self._count(batch, outcome)

    def _next_batch(self) -> list[Span]:
        limits = self._limits
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            self._changed.wait_for(lambda: len(self._queue) >= limits.batch or self._closing.is_set(), limits.every_s)
            if time.monotonic() >= self._give_up_s:
                return []
            return [self._queue.popleft() for _ in range(min(limits.batch, len(self._queue)))]

    def _deliver(self, batch: Sequence[Span]) -> ExportResponse:
        limits, body = self._limits, encode_spans(self._resource, self._version, batch)
        pause_s = limits.first_pause_s
        for attempt in range(limits.attempts):
            if attempt and self._closing.wait(pause_s * self._jitter.uniform(0.8, 1.2)):
                break  # after `close`, each batch has one attempt
            left_s = self._give_up_s - time.monotonic()
            if left_s <= 0:
                break
            response = self._receiver.post(body, min(limits.timeout_s, left_s))
            if response.is_success or not response.is_retryable:
                return response
            self._note_failure(response)
            pause_s = min(limits.longest_pause_s, limits.first_pause_s * 2**attempt)
            if response.retry_after_s is not None:
                pause_s = min(limits.longest_pause_s, max(response.retry_after_s, limits.first_pause_s))
        return ExportResponse(0)

    def _count(self, batch: Sequence[Span], response: ExportResponse) -> None:
        rejected = min(rejected_spans(response.body), len(batch)) if response.is_success else 0
        outcome = SENT if response.is_success else GIVEN_UP if response.is_retryable else REFUSED
        with self._changed:
            self.counts[outcome] += len(batch) - rejected
            self.counts[REFUSED] += rejected
        if not response.is_success and not response.is_retryable:
            self._note_failure(response)
        elif response.is_success and self.is_failing:
            self.is_failing = False
            self._tell(f"traces are sent to {self._receiver} again")

    def _note_failure(self, response: ExportResponse) -> None:
        """Report the first failure, and not every attempt."""
        if not self.is_failing:
            self.is_failing = True
            self._tell(f"traces cannot be sent to {self._receiver}: {response.error}")


@dataclass(slots=True)
class Telemetry:
    """What is told of the engine, and who sends its spans."""

    log: CycleLog
    exporter: SpanExporter | None = None
    trace: CycleTrace | None = None

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
