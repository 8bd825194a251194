"""A limit on the threads and processes that a running server may have: a cgroup of its own."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


class ThreadLimit:
    """Around one process and all that it starts from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self) -> None:
        """No thread and no process can be started any more."""
        now = (self._folder / "pids.current").read_text().strip()
        (self._folder / "pids.max").write_text(now)

    def open(self, most: int = 500) -> None:
        (self._folder / "pids.max").write_text(str(most))


@contextmanager
def thread_limit(pid: int) -> Iterator[ThreadLimit]:
    """Puts a process into a cgroup of its own, at first with a limit of 500. Skips where that cannot be."""
    root = next((one for one in _ROOTS if os.access(one / "cgroup.procs", os.W_OK)), None)
    folder = Path("/nowhere") if root is None else root / f"batuta-test-{os.getpid()}-{pid}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text("500")
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no cgroup with a limit of threads can be made here: {error}")
    try:
        yield ThreadLimit(folder)
    finally:
        _leave(folder)


def _leave(folder: Path) -> None:
    """Puts who is still there back to where the others are, and removes the cgroup."""
    for _ in range(100):
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        try:
            folder.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return
