"""What people ask of a running engine, from other threads: submit, cancel, cordon, another policy.

A request says what it wants as events, when the engine asks it and with the World before its eyes: so it can
be refused for what is true at that moment, and there is still one writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeAlias

from batuta.core.event import Event
from batuta.core.world import World

RequestFn: TypeAlias = Callable[[World], Sequence[Event]]
"""Raises what the asker shall get to see; then nothing happens."""


class Request:
    """One wish, and the place for its answer: the events that it became, durable."""

    def __init__(self, make: RequestFn) -> None:
        self._make = make
        self._events: Sequence[Event] = ()
        self.done: Future[Sequence[Event]] = Future()

    def begin(self) -> bool:
        """From now on it is carried out; False when its caller no longer waits for it."""
        return self.done.set_running_or_notify_cancel()

    def make(self, world: World) -> Sequence[Event]:
        self._events = self._make(world)
        return self._events

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What goes wrong within is the asker's to know, not the engine's to die of."""
        try:
            yield
        except Exception as error:
            self.done.set_exception(error)

    def answer(self) -> None:
        if not self.done.done():
            self.done.set_result(self._events)


class Requests:
    """Requests in the order in which they came. Any thread may add one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Request] = []
        self._closed = False
        self.before_answers: Callable[[], None] | None = None
        """Called in the engine's thread once what was asked for is durable, before the caller gets its answer."""

    def ask(self, make: RequestFn) -> Future[Sequence[Event]]:
        """Asks; the answer comes when what was asked for is durable.

        A future that is cancelled before the engine gets to it leaves nothing behind.
        """
        request = Request(make)
        with self._lock:
            if self._closed:
                raise EngineStopped("the server is shutting down")
            self._waiting.append(request)
        self._wake()
        return request.done

    def take(self) -> list[Request]:
        with self._lock:
            taken, self._waiting = self._waiting, []
        return [request for request in taken if request.begin()]

    def answer(self, served: Sequence[Request]) -> None:
        """Tells all who asked."""
        if self.before_answers is not None:
            self.before_answers()
        for request in served:
            request.answer()

    def close(self) -> None:
        """Refuses what is still waiting, and all that comes."""
        with self._lock:
            self._closed = True
        for request in self.take():
            request.done.set_exception(EngineStopped("the server is shutting down"))


class EngineStopped(Exception):
    """The engine that would carry a request out has stopped."""
