"""One server for one state directory: an advisory lock that the kernel drops when its holder dies, however.

The lock file is never removed: whoever opened it just before would hold a lock on a file that nobody else
sees. What stands in it is only for people and for `batuta down`; after a kill -9 it is out of date and does
no harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from batuta.store.errors import AlreadyRunningError, StateDirError

_PATIENCE_S = 0.5
"""A look at the lock takes it for an instant, and a new holder needs one to write its name."""
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Holder:
    """The server that has a state directory."""

    pid: int
    started_s: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.started_s, UTC).astimezone().isoformat(" ", "seconds")
        return f"pid {self.pid}, since {since}"


class StateLock:
    """Held from `acquire` to `release`, or to the end of the process. Started programs do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> None:
        """Takes the lock, or raises AlreadyRunningError with the pid of who has it."""
        if self._file is not None:
            raise AlreadyRunningError(f"this process has {self.path} already", os.getpid())
        file = _open(self.path)
        try:
            self._take(file)
            text = json.dumps(asdict(Holder(os.getpid(), time.time())))
            os.ftruncate(file, 0)
            os.pwrite(file, text.encode(), 0)
            os.fsync(file)
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            # Emptied while it is still ours: nobody reads our name after we have gone.
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def _take(self, file: int) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while not _try(file, fcntl.LOCK_EX, self.path):
            if time.monotonic() > give_up:
                holder = _read(file)
                raise AlreadyRunningError(
                    f"another server runs on {self.path.parent} ({holder or 'it did not say which'}); "
                    "stop it with `batuta down`, or use another --home",
                    None if holder is None else holder.pid,
                )
            time.sleep(_PAUSE_S)

    def __enter__(self) -> StateLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def holder_of(path: Path) -> Holder | None:
    """The server that has the lock now; None when nobody has, whatever the file says.

    Raises StateDirError when somebody has the lock and does not say who it is.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        give_up = time.monotonic() + _PATIENCE_S
        # Shared, so that two who look do not take each other for a server.
        while not _try(file, fcntl.LOCK_SH, path):
            holder = _read(file)
            if holder is not None:
                return holder
            if time.monotonic() > give_up:
                raise StateDirError(f"{path} is locked by a process that does not say which one it is")
            time.sleep(_PAUSE_S)
        return None
    finally:
        os.close(file)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(f"cannot open the lock {path}: {error.strerror}") from error


def _try(file: int, how: int, path: Path) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise StateDirError(f"{path}: this file system has no locks; use another --home") from error
        raise
    return True


def _read(file: int) -> Holder | None:
    try:
        data = json.loads(os.pread(file, 4096, 0))
        return Holder(int(data["pid"]), float(data["started_s"]))
    except (ValueError, KeyError, TypeError):
        return None
