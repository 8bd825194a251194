"""The time that this process works on its own part of each step, and its waits for other ranks.

In synchronous training all ranks take equally long for a step, because the fast ones wait for the slow ones.
The time before that wait tells a slow rank. A process that waits for long reports it, so that the rank that
hangs is the one that does not.
"""

from __future__ import annotations

import os
import time

from batuta.sdk import _lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPORT_AFTER_S = 5.0
_CHECK_S = 1.0

_reported_since_s: list[float] = []  # the start of the wait that was reported
_watched_by: list[int] = []  # the process that has the watching thread: a fork does not inherit it


class OwnTime:
    """The clock of one process: it stops while the process waits for other ranks."""

    def __init__(self) -> None:
        self.waits_since_s: float | None = None  # since when it waits, by `time.perf_counter`; None while it does not
        self._depth = 0
        self._step: int | None = None  # at the last report that named one, …
        self._since_s = 0.0  # … which was then
        self._waited_s = 0.0  # how long of the time since then it has waited

    def begin_waiting(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.waits_since_s = time.perf_counter()

    def end_waiting(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self.waits_since_s is not None:
            self._waited_s += time.perf_counter() - self.waits_since_s
            self.waits_since_s = None

    def so_far_s(self) -> float:
        """Own time since the last report that named a step; 0 before the first."""
        if self._step is None:
            return 0.0
        return max(0.0, time.perf_counter() - self._since_s - self._waited_s)

    def take(self, step: Any) -> tuple[float, int] | None:
        """Own time up to a step, and how many steps that were; None where that is not known."""
        if not isinstance(step, int) or step == self._step:
            return None
        before, own_s = self._step, self.so_far_s()
        self._step, self._since_s, self._waited_s = step, time.perf_counter(), 0.0
        return (own_s, step - before) if before is not None and step > before else None


own_time = OwnTime()


class Waiting:
    """The context manager of `sdk.waiting()`: a microsecond or two, unless the wait is long."""

    def __enter__(self) -> None:
        own_time.begin_waiting()
        if _watched_by != [os.getpid()]:
            _watch()

    def __exit__(self, *_: object) -> None:
        own_time.end_waiting()
        if _reported_since_s and own_time.waits_since_s is None:
            _reported_since_s.clear()
            _append("waited")


def report_long_wait() -> None:
    """Reports a long wait once, after the reports that were held back."""
    since_s = own_time.waits_since_s
    if since_s is not None and not _reported_since_s and time.perf_counter() - since_s > REPORT_AFTER_S:
        _reported_since_s.append(since_s)
        _lines.flush()
        _append("waiting")


def _append(event: str) -> None:
    path = os.environ.get("BATUTA_PROGRESS")
    if path:
        _lines.append_event(path, event)


def _watch() -> None:
    """Checks from a thread: a process that waits cannot report it."""
    _watched_by[:] = [os.getpid()]
    if not os.environ.get("BATUTA_PROGRESS"):
        return
    import threading  # noqa: PLC0415 - only under Batuta, at the first wait

    def run() -> None:
        while True:
            time.sleep(_CHECK_S)
            report_long_wait()

    threading.Thread(target=run, name="batuta-sdk", daemon=True).start()
