"""Tells at once when a runner exits or has news, for thousands of replicas, at no cost while nothing happens.

A runner's exit is seen through a pidfd, which works for runners that a former server started too. Its news (a
phase has changed) comes as a line in a FIFO, the doorbell, that all runners know from their spec. Without
pidfds (another system, no descriptors left), the runners are looked at from time to time.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batuta.backends.local.processes import RunningReplica
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.engine.fence import Fence

_NO_PIDFD = -1


@dataclass(frozen=True, slots=True)
class RunnerEvent:
    """Something has happened to a run: its runner is gone, or its state.json has changed."""

    run_id: str
    ended: bool


class Watch:
    """Watches runners from a thread of its own. All methods may be called from any thread.

    `deliver` is called in that thread; it has to return at once and not to raise (a queue's `put`, say). The end of
    every watched runner is delivered once. News may be missed while no server runs: look at the state, do not count.
    """

    def __init__(
        self,
        deliver: Callable[[RunnerEvent], None],
        doorbell: Path | None = None,
        poll_s: float = 0.25,
        fence: Fence | None = None,
    ) -> None:
        self._deliver = deliver
        self._poll_s = poll_s
        self._mutex = threading.Lock()
        self._by_pidfd: dict[int, RunningReplica] = {}
        self._pidfds: dict[str, int] = {}
        self._polled: dict[str, RunningReplica] = {}
        self._closed = False
        self._rest = b""
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        # Only epoll lets one thread register while another waits; without it, nothing is registered later.
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._epoll.register(self._wake, select.POLLIN)
        self._bell = -1 if doorbell is None else _open_doorbell(doorbell)
        if self._bell >= 0:
            self._epoll.register(self._bell, select.POLLIN)
        self._thread = (fence or Fence()).start("watch over processes", self._run)

    def add(self, replica: RunningReplica) -> None:
        """Begins to watch a runner. Of one that has ended already, the end is delivered too."""
        with self._mutex:
            if replica.run_id in self._pidfds:
                return
            pidfd = self._open_pidfd(replica)
            self._pidfds[replica.run_id] = pidfd
            if pidfd == _NO_PIDFD:
                self._polled[replica.run_id] = replica
            else:
                self._by_pidfd[pidfd] = replica
        if pidfd == _NO_PIDFD:
            self._wake_up()

    def __len__(self) -> int:
        return len(self._pidfds)

    def close(self) -> None:
        """Ends the thread. The runners are not concerned."""
        if self._closed:
            return
        self._closed = True
        self._wake_up()
        self._thread.join()
        with self._mutex:
            for run_id in list(self._pidfds):
                self._remove(run_id)
        for file in (self._wake, self._waker, self._bell):
            if file >= 0:
                os.close(file)
        if hasattr(self._epoll, "close"):
            self._epoll.close()

    def _run(self) -> None:
        while not self._closed:
            if hasattr(select, "epoll"):
                ready = self._epoll.poll(self._poll_s if self._polled else None)
            else:
                ready = self._epoll.poll(self._poll_s * 1000.0 if self._polled else None)
            for file, _ in ready:
                if file == self._wake:
                    os.read(self._wake, 4096)
                elif file == self._bell:
                    self._answer_doorbell()
                else:
                    self._end_of_pidfd(file)
            if self._polled:
                self._look_at_polled()

    def _answer_doorbell(self) -> None:
        try:
            text = self._rest + os.read(self._bell, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = text.split(b"\n")
        for line in dict.fromkeys(lines):
            self._deliver(RunnerEvent(line.decode(errors="replace"), ended=False))

    def _end_of_pidfd(self, pidfd: int) -> None:
        with self._mutex:
            replica = self._by_pidfd.get(pidfd)
            # The number may have been closed, and opened again for another runner, since epoll told it. Asked of the
            # pidfd itself: it is open, so this needs no descriptor.
            if replica is None or not _has_exited(pidfd):
                return
            with contextlib.suppress(ChildProcessError):  # a former server's
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            self._remove(replica.run_id)
        self._deliver(RunnerEvent(replica.run_id, ended=True))

    def _look_at_polled(self) -> None:
        with self._mutex:
            over = [replica for replica in self._polled.values() if _is_known_to_be_gone(replica)]
            for replica in over:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(replica.pid, os.WNOHANG)
                self._remove(replica.run_id)
        for replica in over:
            self._deliver(RunnerEvent(replica.run_id, ended=True))

    def _remove(self, run_id: str) -> None:
        pidfd = self._pidfds.pop(run_id, _NO_PIDFD)
        self._polled.pop(run_id, None)
        if pidfd != _NO_PIDFD:
            del self._by_pidfd[pidfd]
            self._epoll.unregister(pidfd)
            os.close(pidfd)

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._waker, b"\0")

    def _open_pidfd(self, replica: RunningReplica) -> int:
        """A pidfd that is waited for; none where that is not possible now."""
        if not hasattr(select, "epoll"):
            return _NO_PIDFD
        try:
            pidfd = os.pidfd_open(replica.pid)
        except (AttributeError, OSError):
            return _NO_PIDFD  # gone, or not possible: looked at by and by, the first time at once
        try:
            # Otherwise another process has the pid now.
            if replica.is_running or _is_zombie_child(replica):
                self._epoll.register(pidfd, select.POLLIN)
                return pidfd
        except (CannotTell, OSError):
            pass
        os.close(pidfd)
        return _NO_PIDFD


def _has_exited(pidfd: int) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(0))


def _is_known_to_be_gone(replica: RunningReplica) -> bool:
    try:
        return not replica.is_running
    except CannotTell:
        return False


def _is_zombie_child(replica: RunningReplica) -> bool:
    """Whether it has exited and waits to be reaped by us: so the pid is still its own."""
    try:
        return os.waitid(os.P_PID, replica.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _open_doorbell(path: Path) -> int:
    """The FIFO at a path. Open for writing too, so that it does not end when a runner closes it."""
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(file).st_mode):
        os.close(file)
        raise FileExistsError(f"not a FIFO: {path}")
    return file
