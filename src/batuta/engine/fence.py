"""What an engine can do without, kept from ending it: observers, work in the background, threads of others.

Only the journal may stop an engine. Whatever else fails is logged, counted by part, shown by `batuta doctor`,
and tried again after a pause; the engine goes on without it meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from batuta.core.world import World
from batuta.engine.jobs.backoff import Backoff
from batuta.engine.requests import EngineStopped

T = TypeVar("T")
TELL_AGAIN_S = 60.0  # a part that goes on failing is logged no more often than this
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0  # before what failed is tried again; it doubles
_LONGEST_SENTENCE = 400
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong with one part so far: how often, and why and when the last time."""

    failures: int
    why: str
    last_s: float
    is_failing: bool  # it has not worked since


class Fence:
    """Keeps count of failures by part, and of threads that could not be started. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.time, pause_s: float = FIRST_PAUSE_S) -> None:
        """`pause_s`: before what has failed is tried again the first time, and counts as working again."""
        self._clock = clock
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._troubles: dict[str, Trouble] = {}
        self._told_s: dict[str, float] = {}
        self._failing: set[str] = set()
        self._untold: set[str] = set()  # parts whose failure was logged, and not yet that they work again
        self._threads: list[FencedThread] = []  # those that could not be started, or that have died

    @property
    def troubles(self) -> dict[str, Trouble]:
        """By part: what has ever failed."""
        with self._lock:
            return dict(self._troubles)

    def failed(self, part: str, error: BaseException) -> None:
        now_s = self._clock()
        with self._lock:
            before = self._troubles.get(part)
            count = 1 if before is None else before.failures + 1
            self._troubles[part] = Trouble(count, sentence(error), now_s, True)
            self._failing.add(part)
            is_news = now_s >= self._told_s.get(part, -TELL_AGAIN_S) + TELL_AGAIN_S
            if is_news:
                self._told_s[part] = now_s
                self._untold.add(part)
        if is_news:
            text = "%s failed (failure %d): %s; the scheduler goes on without it and tries again"
            _log.error(text, part, count, sentence(error), exc_info=error, extra={"part": part})

    def worked(self, part: str) -> None:
        if part not in self._failing:
            return
        with self._lock:
            before = self._troubles[part]
            if self._clock() < before.last_s + self._pause_s:
                return  # some of it works, and some may not
            self._failing.discard(part)
            self._troubles[part] = replace(before, is_failing=False)
            is_news = part in self._untold
            self._untold.discard(part)
        if is_news:
            _log.info("%s works again, after %d failures so far", part, before.failures, extra={"part": part})

    def around(self, part: str) -> _Around:
        """Whatever is raised within is noted, and goes no further."""
        return _Around(self, part)

    def run(self, part: str, call: Callable[..., object], *arguments: object) -> None:
        """Call something; whatever it raises is noted, and goes no further."""
        with self.around(part):
            call(*arguments)

    def asking(self, part: str, ask: Callable[[World], T], otherwise: T) -> Callable[[World], T]:
        """A function that answers the same, and something else where that fails."""

        def answer(world: World) -> T:
            with self.around(part):
                return ask(world)
            return otherwise

        return answer

    def start(self, part: str, run: Callable[[], None]) -> FencedThread:
        """Run something in a thread of its own, started when that is possible, and again after an exception."""
        thread = FencedThread(self, part, run, self._pause_s)
        thread.try_start()
        return thread

    def background(self, part: str) -> Background:
        return Background(self, part, self._pause_s)

    def restarting(self, thread: FencedThread) -> None:
        with self._lock:
            if thread not in self._threads:
                self._threads.append(thread)

    def tend(self) -> None:
        """Starts threads that could not be started before, when their pause is over."""
        if not self._threads:
            return
        now_s = time.monotonic()
        with self._lock:
            due = [thread for thread in self._threads if now_s >= thread.not_before_s]
            self._threads = [thread for thread in self._threads if thread not in due]
        for thread in due:
            thread.try_start()


class _Around:
    __slots__ = ("_fence", "_part")

    def __init__(self, fence: Fence, part: str) -> None:
        self._fence, self._part = fence, part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            self._fence.worked(self._part)
            return False
        if isinstance(error, EngineStopped):
            return True  # nothing is wrong: the server ends
        if isinstance(error, Exception):
            self._fence.failed(self._part, error)
            return True
        return False


class NoFence(Fence):
    """A fence that raises every failure, as tests want it."""

    def failed(self, part: str, error: BaseException) -> None:
        raise error


class _Retried:
    """Work in a thread of its own. After a failure it rests: longer each time, until it works."""

    def __init__(self, fence: Fence, part: str, pause_s: float) -> None:
        self._fence, self._part, self._backoff = fence, part, Backoff(pause_s, LONGEST_PAUSE_S)
        self._thread: threading.Thread | None = None
        self._failures = 0
        self.not_before_s = 0.0

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, within_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(within_s)

    def _spawn(self, run: Callable[..., object], *arguments: object) -> bool:
        thread = threading.Thread(target=run, args=arguments, name=f"batuta-{self._part}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads just now
            self._failed(error)
            return False
        self._thread = thread
        return True

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.not_before_s = time.monotonic() + self._backoff.pause_s(self._failures)
        self._fence.failed(self._part, error)


class FencedThread(_Retried):
    """A thread that may have to wait for its start. Until then its work is not done."""

    def __init__(self, fence: Fence, part: str, run: Callable[[], None], pause_s: float) -> None:
        super().__init__(fence, part, pause_s)
        self._run, self._is_closed = run, False

    def try_start(self) -> None:
        if not self._is_closed:
            self._spawn(self._work)

    def _work(self) -> None:
        try:
            self._run()
        except EngineStopped:
            return
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        super()._failed(error)
        self._fence.restarting(self)

    def join(self, within_s: float | None = None) -> None:
        """Wait for its end; one that was never started is not started any more."""
        self._is_closed = True
        super().join(within_s)


class Background(_Retried):
    """Work that takes long, one piece at a time, each in a thread of its own."""

    @property
    def is_ready(self) -> bool:
        return not self.is_alive() and time.monotonic() >= self.not_before_s

    def begin(self, work: Callable[..., None], *arguments: object) -> bool:
        return self._spawn(self.do, work, *arguments)

    def do(self, work: Callable[..., None], *arguments: object) -> bool:
        """Do a piece here and now; return whether that worked."""
        try:
            work(*arguments)
        except Exception as error:
            self._failed(error)
            return False
        self._failures = 0
        self._fence.worked(self._part)
        return True


def sentence(error: BaseException) -> str:
    """What went wrong, as one line of bounded length: a user's object may have had its say in it."""
    said = str(error)
    said = said if len(said) <= _LONGEST_SENTENCE else f"{said[: _LONGEST_SENTENCE - 1]}…"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
