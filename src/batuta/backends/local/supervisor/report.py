"""What a runner reports of its replica: `state.json`, the doorbell, and checkpoint requests.

A status file is replaced as a whole, also when the disk has become full.
"""

from __future__ import annotations

import os
import time

from batuta.backends.local.supervisor import process_tree
from batuta.backends.local.supervisor.lean_stdlib import TYPE_CHECKING, dump

if TYPE_CHECKING:
    from typing import Any


_SIZE_BYTES = 4096


class StatusFile:
    """Publishes a text under a path: a reader sees the old text or the new one, never a part.

    The next version is written into a spare file that has its space already, and is renamed. That frees the
    space of the old version, of which the next spare is made. So the last news of a replica (its exit code)
    can be written on a disk that its own output has filled.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._spare_path = path + ".spare"
        self._spare = -1
        self._make_spare()

    def replace(self, text: str) -> bool:
        """Publishes a text; False when it could not be written."""
        if self._spare < 0 and not self._make_spare():
            return False
        data = text.encode()
        try:
            if os.pwrite(self._spare, data, 0) < len(data):
                return False
            os.ftruncate(self._spare, len(data))
            os.rename(self._spare_path, self._path)
        except OSError:
            self.close()  # it may be gone, with the whole directory
            return False
        os.close(self._spare)
        self._spare = -1
        self._make_spare()
        return True

    def _make_spare(self) -> bool:
        # A job may put a FIFO in its place, which would wait for a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._spare = os.open(self._spare_path, flags, 0o600)
            if os.write(self._spare, b" " * _SIZE_BYTES) == _SIZE_BYTES:
                return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Gives the spare space back."""
        if self._spare < 0:
            return
        os.close(self._spare)
        self._spare = -1
        try:
            os.unlink(self._spare_path)
        except OSError:
            return  # gone already


_LONGEST_ERROR = 1000
_MOST_SURVIVORS = 50


class Report:
    """The state of one replica, written at each phase; what could not be written is tried again later."""

    def __init__(self, run_dir: str, run_id: str, doorbell: str | None) -> None:
        self.error = ""
        self.checkpoint_request = 0
        self.log_dropped_bytes = 0
        self.survivors: list[int] = []
        self.unsaved = False
        self.retry_at = 0.0
        self.run_dir = run_dir
        self._run_id = run_id
        self._doorbell = doorbell
        self._file = StatusFile(os.path.join(run_dir, "state.json"))
        self._state: dict[str, Any] = {
            "phase": None,
            "run_id": run_id,
            "runner_pid": os.getpid(),
            "runner_start": process_tree.start_of(os.getpid()),
            "boot_id": process_tree.boot_id(),
            "child_pid": None,
            "child_start": None,
            "begun_s": time.time(),
            "run_begun_s": None,
            "ended_s": None,
            "exit_code": None,
            "signal": None,
            "why": None,
            "limit": None,
        }

    def child_started(self, pid: int, *, setup: bool) -> None:
        try:
            start = process_tree.start_of(pid)
        except process_tree.CannotTell:
            start = None  # what it leaves behind is found by its environment
        self._state.update(child_pid=pid, child_start=start)
        if not setup:
            self._state["run_begun_s"] = time.time()

    def exit_status(self, status: int | None) -> None:
        """Notes how the main process ended, if it did."""
        if status is None:
            return
        if os.WIFSIGNALED(status):
            self._state["signal"] = os.WTERMSIG(status)
        else:
            self._state["exit_code"] = os.WEXITSTATUS(status)

    def phase(self, name: str) -> None:
        self._state["phase"] = name
        self.flush()

    def limit_reached(self, limit: float, sentence: str) -> None:
        """Notes the limit that the replica has reached, for which it is ended."""
        self._state["limit"] = limit
        self.error = sentence

    def ended(self, why: str) -> None:
        self._state.update(phase="exited", why=why, ended_s=time.time())
        self.unsaved = True

    def is_moot(self) -> bool:
        """Whether the state can never be read: the run's directory is gone."""
        return not os.path.isdir(self.run_dir)

    def flush(self) -> bool:
        """Writes the state and rings; False when it could not be written now."""
        extra = {
            "error": self.error[:_LONGEST_ERROR],
            "checkpoint_request": self.checkpoint_request,
            "log_dropped_bytes": self.log_dropped_bytes,
            "survivors": self.survivors[:_MOST_SURVIVORS],
        }
        self.unsaved = not self._file.replace(dump(self._state | extra) + "\n")
        self.retry_at = time.monotonic() + 1.0
        if self._state["phase"] == "exited" and not self.unsaved:
            self._file.close()
        # That it starts is no news to the server that has just started it.
        if self._state["phase"] != "starting":
            self._ring()
        return not self.unsaved

    def _ring(self) -> None:
        if not self._doorbell:
            return
        try:
            bell = os.open(self._doorbell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # no server listens now; the next one looks for itself
        try:
            os.write(bell, f"{self._run_id}\n".encode())
        except OSError:
            pass
        finally:
            os.close(bell)


class CheckpointRequests:
    """Writes the number of the latest request. It has its space already, should the disk be full by then."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file = StatusFile(path) if path else None

    def add(self) -> int:
        """Makes a new request; its number. It goes on from that of a former run, if they share the file."""
        try:
            with open(os.open(self._path or "", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
                number = int(file.read(32)) + 1
        except (OSError, ValueError):
            number = 1
        if self._file:
            self._file.replace(f"{number}\n")
        return number

    def close(self) -> None:
        if self._file:
            self._file.close()
