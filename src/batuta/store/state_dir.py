"""Where a server keeps its state: `$BATUTA_HOME`, by default ~/.batuta, for its owner's eyes only.

journal.db   the journal (and -wal, -shm)
lock         which server runs here
token        the admin's token
jobs/<id>/   what belongs to one job: logs, checkpoints, working files
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from batuta.core.job import JobId
from batuta.store.errors import StateDirError, StoreFullError
from batuta.store.lock import StateLock

VARIABLE = "BATUTA_HOME"
DEFAULT = "~/.batuta"
NEEDED_BYTES = 64 << 20
"""What a start wants to find free: room for the write-ahead log and some logs."""
_FOLDER_MODE, _SECRET_MODE = 0o700, 0o600
_OTHERS = 0o077
_JOB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_FILE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def default_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The state directory that is meant when none is named."""
    named = environment.get(VARIABLE)
    try:
        return Path(named or DEFAULT).expanduser().absolute()
    except RuntimeError as error:
        raise StateDirError(f"there is no home directory: set {VARIABLE} or use --home") from error


class StateDir:
    """The paths in a state directory. Nothing is made or checked before `prepare`."""

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = default_home() if path is None else Path(path).expanduser().absolute()
        self.journal = self.path / "journal.db"
        self.jobs = self.path / "jobs"
        self.lock = StateLock(self.path / "lock")

    def prepare(self, needed_bytes: int = NEEDED_BYTES) -> None:
        """Makes what is missing, and refuses a directory that others could read or that has no room."""
        try:
            self.path.mkdir(mode=_FOLDER_MODE, parents=True)
            _sync_folder(self.path.parent)
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
            raise StateDirError(
                f"{self.path} belongs to another user (uid {facts.st_uid}); use another --home"
            )
        if facts.st_mode & _OTHERS:
            # Only an empty one is taken over: whoever names /tmp or a project by mistake must not lose it.
            if not is_empty:
                raise StateDirError(
                    f"{self.path} is open to others (mode {stat.S_IMODE(facts.st_mode):04o}): "
                    f"chmod 700 {self.path}, or use another --home"
                )
            self.path.chmod(_FOLDER_MODE)
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise StateDirError(f"{self.path} is not writable")

    # -------------------------------------------------------------------------------------------------- space

    def free_bytes(self) -> int:
        """What this user may still write there."""
        room = os.statvfs(self.path)
        return room.f_bavail * room.f_frsize

    def check_space(self, needed_bytes: int = NEEDED_BYTES) -> None:
        free = self.free_bytes()
        if free < needed_bytes:
            raise StoreFullError(
                f"{self.path} has {free >> 20} MiB free, at least {needed_bytes >> 20} MiB are needed"
            )

    # ------------------------------------------------------------------------------------------ jobs, secrets

    def job(self, job: JobId) -> Path:
        """The directory of one job. An id that could lead elsewhere is refused."""
        if not _JOB_ID.fullmatch(job):
            raise StateDirError(f"{job!r} cannot be the name of a directory")
        return self.jobs / job

    def make_job(self, job: JobId) -> Path:
        path = self.job(job)
        path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        return path

    def secret(self, name: str = "token") -> Path:
        if not _FILE_NAME.fullmatch(name):
            raise StateDirError(f"{name!r} cannot be the name of a secret")
        return self.path / name

    def write_secret(self, text: str, name: str = "token") -> Path:
        """Writes a file that only its owner may read: at no time is it half written or open to others."""
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
            _sync_folder(self.path)
        except OSError as error:
            raise StateDirError(f"cannot write {path}: {error.strerror}") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        return path

    def read_secret(self, name: str = "token") -> str | None:
        """What was written; None when there is no such file. One that others can read is refused."""
        path = self.secret(name)
        try:
            with path.open(encoding="utf-8") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                if mode & _OTHERS:
                    raise StateDirError(
                        f"{path} is open to others (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}"
                    )
                return stream.read().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateDirError(f"cannot read {path}: {error.strerror}") from error


def _sync_folder(path: Path) -> None:
    """Makes the names in a directory durable."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
