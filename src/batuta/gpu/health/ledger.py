"""What the kernel log told about GPUs, noted so that no line is missed or counted twice over restarts."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from batuta.gpu.health.kernel_line import LONGEST, parse_line
from batuta.gpu.health.kernel_log import Cursor, KernelLog

FORM: Final = 1
MOST_WAITING: Final = 10_000


class Note(NamedTuple):
    """A line that tells of a GPU. Numbers count up: whoever has seen one knows it by its number."""

    number: int
    time_s: float
    """When it was read."""
    line: str


class LedgerBusy(Exception):
    """Another process has this ledger."""


@dataclass(slots=True)
class _Page:
    """All that is in the file."""

    cursor: Cursor | None = None
    next: int = 1
    waiting: list[Note] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


class Ledger:
    """A file with the cursor and the notes that nobody has taken yet: both change together or not at all.

    As a context manager it has the file for itself. The reader of the notes remembers the highest number that
    it has dealt with, together with what it made of it, and says `done` afterwards: then each line counts
    once, whoever is killed when.
    """

    def __init__(self, path: Path, log: KernelLog, clock: Callable[[], float]) -> None:
        self._path, self._log, self._clock = path, log, clock
        self._page = _Page()
        self._lock = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise LedgerBusy(f"{self._path} is in use by another process") from None
        self._page = self._load()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)

    @property
    def waiting(self) -> tuple[Note, ...]:
        """What was noted and is not done, the oldest first."""
        return tuple(self._page.waiting)

    @property
    def missed(self) -> tuple[str, ...]:
        """Sentences about what could not be read, until they are done as well."""
        return tuple(self._page.missed)

    def collect(self) -> bool:
        """Reads on in the log; whether there was anything to read. What it notes is on the disk."""
        page = self._page
        batch = self._log.read(page.cursor)
        if batch.cursor == page.cursor and not batch.missed:
            return False
        now_s = self._clock()
        told = [line[:LONGEST] for line in batch.lines if parse_line(line) is not None]
        notes = [Note(page.next + place, now_s, line) for place, line in enumerate(told)]
        waiting = [*page.waiting, *notes]
        missed = [*page.missed, *filter(None, [batch.missed])]
        if len(waiting) > MOST_WAITING:
            missed.append(f"{len(waiting) - MOST_WAITING} notes were dropped: nobody took them")
            waiting = waiting[-MOST_WAITING:]
        self._turn(_Page(batch.cursor, page.next + len(notes), waiting, missed[-100:]))
        return bool(batch.lines)

    def done(self, number: int) -> None:
        """All notes up to this number are dealt with, and so is what was missed."""
        page = self._page
        left = [note for note in page.waiting if note.number > number]
        if len(left) < len(page.waiting) or page.missed:
            self._turn(_Page(page.cursor, page.next, left, []))

    def _turn(self, page: _Page) -> None:
        """The new page takes the place of the old one, first on the disk and then here."""
        plain = {
            "form": FORM,
            "cursor": page.cursor,
            "next": page.next,
            "waiting": page.waiting,
            "missed": page.missed,
        }
        fresh = Path(f"{self._path}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(plain, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system can
                os.fsync(folder)
        finally:
            os.close(folder)
        self._page = page

    def _load(self) -> _Page:
        # Should a ledger be lost, its successor's numbers are higher than those that somebody remembers.
        first = int(self._clock() * 1000)
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return _Page(next=first)
        try:
            return _page_of(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            told = f"{self._path} was damaged: the log is read as if for the first time"
            return _Page(next=first, missed=[told])


def _page_of(plain: dict[str, Any]) -> _Page:
    if plain["form"] != FORM:
        raise ValueError(plain["form"])
    waiting = [Note(int(number), float(time_s), str(line)) for number, time_s, line in plain["waiting"]]
    return _Page(dict(plain["cursor"]), int(plain["next"]), waiting, [*map(str, plain["missed"])])
