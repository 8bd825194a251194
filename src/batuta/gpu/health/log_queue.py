"""Queue the kernel log's lines about GPUs on disk, so that none is missed or counted twice over restarts."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from batuta.gpu.health.kernel_log import MAX_LINE_CHARS, Cursor, KernelLog, parse_line

FORM: Final = 1
MAX_WAITING: Final = 10_000


class QueuedLine(NamedTuple):
    """A line about a GPU. Numbers count up, so a reader knows which lines it has seen."""

    number: int
    time_s: float  # when it was read
    line: str


class QueueBusy(Exception):
    """Another process has this queue open."""


@dataclass(slots=True)
class _Content:
    """The content of the file."""

    cursor: Cursor | None = None
    next: int = 1
    waiting: list[QueuedLine] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


class KernelLogQueue:
    """A file with the log's cursor and the lines that wait to be read: both change together or not at all.

    As a context manager it locks the file. The reader stores the highest number that it has processed
    together with the result, and calls `done` afterwards: then each line counts once, whichever process is
    killed at whichever moment.
    """

    def __init__(self, path: Path, log: KernelLog, clock: Callable[[], float]) -> None:
        self._path, self._log, self._clock = path, log, clock
        self._content = _Content()
        self._lock = -1

    def __enter__(self) -> Self:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise QueueBusy(f"{self._path} is in use by another process") from None
        self._content = self._load()
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()
        os.close(self._lock)

    @property
    def waiting(self) -> tuple[QueuedLine, ...]:
        """The lines that are not done, the oldest first."""
        return tuple(self._content.waiting)

    @property
    def missed(self) -> tuple[str, ...]:
        """Sentences about parts of the log that could not be read, until `done`."""
        return tuple(self._content.missed)

    def collect(self) -> bool:
        """Read on in the log, and store lines about GPUs; return whether there was anything to read."""
        old = self._content
        batch = self._log.read(old.cursor)
        if batch.cursor == old.cursor and not batch.missed:
            return False
        now_s = self._clock()
        errors = [line[:MAX_LINE_CHARS] for line in batch.lines if parse_line(line) is not None]
        fresh = [QueuedLine(old.next + place, now_s, line) for place, line in enumerate(errors)]
        waiting = [*old.waiting, *fresh]
        missed = [*old.missed, *filter(None, [batch.missed])]
        if len(waiting) > MAX_WAITING:
            missed.append(f"{len(waiting) - MAX_WAITING} lines were dropped: no reader took them")
            waiting = waiting[-MAX_WAITING:]
        self._replace(_Content(batch.cursor, old.next + len(fresh), waiting, missed[-100:]))
        return bool(batch.lines)

    def done(self, number: int) -> None:
        """Drop the lines up to this number, and the sentences about what was missed."""
        old = self._content
        left = [note for note in old.waiting if note.number > number]
        if len(left) < len(old.waiting) or old.missed:
            self._replace(_Content(old.cursor, old.next, left, []))

    def _replace(self, new: _Content) -> None:
        """Replace the content, first on the disk and then in memory."""
        plain = {"form": FORM, "cursor": new.cursor, "next": new.next, "waiting": new.waiting, "missed": new.missed}
        unfinished = Path(f"{self._path}.new")
        with unfinished.open("w", encoding="utf-8") as file:
            json.dump(plain, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system can
                os.fsync(folder)
        finally:
            os.close(folder)
        self._content = new

    def _load(self) -> _Content:
        # If the file is lost, the new one's numbers are higher than those that a reader remembers.
        first = int(self._clock() * 1000)
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return _Content(next=first)
        try:
            return _content_of(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError):
            problem = f"{self._path} was damaged: the log is read as if for the first time"
            return _Content(next=first, missed=[problem])


def _content_of(plain: dict[str, Any]) -> _Content:
    if plain["form"] != FORM:
        raise ValueError(plain["form"])
    waiting = [QueuedLine(int(number), float(time_s), str(line)) for number, time_s, line in plain["waiting"]]
    return _Content(dict(plain["cursor"]), int(plain["next"]), waiting, [*map(str, plain["missed"])])
