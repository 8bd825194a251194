"""Files in folders that a job may write to, read, created and removed without blocking the engine.

Small files are read and replaced as a whole. A FIFO in the place of a file would block the engine for as long
as the job likes, so only regular files are read, and opening never waits.

A folder that is no longer needed is renamed into the trash, which is one step, and removed by a thread
(`TrashCollector`). Folders for new jobs are created ahead of time (`DirectoryPool`): creating them takes the
engine's thread longer than anything else that a start needs of the disk, and a rename is a single step. When
the pool is empty, a start creates its own.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import secrets
import shutil
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from batuta.backends.local.supervisor.process_tree import CannotTell, is_gone

if TYPE_CHECKING:
    from batuta.engine.fence import Fence


Place: TypeAlias = Path | str
_LARGEST_BYTES = 16 * 2**20


def read_small(path: Place, most_bytes: int = _LARGEST_BYTES, owner: int | None = None) -> bytes:
    """What is in a regular file. OSError when there is none, or one that is too large to be what it should be.

    With an `owner` it has to belong to that user, and not be a link.
    """
    file = open_regular(path, owner)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            raise OSError(f"no regular file of at most {most_bytes} bytes: {path}")
        return os.read(file, found.st_size)
    finally:
        os.close(file)


def open_regular(path: Place, owner: int | None = None) -> int:
    """Opens a file of a job without waiting. With an `owner` OSError unless it is that user's, and no link."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    file = os.open(path, flags | (0 if owner is None else os.O_NOFOLLOW))
    if owner is not None:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            os.close(file)
            raise OSError(errno.ELOOP, f"no regular file of user id {owner}", str(path))
    return file


def write_small(path: Place, data: bytes) -> None:
    """Writes a file that only its owner can read. OSError when the disk does not let us."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    file = os.open(path, flags, 0o600)
    try:
        write_all(file, data)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


_NONSENSE = frozenset((None, errno.EISDIR, errno.ELOOP, errno.ENXIO))
"""Something else lies there than the regular file that Batuta wrote."""


def unless_gone(problem: OSError) -> None:
    """Returns when the error says that there is no such file. CannotTell for all that says only: not readable now."""
    if not (is_gone(problem) or problem.errno in _NONSENSE):
        raise CannotTell(str(problem)) from problem


def read_json(path: Place) -> Any:
    """What is in a file; None when nothing is that makes sense. CannotTell when it cannot be read now."""
    try:
        return json.loads(read_small(path))
    except OSError as problem:
        return unless_gone(problem)
    except (ValueError, RecursionError):
        return None


def list_folder(path: Place) -> list[str]:
    """The names in a folder; none where there is no such folder. CannotTell when it cannot be read now."""
    try:
        return os.listdir(path)
    except OSError as problem:
        unless_gone(problem)
        return []


def write_json(path: Place, value: Any) -> None:
    """Replaces a file as a whole. OSError when the disk does not let us; then the old one stays."""
    draft = f"{path}.new"
    write_small(draft, f"{json.dumps(value)}\n".encode())
    os.replace(draft, path)


REMOVAL_PART = "removal of old files"


def move_to_trash(root: Path, folder: Path) -> None:
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


def empty_trash(place: Path) -> None:
    """Removes what is in the trash; what cannot be removed now stays for the next time.

    A job may have made what is there, as deep as it likes. So folders within folders are moved to the top first: no
    more than two are open at a time. Nothing is named by a path, in which a link could lead elsewhere.
    """
    top = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = deque(os.listdir(top))
        while names:
            with contextlib.suppress(OSError):
                names.extend(_remove(top, names.popleft()))
    finally:
        os.close(top)


def _remove(top: int, name: str) -> list[str]:
    """Removes a file or a folder of the trash; the names of the folders in it, which it has moved to the trash."""
    try:
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except NotADirectoryError:
        os.unlink(name, dir_fd=top)
        return []
    moved = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.name, dir_fd=folder)
                    elif not _remove_empty(folder, entry.name):
                        moved.append(secrets.token_hex(8))
                        os.rename(entry.name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    _remove_empty(top, name)
    return moved


def _remove_empty(folder: int, name: str) -> bool:
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError:
        return False
    return True


class TrashCollector:
    """Tidies up below a root in a thread of its own: does what it is told, then empties the trash."""

    def __init__(self, root: Path, fence: Fence, area: Path | None = None) -> None:
        """`area` has a trash of its own: it may lie on another disk."""
        self._places = [folder / "trash" for folder in (root, area) if folder is not None]
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.call()  # for what a former server has left
        self._fence = fence
        self._thread = self._fence.start(REMOVAL_PART, self._run)

    def call(self, task: Callable[[], None] | None = None) -> None:
        """Has something done, if there is more to do than to empty the trash."""
        self._tasks.put(task or (lambda: None))

    def close(self, within_s: float = 5.0) -> None:
        """Ends when all is done, or later; what is left then is the next server's."""
        self._tasks.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._do_all()
            for place in self._places:
                with contextlib.suppress(OSError):
                    empty_trash(place)

    def _do_all(self) -> bool:
        """Waits for tasks and does all that are there; whether the last one is among them."""
        task = self._tasks.get()
        while task is not None:
            # A folder that stays is harmless.
            with self._fence.around(REMOVAL_PART):
                task()
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return False
        return True


STAMP = "journal-id"


def write_stamp(folder: Place, journal: str) -> None:
    """Says in a job's folder which journal knows the job. OSError when the disk does not let us."""
    # As a whole or not at all: half an id, of a disk that was full, would be that of another journal.
    draft = f"{folder}/{STAMP}.new"
    write_small(draft, f"{journal}\n".encode())
    os.replace(draft, f"{folder}/{STAMP}")


def read_stamp(folder: Path) -> str | None:
    """The journal that knows the job of a folder; None when it does not say. OSError: that cannot be told."""
    try:
        return read_small(folder / STAMP, 1024).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None


_AHEAD = 16
_INSIDE = ("", "/runs", "/runs/0", "/runs/0/0", "/logs", "/checkpoints", "/work")
"""What the first run of a job with one replica needs (job_files.py)."""


class DirectoryPool:
    """Gives out folders that have no name yet. `later` has something done in another thread.

    `journal` is the id of the journal that knows the jobs; empty: their folders do not say so.
    """

    def __init__(self, root: Path, later: Callable[[Callable[[], None]], None], journal: str = "") -> None:
        self._root = root
        self._journal = journal
        self._place = root / "blank"
        self._later = later
        self._ready: deque[str] = deque()
        later(self._begin)

    def take(self, folder: Path) -> bool:
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

    def stamp(self, folder: Place) -> None:
        """Says in a folder that was made elsewhere which journal knows its job."""
        if self._journal:
            write_stamp(folder, self._journal)

    def _begin(self) -> None:
        move_to_trash(self._root, self._place)  # a former server's
        for _ in range(_AHEAD):
            self._make()

    def _make(self) -> None:
        blank = f"{self._place}/{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):  # no room: the start that needs it will say so
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._place, 0o700)
            for name in _INSIDE:
                os.mkdir(blank + name, 0o700)
            self.stamp(blank)
            self._ready.append(blank)
