"""Folders that nobody wants any more: out of sight at once, removed when there is time.

To rename a folder is one step, so nobody ever finds half of it; to remove one takes as long as the disk
likes, and the engine's thread has jobs to start meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from pathlib import Path


def throw_away(root: Path, folder: Path) -> None:
    """Takes a folder out of sight; nothing happens when it is not there."""
    place = root / "trash"
    try:
        _rename(folder, place)
    except FileNotFoundError:
        # The folder is not there, or the trash is not there yet.
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700)
            _rename(folder, place)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _rename(folder: Path, place: Path) -> None:
    os.rename(folder, place / secrets.token_hex(8))


class Janitor:
    """Empties the trash below a root, in a thread of its own, whenever it is told that something is in it."""

    def __init__(self, root: Path) -> None:
        self._place = root / "trash"
        self._called = threading.Event()
        self._called.set()  # for what a former server has left
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="batuta-janitor", daemon=True)
        self._thread.start()

    def call(self) -> None:
        self._called.set()

    def close(self, within_s: float = 5.0) -> None:
        """Ends when the trash is empty, or later; what is left then is the next server's."""
        self._is_closed = True
        self._called.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while True:
            self._called.wait()
            self._called.clear()
            is_last = self._is_closed
            with contextlib.suppress(OSError):
                for name in os.listdir(self._place):
                    shutil.rmtree(self._place / name, ignore_errors=True)
            if is_last:
                return
