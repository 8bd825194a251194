"""Faults of a machine under a running server: no descriptor left, a full disk, a wall clock that jumps."""

import errno
import mmap
import os
import resource
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

DESCRIPTORS, DISK, CLOCK = "descriptors", "disk", "clock"
_SOURCE = Path(__file__).with_name("clock_offset.c")


def take_descriptors(pid: int, left: int) -> None:
    """Leave a process this many descriptors beside those that it has open. It may close and open others."""
    with suppress(ProcessLookupError, FileNotFoundError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        most = max(map(int, os.listdir(f"/proc/{pid}/fd")), default=0) + 1 + left
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(most, hard), hard))


def _write(file: int, size: int) -> bool:
    try:
        os.write(file, bytes(size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


class SmallDisk:
    """A file system that the test fills and frees. It has to be a small one of its own."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"
        self._since_s: float | None = None
        self.full_s: list[tuple[float, float]] = []
        """From when to when it was full."""

    def fill(self) -> None:
        self._since_s = time.time()
        with self._ballast.open("ab") as file:
            for size in (1 << 20, 1 << 16, 1 << 12, 1):
                while _write(file.fileno(), size):
                    pass

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
        if self._since_s is not None:
            self.full_s.append((self._since_s, time.time()))
            self._since_s = None


class WallClock:
    """The wall clock of all processes that are started with `env`."""

    def __init__(self, folder: Path) -> None:
        library, offset = folder / "clock_offset.so", folder / "clock-offset"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)], check=True)
        offset.write_bytes(bytes(8))
        with offset.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.env = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_OFFSET": str(offset)}
        self.offset_s = 0

    def jump(self, by_s: int) -> None:
        self.offset_s += by_s
        self._offset[:] = struct.pack("q", self.offset_s)
