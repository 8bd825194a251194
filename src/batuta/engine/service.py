"""An engine in a thread of its own, and the doors to it: ask for something, read the World."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from batuta.core.event import Event
from batuta.core.plan import Plan
from batuta.core.world import World
from batuta.engine.fence import Fence
from batuta.engine.loop import Engine
from batuta.engine.ports import Journal, JournalUnavailable
from batuta.engine.requests import EngineStopped, RequestFn, Requests

ANSWER_WITHIN_S = 30.0
_RETRY_S = 0.5


class RetryingJournal:
    """A journal whose commit waits until it is possible: a full disk stops the engine, and loses nothing."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.trouble = ""
        """Why nothing can be written just now; empty when all is well."""
        self.given_up = threading.Event()
        """Set to let a commit that waits fail, because the server shuts down."""

    def append(self, event: Event) -> None:
        self._journal.append(event)

    def commit(self) -> int:
        while True:
            try:
                seq = self._journal.commit()
            except JournalUnavailable as error:
                self.trouble = str(error)
                if self.given_up.wait(_RETRY_S):
                    raise
            else:
                self.trouble = ""
                return seq


class Service:
    """Runs the engine until it is told to stop. May be used from any thread."""

    def __init__(
        self,
        engine: Engine,
        requests: Requests,
        journal: RetryingJournal,
        guard: threading.RLock,
        wake: Callable[[], None],
        fence: Fence | None = None,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._journal = journal
        self._guard = guard
        self._wake = wake
        self._after_step: list[tuple[str, Callable[[World], None]]] = []
        self.fence = fence or Fence()
        """Around all that the engine can do without."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failure: BaseException | None = None
        """What the engine died of, if it did."""
        self.on_death: Callable[[BaseException], None] | None = None
        self.cpu_s = 0.0
        """CPU time of the engine's thread so far."""

    def after_step(self, part: str, call: Callable[[World], None]) -> None:
        """Have something called in the engine's thread after each of its steps, from its start on."""
        self._after_step.append((part, call))

    @property
    def trouble(self) -> str:
        """Why the engine does not go on just now; empty when it does."""
        if self.failure is not None:
            return f"the engine has died: {self.failure!r}"
        return self._journal.trouble or self._engine.trouble

    @property
    def cannot_store(self) -> str:
        """Why nothing can be written just now; empty when it can."""
        return self._journal.trouble

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self, within_s: float = 10.0) -> bool:
        """Ends the engine after the step that it is in; False when that takes too long. Jobs go on."""
        self._stopping.set()
        self._journal.given_up.set()
        self._wake()
        if self._thread.ident is not None:  # a start that was broken off ends here too
            self._thread.join(within_s)
        self._requests.close()
        return not self._thread.is_alive()

    def ask(self, make: RequestFn, within_s: float = ANSWER_WITHIN_S) -> Sequence[Event]:
        """Has something done; returns when it is durable. When `make` raises, nothing happened."""
        return self.request(make).result(within_s)

    def request(self, make: RequestFn) -> Future[Sequence[Event]]:
        """The same for who does not want to wait here."""
        if self.cannot_store:
            raise JournalUnavailable(self.cannot_store)
        return self._requests.ask(make)

    def before_answers(self, call: Callable[[], None]) -> None:
        """Has something done, in the engine's thread, before those are answered who asked for something."""

        def fenced() -> None:
            with self.fence.around("API"):
                call()

        self._requests.before_answers = fenced

    @contextmanager
    def reading(self) -> Iterator[tuple[World, Plan | None]]:
        """The World and the last plan, as long as the block lasts: keep it short, the engine waits."""
        with self._guard:
            yield self._engine.world, self._engine.last_plan

    def fork(self) -> World:
        """A copy of the World, for questions that do not delay the engine."""
        with self._guard:
            return self._engine.world.fork()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._engine.step()
                self.cpu_s = time.thread_time()
                self.fence.tend()
                for part, after_step in self._after_step:
                    with self.fence.around(part):
                        after_step(self._engine.world)
        except JournalUnavailable as error:
            self.failure = error
        except BaseException as error:
            self.failure = error
            if self.on_death is not None:
                self.on_death(error)
        finally:
            self._requests.close()


__all__ = ["ANSWER_WITHIN_S", "EngineStopped", "RetryingJournal", "Service"]
