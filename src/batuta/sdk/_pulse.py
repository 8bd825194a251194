"""Says that this process waits for others, when it has done so for long: who hangs is who does not say so."""

from __future__ import annotations

import os
import time

from batuta.sdk import _lines
from batuta.sdk._steps import own_time

SAY_AFTER_S = 5.0
_LOOK_S = 1.0

_said_since_s: list[float] = []
"""The wait that was told of, by its beginning."""
_watched_by: list[int] = []
"""The process that has a thread for it: a fork has none."""


class Waiting:
    """What `sdk.waiting()` gives. A microsecond or two, unless the wait is long."""

    def __enter__(self) -> None:
        own_time.begin_waiting()
        if _watched_by != [os.getpid()]:
            _watch()

    def __exit__(self, *_: object) -> None:
        own_time.end_waiting()
        if _said_since_s and own_time.waits_since_s is None:
            _said_since_s.clear()
            _say("waited")


def look() -> None:
    """Says once that it has been waiting for long, and before that what was held back."""
    since_s = own_time.waits_since_s
    if since_s is not None and not _said_since_s and time.perf_counter() - since_s > SAY_AFTER_S:
        _said_since_s.append(since_s)
        _lines.flush()
        _say("waiting")


def _say(event: str) -> None:
    path = os.environ.get("BATUTA_PROGRESS")
    if path:
        _lines.append_event(path, event)


def _watch() -> None:
    """Looks now and then from a thread: who waits cannot say so."""
    _watched_by[:] = [os.getpid()]
    if not os.environ.get("BATUTA_PROGRESS"):
        return
    import threading  # noqa: PLC0415 - only for who waits, under Batuta

    def run() -> None:
        while True:
            time.sleep(_LOOK_S)
            look()

    threading.Thread(target=run, name="batuta-sdk", daemon=True).start()
