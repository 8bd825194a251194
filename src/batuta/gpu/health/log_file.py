"""A kernel log that a daemon writes into a file, and rotates."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

from batuta.gpu.health.kernel_log import Batch, Cursor

_PRINT_BYTES: Final = 1024
_MOST_BYTES: Final = 8 << 20
"""Read at once of one file; the rest comes with the next read."""
_TRIES: Final = 5
"""Files may be renamed while they are looked for."""
_PACKED: Final = re.compile(r"\.(?:gz|xz|zst|bz2)$")
_NUMBER: Final = re.compile(r"\.(\d{1,9})$")


class LogFile:
    """Whole lines of a file; a cursor is its inode, an offset and a fingerprint of what lies before that.

    The fingerprint tells the file that was read from one that was emptied and written anew, and from one that
    got the inode of a deleted file. What was rotated away meanwhile is found beside the file (`kern.log.1`,
    `kern.log-20261116`) and read to its end first. Only packed or deleted files are lost, which is said.
    """

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        """`from_start`: whoever has no cursor gets the file from its beginning, and not only what comes."""
        self._path, self._from_start = path, from_start

    def read(self, cursor: Cursor | None) -> Batch:
        """The whole lines behind a cursor, of one file at a time. One that is not there yet has none."""
        if cursor is None:
            return self._begin()
        with ExitStack() as files:
            there = self._all(files)
            if there is None:
                return Batch((), cursor)  # they are just being rotated: the next look will find them in order
            old, newer = _find(cursor, there)
            if old is not None:
                return _take_on(old, newer, int(cursor["offset"]))
            current = self._open(self._path, files)
            if current is None:
                return Batch((), cursor)
            told = f"{self._path} was replaced; what was not read of the file before is gone or packed"
            # Inode 0 says that there was no file: then nothing can be missing.
            return _take(current, 0, missed=told if cursor["inode"] else "")

    def _begin(self) -> Batch:
        with ExitStack() as files:
            file = self._open(self._path, files)
            if file is None:
                return Batch((), {"inode": 0, "offset": 0, "print": ""})
            if self._from_start:
                return _take(file, 0)
            return Batch((), _cursor(file, _line_start(file)))

    def _all(self, files: ExitStack) -> list[BinaryIO] | None:
        """The file and those beside it, the newest first; None while they are being renamed.

        A listing that is made meanwhile may lack a file, or have one twice, and so may what is opened by it:
        it counts if all have the same names before and afterwards.
        """
        for _ in range(_TRIES):
            paths = [self._path, *self._rotated()]
            opened = [self._open(path, files) for path in paths]
            inodes = [None if file is None else os.fstat(file.fileno()).st_ino for file in opened]
            if [self._path, *self._rotated()] == paths and list(map(_inode, paths)) == inodes:
                return [file for file in opened if file is not None]
        return None

    def _rotated(self) -> list[Path]:
        """The files beside it, the newest first."""
        name = self._path.name
        beside = [
            path
            for path in self._path.parent.glob(f"{_no_glob(name)}[.-]*")
            if not _PACKED.search(path.name) and path.is_file()
        ]
        numbered = {path: int(found[1]) for path in beside if (found := _NUMBER.search(path.name))}
        dated = sorted((path for path in beside if path not in numbered), reverse=True)
        return [*sorted(numbered, key=numbered.__getitem__), *dated]

    @staticmethod
    def _open(path: Path, files: ExitStack) -> BinaryIO | None:
        try:
            return files.enter_context(path.open("rb"))
        except FileNotFoundError:
            return None


def _find(cursor: Cursor, there: list[BinaryIO]) -> tuple[BinaryIO | None, list[BinaryIO]]:
    """The file that a cursor is about, and all newer ones, the oldest of them first."""
    # A copy will do if the file itself is not there: some daemons copy a log and empty it.
    for must_be_itself in (True, False):
        for place, file in enumerate(there):
            if _is_of(file, cursor, must_be_itself):
                return file, there[:place][::-1]
    return None, []


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _take_on(old: BinaryIO, newer: list[BinaryIO], offset: int) -> Batch:
    """On with the old file, or with a newer one when the old one is at its end for good."""
    # A daemon goes on with the old file for a while after it was renamed. Once there is something in a newer
    # one, it does not any more; so this is looked at before the old one is read. Some are rotated empty.
    successor = next((file for file in newer if os.fstat(file.fileno()).st_size > 0), None)
    batch = _take(old, offset, is_final=successor is not None)
    if successor is None or batch.lines:
        return batch
    return _take(successor, 0)


def _take(file: BinaryIO, offset: int, *, is_final: bool = False, missed: str = "") -> Batch:
    """The whole lines from an offset on; of a file that nobody will go on writing, the last half line too."""
    file.seek(offset)
    data = file.read(_MOST_BYTES)
    whole = len(data) if is_final and len(data) < _MOST_BYTES else data.rfind(b"\n") + 1
    if not whole and len(data) == _MOST_BYTES:
        whole = len(data)  # A line without an end is none of the kernel's.
    text = data[:whole].decode(errors="replace")
    lines = text.removesuffix("\n").split("\n") if text else []
    return Batch(tuple(lines), _cursor(file, offset + whole), missed)


def _cursor(file: BinaryIO, offset: int) -> Cursor:
    return {"inode": os.fstat(file.fileno()).st_ino, "offset": offset, "print": _fingerprint(file, offset)}


def _is_of(file: BinaryIO, cursor: Cursor, must_be_itself: bool) -> bool:
    """Whether a file holds what was read."""
    offset, stat = int(cursor["offset"]), os.fstat(file.fileno())
    is_itself = stat.st_ino == cursor["inode"]
    if stat.st_size < offset or not (is_itself or (offset and not must_be_itself)):
        return False
    return _fingerprint(file, offset) == cursor["print"]


def _fingerprint(file: BinaryIO, offset: int) -> str:
    """Of the first and the last bytes that were read."""
    file.seek(0)
    head = file.read(min(offset, _PRINT_BYTES))
    file.seek(max(0, offset - _PRINT_BYTES))
    return hashlib.sha256(head + file.read(min(offset, _PRINT_BYTES))).hexdigest()[:32]


def _line_start(file: BinaryIO) -> int:
    """Where the line begins that is being written at the end."""
    end = file.seek(0, os.SEEK_END)
    start = max(0, end - (64 << 10))
    file.seek(start)
    return start + file.read(end - start).rfind(b"\n") + 1


def _no_glob(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
