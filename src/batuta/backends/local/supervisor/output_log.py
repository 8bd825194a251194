"""The output of a replica: a pipe that all its processes write into, and a capped log.

The log is two files: the newer one at `path`, the older one at `path.1`. Each holds up to half of the cap.
When the newer one is full, it takes the place of the older one, if possible at the end of a line. So the last
(half of the cap − one line) bytes can always be read.

Beside them, `path.at` says which offset, counted from the first byte ever logged, the newer file starts at,
and which inode it has. So a reader can go on at an offset across any number of rotations (see logs.py).
"""

from __future__ import annotations

import os

from batuta.backends.local.supervisor.lean_stdlib import dump, parse
from batuta.backends.local.supervisor.report import StatusFile

_LEAST_HALF_BYTES = 16 * 1024
_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class CappedLog:
    """Appends bytes; goes on when the disk is full, and counts what it had to drop."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self.dropped_bytes = 0
        self._path = path
        self._half = max(cap_bytes // 2, _LEAST_HALF_BYTES)
        self._fd = -1
        self._size = 0
        self._ends_line = True
        self._gap_bytes = 0
        self._gap_cause = ""
        self._start = _next_offset(path)
        self._place = StatusFile(path + ".at")
        self._open()

    def write(self, data: bytearray | bytes, begin: int, end: int) -> None:
        while end - begin > self._half - self._size:
            cut = self._cut(data, begin, end)
            self._append(data, begin, cut)
            begin = cut
            if not self._rotate():
                self._drop(end - begin, "cannot rotate")
                return
        self._append(data, begin, end)

    def note(self, text: str) -> None:
        """Appends a line of the runner's own."""
        line = self._note(text)
        self.write(line, 0, len(line))

    def close(self) -> None:
        if self._gap_bytes:
            self._append(b"", 0, 0)  # the note about what is missing
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._place.close()

    def _cut(self, data: bytearray | bytes, begin: int, end: int) -> int:
        """Up to where the data still goes into the present file: a line's end if there is one."""
        limit = begin + max(self._half - self._size, 0)
        line_end = data.rfind(b"\n", begin, limit) + 1
        if line_end > begin:
            return line_end
        # No line ends here. One that begins here goes to the next file; one too long for a file is cut.
        if self._ends_line and self._size > 0:
            return begin
        return min(limit, end)

    def _append(self, data: bytearray | bytes, begin: int, end: int) -> None:
        if self._fd < 0 and not self._open():
            self._drop(end - begin, "cannot open the log")
            return
        try:
            if self._gap_bytes:
                self._tell_gap()
            with memoryview(data) as view:
                while begin < end:
                    written = os.write(self._fd, view[begin:end])
                    begin += written
                    self._size += written
                    self._ends_line = data[begin - 1] == 0x0A
        except OSError as problem:
            self._drop(end - begin, os.strerror(problem.errno or 0))

    def _tell_gap(self) -> None:
        """Says in the log how much of it is missing, now that it can be written again."""
        line = self._note(f"{self._gap_bytes} bytes of output lost: {self._gap_cause}")
        written = os.write(self._fd, line)
        self._size += written
        self._ends_line = written == len(line)
        self._gap_bytes = 0

    def _note(self, text: str) -> bytes:
        return f"{'' if self._ends_line else chr(10)}[batuta: {text}]\n".encode()

    def _drop(self, count: int, cause: str) -> None:
        self.dropped_bytes += count
        self._gap_bytes += count
        self._gap_cause = cause

    def _rotate(self) -> bool:
        if self._fd < 0 and not self._open():
            return False
        try:
            os.rename(self._path, self._path + ".1")
        except OSError:
            return False
        os.close(self._fd)
        self._fd = -1
        self._start += self._size
        self._open()
        return True

    def _open(self) -> bool:
        try:
            os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
            self._fd = os.open(self._path, _OPEN, 0o600)
        except OSError:
            self._size = 0
            return False
        stat = os.fstat(self._fd)
        self._size = stat.st_size
        self._ends_line = True
        self._place.replace(dump({"start": self._start, "inode": stat.st_ino}) + "\n")
        return True


def _next_offset(path: str) -> int:
    """The offset of the newer file's first byte, for a log that another runner may have begun."""
    try:
        with open(path + ".at", encoding="utf-8") as file:
            place = parse(file.read())
        start, inode = int(place["start"]), int(place["inode"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    try:
        older = os.stat(path + ".1")
    except OSError:
        return start
    return start + older.st_size if older.st_ino == inode else start


_READ_BYTES = 256 * 1024
_PIPE_BYTES = 64 * 1024  # what a pipe holds
_LARGE_PIPE_BYTES = 1024 * 1024
_LAST_BYTES = 64 * 1024 * 1024


class Output:
    """One end for the processes, one to wait for. It never ends: the first one stays open here as well."""

    def __init__(self, log_path: str, cap_bytes: int) -> None:
        self.log = CappedLog(log_path, cap_bytes)
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._buffer = bytearray(_READ_BYTES)
        self._is_large = False

    def take(self) -> int:
        """Moves what is there into the log, up to a bufferful; how many bytes."""
        try:
            count = os.readv(self.reader, [self._buffer])
        except BlockingIOError:
            return 0
        if count >= _PIPE_BYTES and not self._is_large:
            self._grow()
        self.log.write(self._buffer, 0, count)
        return count

    def take_rest(self) -> None:
        """Moves all that is left; not for ever, should a process that cannot be killed go on writing."""
        total = 0
        while total < _LAST_BYTES and (count := self.take()):
            total += count

    def _grow(self) -> None:
        """Lets a replica that writes a lot wait less; the kernel may refuse."""
        import fcntl

        self._is_large = True
        try:
            fcntl.fcntl(self.reader, fcntl.F_SETPIPE_SZ, _LARGE_PIPE_BYTES)
        except (AttributeError, OSError):
            return
