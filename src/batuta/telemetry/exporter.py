"""Sends spans away from a thread of its own: whoever has one to tell never waits for anybody."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from batuta.telemetry.endpoint import Answer
from batuta.telemetry.otlp_json import encode, rejected_spans
from batuta.telemetry.span import Attributes, Span

SENT, QUEUE_FULL, GIVEN_UP, REFUSED = "sent", "queue_full", "given_up", "refused"
OUTCOMES = (SENT, QUEUE_FULL, GIVEN_UP, REFUSED)
"""What becomes of a span: taken; dropped for want of room, after all attempts, or because it was refused."""


@dataclass(frozen=True, slots=True)
class ExportLimits:
    """What is sent how often, and when it is given up."""

    queued: int = 8192
    """Spans that wait at most; what comes then is dropped."""
    batch: int = 512
    every_s: float = 1.0
    """No span waits longer than this for others to go with it."""
    attempts: int = 5
    timeout_s: float = 10.0
    """Of one wait for the endpoint."""
    first_pause_s: float = 1.0
    """Between attempts; it doubles."""
    longest_pause_s: float = 30.0
    """Whatever the endpoint asks for."""
    flush_s: float = 3.0
    """For all that is left, at the end."""


class Receiver(Protocol):
    """Who spans are posted to."""

    def post(self, body: bytes, within_s: float) -> Answer: ...

    def break_off(self) -> None: ...


class SpanExporter:
    """Takes spans from any thread, and posts them in batches."""

    def __init__(
        self,
        receiver: Receiver,
        resource: Attributes,
        version: str,
        limits: ExportLimits = ExportLimits(),  # noqa: B008  (frozen)
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`tell` hears when sending begins to fail, and when it works again."""
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        """Spans by what became of them."""
        self._receiver = receiver
        self._resource = resource
        self._version = version
        self._limits = limits
        self._tell = tell
        self._jitter = random.Random()
        self._queue: deque[Span] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._give_up_s = float("inf")
        """From then on, by the monotonic clock, nothing is sent any more."""
        self.is_failing = False
        """The last attempt did not work."""
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return len(self._queue)

    def offer(self, spans: Sequence[Span]) -> None:
        """Has them sent some time. It neither waits nor raises; what finds no room is dropped and counted."""
        with self._changed:
            before, batch = len(self._queue), self._limits.batch
            room = 0 if self._closing.is_set() else self._limits.queued - before
            self._queue.extend(spans[:room] if room > 0 else ())
            self.counts[QUEUE_FULL] += max(0, len(spans) - max(0, room))
            if before == 0 or before < batch <= len(self._queue):
                # Only when there is something to do: to be woken takes time from whoever wakes.
                self._changed.notify()

    def close(self) -> None:
        """Sends what is left, as long as that takes no more than its time. Returns within about that."""
        with self._changed:
            self._give_up_s = time.monotonic() + self._limits.flush_s
            self._closing.set()
            self._changed.notify()
        self._thread.join(self._limits.flush_s)
        if self._thread.is_alive():
            self._receiver.break_off()
            self._thread.join(0.5)
        with self._changed:
            self.counts[GIVEN_UP] += len(self._queue)
            self._queue.clear()

    # ------------------------------------------------------------------------------------ the thread's own

    def _run(self) -> None:
        while batch := self._next_batch():
            outcome = self._deliver(batch)
            self._count(batch, outcome)

    def _next_batch(self) -> list[Span]:
        """What goes next; nothing when the end has come."""
        limits = self._limits
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            self._changed.wait_for(
                lambda: len(self._queue) >= limits.batch or self._closing.is_set(), limits.every_s
            )
            if time.monotonic() >= self._give_up_s:
                return []
            return [self._queue.popleft() for _ in range(min(limits.batch, len(self._queue)))]

    def _deliver(self, batch: Sequence[Span]) -> Answer:
        """The last answer. A receiver that is away is asked again, but not for ever."""
        limits, body = self._limits, encode(self._resource, self._version, batch)
        pause_s = limits.first_pause_s
        for attempt in range(limits.attempts):
            if attempt and self._closing.wait(pause_s * self._jitter.uniform(0.8, 1.2)):
                break  # at the end, each batch has one attempt
            left_s = self._give_up_s - time.monotonic()
            if left_s <= 0:
                break
            answer = self._receiver.post(body, min(limits.timeout_s, left_s))
            if answer.is_good or not answer.is_worth_another:
                return answer
            self._note(answer)
            pause_s = min(limits.longest_pause_s, limits.first_pause_s * 2**attempt)
            if answer.retry_after_s is not None:
                pause_s = min(limits.longest_pause_s, max(answer.retry_after_s, limits.first_pause_s))
        return Answer(0)

    def _count(self, batch: Sequence[Span], answer: Answer) -> None:
        rejected = min(rejected_spans(answer.body), len(batch)) if answer.is_good else 0
        outcome = SENT if answer.is_good else GIVEN_UP if answer.is_worth_another else REFUSED
        with self._changed:
            self.counts[outcome] += len(batch) - rejected
            self.counts[REFUSED] += rejected
        if not answer.is_good and not answer.is_worth_another:
            self._note(answer)
        elif answer.is_good and self.is_failing:
            self.is_failing = False
            self._tell(f"traces are sent to {self._receiver} again")

    def _note(self, answer: Answer) -> None:
        """Once, and not with each attempt."""
        if not self.is_failing:
            self.is_failing = True
            self._tell(f"traces cannot be sent to {self._receiver}: {answer.trouble}")
