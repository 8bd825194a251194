"""Whether a journal and a state directory belong together, and which job numbers are free.

A journal that is deleted, cut or exchanged looks like any other. So the state directory has a mark: the id of
its journal, an event that the journal had, and the largest job number that may have been given out. Every job's
folder has the journal's id as well. A server that finds a journal which does not match them does not start:
its job 1 would go on from the checkpoints of another job 1.

The mark lags behind the journal, never the other way round: its event was durable before, and a job number is
given out after the mark covers it.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from batuta.store.errors import OtherStateError, StateDirError, StoreFullError
from batuta.store.records import job_number
from batuta.store.state_dir import StateDir

NAME = "mark"  # of the file, in the state directory
BLOCK = 1_000  # job numbers that are covered by one write of the mark
ASIDE = "set-aside"  # the folder of what does not belong to the journal any more
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a journal had come at least."""

    journal: str  # its id
    seq: int = 0  # an event that it had
    number: int = 0  # the largest job number that may have been given out
    floor: int = 0  # new jobs have larger numbers: those up to here may be a lost journal's


class StateMark:
    """The mark of a state directory. Any thread may move it; it is durable when a method returns."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._mark = self._read()

    @property
    def found(self) -> Mark | None:
        """The mark as it is; None in a new state directory, and in one of a version that had none."""
        return self._mark

    def put(self, mark: Mark) -> None:
        """Begin a mark of another journal, or of the same one after it was set back."""
        with self._lock:
            self._write(mark)

    def reached(self, seq: int) -> None:
        """Note that event `seq` is durable."""
        with self._lock:
            if self._mark is not None and seq > self._mark.seq:
                self._write(replace(self._mark, seq=seq))

    def take_number(self, wanted: int) -> int:
        """Return the number of a new job: the one that is wanted, unless a lost journal may have given it out."""
        with self._lock:
            mark = self._mark
            if mark is None:
                return wanted
            number = max(wanted, mark.floor + 1)
            if number > mark.number:
                self._write(replace(mark, number=number + BLOCK - 1))
            return number

    def _read(self) -> Mark | None:
        text = self._state.read_secret(NAME)
        if text is None:
            return None
        try:
            data = json.loads(text)
            return Mark(str(data["journal"]), int(data["seq"]), int(data["number"]), int(data["floor"]))
        except (ValueError, KeyError, TypeError):
            raise StateDirError(
                f"{self._state.secret(NAME)} cannot be read, which says which journal is this directory's: "
                "remove it if you know that journal.db is the right one"
            ) from None

    def _write(self, mark: Mark) -> None:
        try:
            self._state.write_secret(json.dumps(asdict(mark)), NAME)
        except StateDirError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"no room left in {self._state.path}: make room on the disk") from error
            raise
        self._mark = mark


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The folder of a job, and the journal that it was made for; None if a version made it that did not say so."""

    job: str
    path: Path
    journal: str | None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What does not match: sentences, and the folders that are not of this journal's jobs. Empty: all matches."""

    reasons: tuple[str, ...] = ()
    strays: tuple[JobFolder, ...] = ()

    def error(self, home: Path) -> OtherStateError:
        said = "".join(f"\n  - {reason}" for reason in self.reasons)
        return OtherStateError(
            f"the journal and the state directory {home} do not belong together:{said}\n"
            "Nothing was changed. Ways out:\n"
            "  - bring the journal back: batuta restore FILE --replace (a file that batuta backup wrote), or put the\n"
            "    right journal.db, and journal.db-wal if there is one, back in its place;\n"
            "  - go on with what is there: batuta up --set-aside moves folders that are not of this journal's jobs to\n"
            f"    {home / ASIDE} and stops what runs in them. It deletes nothing and uses no job number again;\n"
            "  - leave all as it is and use another directory: --home DIR"
        )


def find_mismatch(
    mark: Mark | None, journal: str | None, seq: int, folders: Iterable[JobFolder], knows: Callable[[str], bool]
) -> Mismatch:
    """Compare a journal (its id, None where there is none, and its last event) with mark and folders.

    `knows` says whether the journal ever had a job.
    """
    reasons = list[str]()
    if mark is not None and journal is None:
        reasons.append(f"journal.db is gone; it had at least {mark.seq:,} events")
    elif mark is not None and journal != mark.journal:
        reasons.append(f"journal.db is another one: its id is {journal}, the directory's is {mark.journal}")
    elif mark is not None and seq < mark.seq:
        reasons.append(f"journal.db was cut: it ends at event {seq:,}, and had at least {mark.seq:,}")
    foreign, unknown = list[JobFolder](), list[JobFolder]()
    for folder in folders:
        if folder.journal is not None and folder.journal != journal:
            foreign.append(folder)
        elif not knows(folder.job):
            unknown.append(folder)
    if foreign and journal is not None:
        reasons.append(f"{_folders(foreign)} of jobs of another journal")
    if unknown or (foreign and journal is None):
        reasons.append(f"{_folders(unknown or foreign)} of jobs that the journal does not know")
    return Mismatch(tuple(reasons), (*foreign, *unknown))


def _folders(found: list[JobFolder]) -> str:
    names = ", ".join(folder.path.name for folder in found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    return f"{'a folder is' if len(found) == 1 else f'{len(found)} folders are'} in jobs/ ({names})"


def set_aside(state: StateDir, paths: Iterable[Path], now_s: float | None = None) -> Path:
    """Move files and folders out of the state directory's way; return where they are now."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    place, n = state.path / ASIDE / stamp, 1
    while place.exists():
        n += 1
        place = state.path / ASIDE / f"{stamp}-{n}"
    try:
        place.mkdir(mode=0o700, parents=True)
        place.parent.chmod(0o700)
        for path in paths:
            target = place / path.relative_to(state.path)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.rename(path, target)
    except OSError as error:
        raise StateDirError(f"cannot set aside to {place}: {error}") from error
    return place


def adopt(mark: StateMark, journal: str, seq: int, strays: Iterable[JobFolder] = ()) -> None:
    """Make this journal the directory's own from now on. Numbers that another one may have given out stay unused."""
    before, numbers = mark.found, [job_number(folder.job) for folder in strays]
    if before is not None and before.journal == journal and before.seq <= seq and not numbers:
        return  # it is already
    used = max((0, *numbers) if before is None else (before.number, before.floor, *numbers))
    mark.put(Mark(journal, seq, used, used))
