"""Supervises one replica: setup, the command, its output, signals, limits, and the end of all it forked."""

from __future__ import annotations

import os
import select
import time

from batuta.backends.local.supervisor import child
from batuta.backends.local.supervisor.family import Family
from batuta.backends.local.supervisor.light import signal
from batuta.backends.local.supervisor.output import Output
from batuta.backends.local.supervisor.premises import lay_out
from batuta.backends.local.supervisor.report import Report
from batuta.backends.local.supervisor.requests import CheckpointRequests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SWEEP_S = 10.0
_RETRY_S = 1.0
_FIRST_LOOK_S, _LAST_LOOK_S = 0.05, 2.0


class Supervisor:
    """One replica from its start to the end of its last process."""

    def __init__(self, spec: dict[str, Any], report: Report) -> None:
        self._spec = spec
        self._report = report
        self._status: int | None = None
        self._childless = True
        self._swept = False
        self._stopped_by: str | None = None
        self._kill_at: float | None = None
        self._stop_at: float | None = None
        self._look_at: float | None = None
        self._look_in_s = 0.0
        self._family = Family()
        self._obstacle = lay_out(report.run_dir, spec)
        self._output = Output(spec["log"], int(spec["log_cap_bytes"]))
        self._requests = CheckpointRequests(spec.get("checkpoint_request"))
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._poll = select.poll()
        self._poll.register(self._output.reader, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    # ------------------------------------------------------------------------------------------ the course

    def supervise(self) -> None:
        """Runs the replica. Returns when nothing of it is left, and its last state is written."""
        self._listen()
        self._report.phase("starting")  # from here on, processes may be left if we are killed
        try:
            if self._obstacle is not None:
                raise self._obstacle
            self._step(0.0)  # what the server asked before we could listen
            why = self._stopping() or self._set_up() or self._run()
        except OSError as problem:
            why = "cannot-start"
            self._report.error = f"{problem.filename or 'runner'}: {problem.strerror}"
            self._output.log.note(f"cannot start: {self._report.error}")
        self._sweep()
        self._output.take_rest()
        self._output.log.close()
        self._requests.close()
        self._report.log_dropped_bytes = self._output.log.dropped_bytes
        self._report.ended(why)
        while not self._report.flush() and not self._report.is_moot():
            time.sleep(_RETRY_S)  # a full disk: the exit code is worth waiting for

    def _set_up(self) -> str | None:
        """Prepares the node, once for all replicas on it; why the replica ends here, if it does."""
        argv, marker = self._spec.get("setup"), self._spec.get("setup_marker")
        if not argv or (marker and os.path.exists(marker)):
            return None
        self._report.phase("setup")
        lock = self._lock(marker + ".lock") if marker else -1
        try:
            if self._stopping() or (marker and os.path.exists(marker)):
                return self._stopping()
            self._start(argv, setup=True)
            self._report.phase("setup")
            status = self._wait_for_main()
            if self._stopping():
                return self._stopping()  # whatever its exit code: nothing has run yet
            if status != 0:
                self._report.exit_status(status)
                return "setup-failed"
            if marker:
                _touch(marker)
        finally:
            if lock >= 0:
                os.close(lock)
        return None

    def _run(self) -> str:
        """Runs the command; why it ended."""
        self._start(self._spec["run"], setup=False)
        limit_s = self._spec.get("time_limit_s")
        if limit_s is not None:
            self._stop_at = time.monotonic() + float(limit_s)
        self._report.phase("running")
        status = self._wait_for_main()
        self._report.exit_status(status)
        if self._stopped_by == "stopped" and status == 0:
            return "exited"  # it has finished, and not been stopped
        return self._stopped_by or "exited"

    def _start(self, argv: list[str], *, setup: bool) -> None:
        env = dict(self._spec["env"], BATUTA_RUN=self._spec["run_id"])
        if setup:
            env.update(self._spec.get("setup_env") or {})
        self._status = None
        self._family.main = child.start(argv, env, self._spec["cwd"], self._output.writer)
        self._childless = False
        self._report.child_started(self._family.main, setup=setup)

    def _stopping(self) -> str | None:
        """Why the replica is being stopped, if it is."""
        return self._stopped_by

    def _wait_for_main(self) -> int | None:
        """How the main process ended; None when not even SIGKILL could end it."""
        self._wait(lambda: self._status is not None)
        if self._stopped_by is not None:
            # A shell dies of SIGTERM at once, while the trainer below it still writes its checkpoint.
            self._wait(lambda: self._childless)
        return self._status

    def _lock(self, path: str) -> int:
        """Waits for its turn at the setup of this node."""
        import fcntl

        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        pause_s = 0.01
        while self._stopped_by is None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                self._step(pause_s)
                pause_s = min(pause_s * 1.5, 0.25)
        return file

    # ------------------------------------------------------------------------------------------- the events

    def _wait(self, until: Callable[[], bool]) -> None:
        """Handles what happens until the condition holds, or the time has come to kill."""
        while not until():
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                return self._sweep()
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                self._stop("time-limit")
                continue
            if self._look_at is not None and now >= self._look_at:
                self._family.ask_orphans_to_end()
                self._look_again(now, min(self._look_in_s * 2.0, _LAST_LOOK_S))
            times = [at - now for at in (self._kill_at, self._stop_at, self._look_at) if at is not None]
            self._step(min(times, default=None))
        return None

    def _step(self, timeout_s: float | None) -> None:
        """Waits for output or a signal, and handles it."""
        if self._report.unsaved:
            timeout_s = _RETRY_S if timeout_s is None else min(timeout_s, _RETRY_S)
        for file, _ in self._poll.poll(None if timeout_s is None else max(timeout_s * 1000.0, 0.0)):
            if file == self._output.reader:
                self._output.take()
            else:
                for number in os.read(self._wake, 4096):
                    self._handle(number)
        if self._output.log.dropped_bytes != self._report.log_dropped_bytes:
            self._report.log_dropped_bytes = self._output.log.dropped_bytes
            self._report.unsaved = True
        if self._report.unsaved and time.monotonic() >= self._report.retry_at:
            self._report.flush()

    def _listen(self) -> None:
        """Has the numbers of signals written into a pipe, to be handled in turn with the output."""

        def ignore(_number: int, _frame: object) -> None:
            return

        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGUSR1"):
            signal.signal(getattr(signal, name), ignore)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the server had them wait for these handlers

    def _handle(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGUSR1:
            self._report.checkpoint_request = self._requests.add()
            self._report.flush()
            self._family.ask_for_checkpoint()
        elif self._stopped_by is None:
            self._stop("stopped")
        else:
            self._kill_at = time.monotonic()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True  # and so there is no descendant at all
                return
            if pid == 0:
                return
            if pid == self._family.main:
                self._status = status

    # -------------------------------------------------------------------------------------------- the end

    def _stop(self, why: str) -> None:
        now = time.monotonic()
        self._stopped_by = why
        self._stop_at = None
        self._kill_at = now + float(self._spec["grace_s"])
        self._report.phase("stopping")
        self._family.ask_to_end()
        self._look_again(now, _FIRST_LOOK_S)

    def _look_again(self, now: float, in_s: float) -> None:
        self._look_in_s = in_s
        self._look_at = now + in_s

    def _sweep(self) -> None:
        """Kills all that is left, for as long as it takes, but not for ever."""
        self._reap()
        if not self._family.adopts_orphans:
            self._family.kill(groups=False)
        give_up = time.monotonic() + _SWEEP_S
        rounds = 0
        while not self._childless and not self._swept:
            left = self._family.kill(groups=rounds >= 3)
            if time.monotonic() > give_up:
                self._report.survivors = left
                self._swept = True
            rounds += 1
            self._step(0.0 if rounds < 100 else 0.02)
            self._reap()


def _touch(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return  # so the next replica does it again
