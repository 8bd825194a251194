"""What the server learns of a replica: `state.json`, and a ring at its doorbell."""

from __future__ import annotations

import os
import time

from batuta.backends.local.supervisor import tree
from batuta.backends.local.supervisor.light import dump
from batuta.backends.local.supervisor.status_file import StatusFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
            "runner_start": tree.start_of(os.getpid()),
            "boot_id": tree.boot_id(),
            "child_pid": None,
            "child_start": None,
            "begun_s": time.time(),
            "run_begun_s": None,
            "ended_s": None,
            "exit_code": None,
            "signal": None,
            "why": None,
        }

    def child_started(self, pid: int, *, setup: bool) -> None:
        self._state.update(child_pid=pid, child_start=tree.start_of(pid))
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

    def ended(self, why: str) -> None:
        self._state.update(phase="exited", why=why, ended_s=time.time())
        self.unsaved = True

    def is_moot(self) -> bool:
        """Whether nobody can ever read it: the directory is gone."""
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
