"""A replica's log, read while it is written and rotated.

An offset counts bytes from the first one that was ever logged. It stays valid across rotations: what is no
longer there is skipped, and a piece says where it really begins. How the files lie: supervisor/output_log.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from batuta.backends.local.files import read_small

_PIECE_BYTES = 256 * 1024
_TAIL_BYTES = 8 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
_ATTEMPTS = 100

_Opened: TypeAlias = tuple[int, os.stat_result]


@dataclass(frozen=True, slots=True)
class Span:
    """Which offsets can be read: from `begin` up to `end`, without it."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a log; `begin` is later than asked for when the log was rotated away from under it."""

    begin: int
    data: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


@dataclass(frozen=True, slots=True)
class _Segment:
    """One open file of a log. It keeps its bytes, whatever name it has by now."""

    file: int
    begin: int
    end: int


class ReplicaLog:
    """The log at one path. Nothing is held open between calls, and no call needs more memory than a piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._older_path = path.with_name(path.name + ".1")

    def span(self) -> Span:
        with self._segments() as segments:
            return _span(segments)

    def read(self, offset: int, most_bytes: int = _PIECE_BYTES) -> Piece:
        """Bytes from an offset on; none when nothing more is there. A negative offset counts from the end."""
        with self._segments() as segments:
            span = _span(segments)
            if offset < 0:
                offset += span.end
            offset = min(max(offset, span.begin), span.end)
            for segment in segments:
                if segment.begin <= offset < segment.end:
                    count = min(most_bytes, segment.end - offset)
                    return Piece(offset, os.pread(segment.file, count, offset - segment.begin))
        return Piece(offset, b"")

    def pieces(self, begin: int, end: int) -> Iterator[Piece]:
        """The bytes of a range, piece by piece; ends early at the end of the log."""
        while begin < end:
            piece = self.read(begin, min(_PIECE_BYTES, end - begin))
            if not piece.data or piece.begin >= end:
                return
            yield piece if piece.end <= end else Piece(piece.begin, piece.data[: end - piece.begin])
            begin = piece.end

    def tail_offset(self, lines: int) -> int:
        """Where the last lines begin, looking at no more than the last 8 MiB."""
        with self._segments() as segments:
            span = _span(segments)
            at = span.end
            earliest = max(span.begin, span.end - _TAIL_BYTES)
            # A newline at the very end ends the last line; it does not begin another.
            wanted = lines + 1 if _bytes(segments, span.end - 1, span.end) == b"\n" else lines
            if lines <= 0:
                return span.end
            while at > earliest:
                block = max(earliest, at - _BLOCK_BYTES)
                data = _bytes(segments, block, at)
                found = data.count(b"\n")
                if found >= wanted:
                    end = len(data)
                    for _ in range(wanted):
                        end = data.rfind(b"\n", 0, end)
                    return block + end + 1
                wanted -= found
                at = block
            return earliest

    def tail(self, lines: int) -> list[str]:
        """The last lines, without their newlines."""
        begin = self.tail_offset(lines)
        text = b"".join(piece.data for piece in self.pieces(begin, begin + _TAIL_BYTES))
        return text.decode("utf-8", "replace").removesuffix("\n").split("\n") if text else []

    @contextlib.contextmanager
    def _segments(self) -> Iterator[list[_Segment]]:
        """The files of the log, the older one first, as they were at one moment."""
        with contextlib.ExitStack() as stack:
            for attempt in range(_ATTEMPTS):
                newer = _open(self._path, stack)
                older = _open(self._older_path, stack)
                place = self._place()
                if _is_still(self._path, newer) and _is_still(self._older_path, older):
                    # It may be that a rotation could not be noted, on a full disk: then not for ever.
                    inodes = [opened[1].st_ino for opened in (newer, older) if opened is not None]
                    if place is None or place[1] in inodes or attempt > _ATTEMPTS // 2:
                        yield _arrange(newer, older, place)
                        return
                    time.sleep(0.001)
                stack.close()  # rotated while we looked
            yield []

    def _place(self) -> tuple[int, int] | None:
        try:
            place = json.loads(read_small(f"{self._path}.at"))
            return int(place["start"]), int(place["inode"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _open(path: Path, stack: contextlib.ExitStack) -> _Opened | None:
    try:
        # A job may put anything in its place: a FIFO would wait for a writer.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    stack.callback(os.close, file)
    found = os.fstat(file)
    return (file, found) if stat.S_ISREG(found.st_mode) else None


def _is_still(path: Path, opened: _Opened | None) -> bool:
    """Whether a path leads to what was opened there. (An inode that is open is not given to another file.)"""
    try:
        return os.stat(path).st_ino == (opened[1].st_ino if opened else None)
    except OSError:
        return opened is None


def _arrange(newer: _Opened | None, older: _Opened | None, place: tuple[int, int] | None) -> list[_Segment]:
    """Gives both files their offsets."""
    older_bytes = older[1].st_size if older else 0
    if place is None:
        start = older_bytes
    elif older and older[1].st_ino == place[1]:
        start = place[0] + older_bytes  # rotated, but not yet noted
    else:
        start = place[0]
    segments = []
    if older:
        segments.append(_Segment(older[0], start - older_bytes, start))
    if newer:
        segments.append(_Segment(newer[0], start, start + newer[1].st_size))
    return segments


def _span(segments: list[_Segment]) -> Span:
    return Span(segments[0].begin, segments[-1].end) if segments else Span(0, 0)


def _bytes(segments: list[_Segment], begin: int, end: int) -> bytes:
    parts = []
    for segment in segments:
        low, high = max(begin, segment.begin), min(end, segment.end)
        if low < high:
            parts.append(os.pread(segment.file, high - low, low - segment.begin))
    return b"".join(parts)
