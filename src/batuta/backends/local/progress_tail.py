"""New lines of a file that a job appends to, without holding it open."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TailPosition:
    """How far a file has been read. Kept in the journal, it spares a new server what the old one has read."""

    inode: int = 0
    offset: int = 0


class ProgressTail:
    """Yields each complete line of a file once, as the file grows; starts again when it is replaced or cut.

    One poll of a file that has not changed is one `stat`. A poll reads at most `most_bytes`; a line longer
    than that is left out and counted in `skipped_bytes`.
    """

    def __init__(
        self, path: Path, position: TailPosition | None = None, most_bytes: int = _MOST_BYTES
    ) -> None:
        self.position = position or TailPosition()
        self.skipped_bytes = 0
        self._path = path
        self._most_bytes = most_bytes
        self._in_long_line = False

    def poll(self, *, at_end: bool = False) -> list[str]:
        """The new lines. `at_end`: nothing more will be written, so the last line may lack its newline."""
        try:
            found = os.stat(self._path)
        except OSError:
            return []
        if found.st_ino != self.position.inode:
            rest = self._rest_of_rotated()
            if rest:
                return rest
            self._go_to(found.st_ino, 0)
        elif found.st_size < self.position.offset:
            self._go_to(found.st_ino, 0)
        if found.st_size == self.position.offset:
            return []
        return self._read(self._path, at_end=at_end)

    def _rest_of_rotated(self) -> list[str]:
        """What is unread of the file that had our name before, if it was moved to `.1`."""
        rotated = self._path.with_name(self._path.name + ".1")
        return self._read(rotated, at_end=True) if self.position.inode else []

    def _read(self, path: Path, *, at_end: bool) -> list[str]:
        try:
            # A job may put anything in its place: a FIFO would wait for a writer.
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return []
        try:
            if os.fstat(file).st_ino != self.position.inode:
                return []  # replaced this instant: next time
            data = os.pread(file, self._most_bytes, self.position.offset)
        except OSError:
            return []  # a folder, or the disk is broken
        finally:
            os.close(file)
        whole = data.rfind(b"\n") + 1
        if at_end and len(data) < self._most_bytes:
            whole = len(data)
        if whole == 0:
            if len(data) == self._most_bytes:
                self._skip(len(data))
            return []
        self._go_to(self.position.inode, self.position.offset + whole, in_long_line=self._in_long_line)
        lines = data[:whole].decode("utf-8", "replace").removesuffix("\n").split("\n")
        if self._in_long_line:
            self.skipped_bytes += len(lines.pop(0))
            self._in_long_line = False
        return lines

    def _skip(self, count: int) -> None:
        self._go_to(self.position.inode, self.position.offset + count, in_long_line=True)
        self.skipped_bytes += count

    def _go_to(self, inode: int, offset: int, *, in_long_line: bool = False) -> None:
        self.position = TailPosition(inode, offset)
        self._in_long_line = in_long_line
