"""The output of a replica: a pipe that all its processes write into, and the log that it is read into."""

from __future__ import annotations

import os

from batuta.backends.local.supervisor.capped_log import CappedLog

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
