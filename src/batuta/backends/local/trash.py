"""Folders that nobody wants any more: out of sight at once, removed when there is time.

To rename a folder is one step, so nobody ever finds half of it; to remove one takes as long as the disk
likes, and the engine's thread has jobs to start meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)


def throw_away(root: Path, folder: Path) -> None:
    """Takes a folder out of sight; nothing happens when it is not there."""
    place = root / "trash"
    try:
        _rename(folder, place)
    except FileNotFoundError:
        # The folder is not there, or the trash is not there yet.
        if folder.exists():
            with contextlib.suppress(OSError):
                place.mkdir(mode=0o700)
                _rename(folder, place)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, place: Path) -> None:
    os.rename(folder, place / secrets.token_hex(8))


class Janitor:
    """Tidies up below a root in a thread of its own: does what it is told, then empties the trash."""

    def __init__(self, root: Path) -> None:
        self._place = root / "trash"
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tasks.put(_nothing)  # for what a former server has left
        self._thread = threading.Thread(target=self._run, name="batuta-janitor", daemon=True)
        self._thread.start()

    def call(self, task: Callable[[], None] | None = None) -> None:
        """Has something done, if there is more to do than to empty the trash."""
        self._tasks.put(task or _nothing)

    def close(self, within_s: float = 5.0) -> None:
        """Ends when all is done, or later; what is left then is the next server's."""
        self._tasks.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._do_all()
            with contextlib.suppress(OSError):
                for name in os.listdir(self._place):
                    shutil.rmtree(self._place / name, ignore_errors=True)

    def _do_all(self) -> bool:
        """Waits for tasks and does all that are there; whether the last one is among them."""
        task = self._tasks.get()
        while task is not None:
            try:
                task()
            except Exception:
                # What stays is in the way of nobody.
                _log.exception("files could not be tidied up")
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return False
        return True


def _nothing() -> None:
    pass
