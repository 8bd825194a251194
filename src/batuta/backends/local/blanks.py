"""Folders for jobs to come, made ahead of time.

To make four folders takes the engine's thread longer than all else that a start needs of the disk; to give
one its name is a single step. None is missed: where none is ready, a start makes its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Callable
from pathlib import Path

from batuta.backends.local.trash import throw_away

_AHEAD = 16
_INSIDE = ("", "/runs", "/runs/0", "/runs/0/0", "/logs", "/checkpoints", "/work")
"""What the first run of a job with one replica needs (job_files.py)."""


class Blanks:
    """Gives out folders that have no name yet. `later` has something done in another thread."""

    def __init__(self, root: Path, later: Callable[[Callable[[], None]], None]) -> None:
        self._root = root
        self._place = root / "blank"
        self._later = later
        self._ready: deque[str] = deque()
        later(self._begin)

    def become(self, folder: Path) -> bool:
        """Makes a folder with all that a new job's has; False when it is there already, or cannot be had."""
        try:
            blank = self._ready.popleft()
        except IndexError:
            return False
        self._later(self._make)
        try:
            os.rename(blank, folder)
        except OSError:
            return False  # the next server throws it away
        return True

    def _begin(self) -> None:
        throw_away(self._root, self._place)  # a former server's
        for _ in range(_AHEAD):
            self._make()

    def _make(self) -> None:
        blank = f"{self._place}/{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):  # no room: the start that needs it will say so
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._place, 0o700)
            for name in _INSIDE:
                os.mkdir(blank + name, 0o700)
            self._ready.append(blank)
