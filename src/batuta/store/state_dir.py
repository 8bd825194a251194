"""The state directory of a server, private to its owner: `$BATUTA_HOME`, by default ~/.batuta.

journal.db   the journal (and -wal, -shm)
lock         the server that uses it
token        the admin's token
mark         which journal is this directory's, how far it had come, and the job numbers that it gave out (identity.py)
jobs/<id>/   the files of one job: logs, checkpoints, working files
set-aside/   what did not belong to the journal any more

The kernel drops the advisory lock when its holder dies. The lock file is never removed: a process that has
just opened it would then hold a lock on a file that other processes do not see. Its content is for users and
for `batuta down`; after a kill -9 it is out of date, which does no harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from batuta.store.errors import AlreadyRunningError, StateDirError, StoreFullError

VARIABLE = "BATUTA_HOME"
DEFAULT = "~/.batuta"
NEEDED_BYTES = 64 << 20  # free space that a start requires: for the write-ahead log and some logs
_FOLDER_MODE, _SECRET_MODE = 0o700, 0o600
_OTHERS = 0o077
_FILE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_LOCK_WAIT_S = 0.5  # `lock_holder` takes the lock for an instant, and a new holder needs time to write its content
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The server that uses a state directory."""

    pid: int
    started_s: float
    url: str = ""  # where it listens; empty until it does

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.started_s, UTC).astimezone().isoformat(" ", "seconds")
        return f"pid {self.pid}, since {since}"


class StateLock:
    """Held from `acquire` to `release`, or to the end of the process. Child processes do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._started_s = 0.0

    def acquire(self) -> None:
        """Take the lock, or raise AlreadyRunningError with the pid of its holder."""
        if self._file is not None:
            raise AlreadyRunningError(f"this process has {self.path} already", os.getpid())
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateDirError(f"cannot open the lock {self.path}: {error.strerror}") from error
        try:
            self._take(file)
            self._started_s = time.time()
            _write(file, LockHolder(os.getpid(), self._started_s))
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def tell(self, url: str) -> None:
        """Write where the holder listens, for commands that were not given a URL."""
        if self._file is not None:
            _write(self._file, LockHolder(os.getpid(), self._started_s, url))

    def release(self) -> None:
        if self._file is not None:
            # Emptied while the lock is held: no reader sees a holder that is gone.
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def _take(self, file: int) -> None:
        give_up = time.monotonic() + _LOCK_WAIT_S
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

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_holder(path: Path) -> LockHolder | None:
    """Return the holder of the lock; None when it is free. StateDirError when the holder does not say who it is."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        give_up = time.monotonic() + _LOCK_WAIT_S
        # Shared, so that two callers do not take each other for a server.
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


def _write(file: int, holder: LockHolder) -> None:
    os.pwrite(file, json.dumps(asdict(holder)).ljust(os.fstat(file).st_size).encode(), 0)
    os.fsync(file)


def _read(file: int) -> LockHolder | None:
    try:
        data = json.loads(os.pread(file, 4096, 0))
        return LockHolder(int(data["pid"]), float(data["started_s"]), str(data.get("url", "")))
    except (ValueError, KeyError, TypeError):
        return None


def default_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the state directory that applies when none is given."""
    named = environment.get(VARIABLE)
    try:
        return Path(named or DEFAULT).expanduser().absolute()
    except RuntimeError as error:
        raise StateDirError(f"there is no home directory: set {VARIABLE} or use --home") from error


class StateDir:
    """The paths in a state directory. Nothing is created or checked before `prepare`."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = default_home() if path is None else Path(path).expanduser().absolute()
        self.journal = self.path / "journal.db"
        self.jobs = self.path / "jobs"
        self.lock = StateLock(self.path / "lock")

    def prepare(self, needed_bytes: int = NEEDED_BYTES) -> None:
        """Create what is missing; reject a directory that other users can read or that lacks space."""
        try:
            self.path.mkdir(mode=_FOLDER_MODE, parents=True)
            sync_folder(self.path.parent)
        except FileExistsError:
            self._check()
        except OSError as error:
            raise StateDirError(f"cannot make {self.path}: {error.strerror}") from error
        self.check_space(needed_bytes)
        try:
            self.jobs.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        except OSError as error:
            raise StateDirError(f"cannot make {self.jobs}: {error.strerror}") from error

    def _check(self) -> None:
        try:
            facts = self.path.stat()
            is_empty = stat.S_ISDIR(facts.st_mode) and not any(self.path.iterdir())
        except OSError as error:
            raise StateDirError(f"cannot use {self.path}: {error.strerror}") from error
        if not stat.S_ISDIR(facts.st_mode):
            raise StateDirError(f"{self.path} is not a directory")
        if facts.st_uid != os.geteuid():
            raise StateDirError(f"{self.path} belongs to another user (uid {facts.st_uid}); use another --home")
        if facts.st_mode & _OTHERS:
            # Only an empty one gets another mode: a user may have named /tmp or a project by mistake.
            if not is_empty:
                raise StateDirError(
                    f"{self.path} is open to others (mode {stat.S_IMODE(facts.st_mode):04o}): "
                    f"chmod 700 {self.path}, or use another --home"
                )
            self.path.chmod(_FOLDER_MODE)
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise StateDirError(f"{self.path} is not writable")

    def check_space(self, needed_bytes: int = NEEDED_BYTES) -> None:
        """Raise StoreFullError when this user may write less than this."""
        room = os.statvfs(self.path)
        free = room.f_bavail * room.f_frsize
        if free < needed_bytes:
            raise StoreFullError(f"{self.path} has {free >> 20} MiB free, at least {needed_bytes >> 20} MiB are needed")

    def secret(self, name: str = "token") -> Path:
        if not _FILE_NAME.fullmatch(name):
            raise StateDirError(f"{name!r} cannot be the name of a secret")
        return self.path / name

    def write_secret(self, text: str, name: str = "token") -> Path:
        """Write a file that only its owner may read: at no time is it half written or open to others."""
        path = self.secret(name)
        draft = path.with_name(f".{name}.{os.getpid()}")
        try:
            with suppress(FileNotFoundError):
                draft.unlink()
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _SECRET_MODE)
            with os.fdopen(file, "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
            sync_folder(self.path)
        except OSError as error:
            raise StateDirError(f"cannot write {path}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        return path

    def read_secret(self, name: str = "token") -> str | None:
        """Return the secret; None when there is no such file. A file that others can read is rejected."""
        path = self.secret(name)
        try:
            with path.open(encoding="utf-8") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                if mode & _OTHERS:
                    raise StateDirError(f"{path} is open to others (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}")
                return stream.read().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateDirError(f"cannot read {path}: {error.strerror}") from error


def sync_folder(path: Path) -> None:
    """Make the names in a directory durable."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
