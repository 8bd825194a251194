"""What people ask of a running engine, from other threads: submit, cancel, cordon, another policy.

A request says what it wants as events, when the engine asks it and with the World before its eyes: so it can
be refused for what is true at that moment, and there is still one writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from batuta.core.event import Event
from batuta.core.world import World

RequestFn: TypeAlias = Callable[[World], Sequence[Event]]  # raises the error that its caller gets; then nothing happens


class EngineStopped(Exception):
    """The engine that would carry a request out has stopped."""


@dataclass(slots=True, eq=False)
class Request:
    """One request, and the place for its answer: the events that it became, durable."""

    make: RequestFn
    events: Sequence[Event] = ()
    done: Future[Sequence[Event]] = field(default_factory=Future)


class Requests:
    """Requests in the order in which they came. Any thread may add one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._closed = False
        self.before_answers: Callable[[], None] | None = None  # in the engine's thread, when all is durable

    def ask(self, make: RequestFn) -> Future[Sequence[Event]]:
        """Return the answer, which comes when all is durable. Cancelled before that begins, it leaves nothing."""
        request = Request(make)
        with self._lock:
            if self._closed:
                raise EngineStopped("the server is shutting down")
            self._waiting.append(request)
        self._wake()
        return request.done

    def take(self) -> list[Request]:
        """Return the requests whose callers still wait; from now on they are carried out."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return [request for request in taken if request.done.set_running_or_notify_cancel()]

    def answer(self, served: Sequence[Request]) -> None:
        if self.before_answers is not None:
            self.before_answers()
        for request in served:
            if not request.done.done():
                request.done.set_result(request.events)

    def close(self) -> None:
        """Refuse what is still waiting, and all that comes."""
        with self._lock:
            self._closed = True
        for request in self.take():
            request.done.set_exception(EngineStopped("the server is shutting down"))
