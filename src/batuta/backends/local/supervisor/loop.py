"""Supervises one replica: setup, the command, its output, signals, limits, and the end of all it forked.

A command leads a session of its own and dies with its runner. The runner creates the replica's folders and
scripts, so that the server has less to do.
"""

from __future__ import annotations

import errno
import os
import select
import time

from batuta.backends.local.supervisor.acting import ActingAs, be_visible, become, load_all
from batuta.backends.local.supervisor.containment import MEMORY_LIMIT, PROCESS_LIMIT, Containment
from batuta.backends.local.supervisor.lean_stdlib import PR_SET_PDEATHSIG, TYPE_CHECKING, prctl, signal
from batuta.backends.local.supervisor.output_log import Output
from batuta.backends.local.supervisor.process_tree import ReplicaProcesses
from batuta.backends.local.supervisor.report import CheckpointRequests, Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from batuta.backends.local.supervisor.mount_namespace import MountNamespace


_LONGEST_PROBLEM = 2048


def start_command(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    output: int,
    view: MountNamespace | None = None,
    containment: Containment | None = None,
    user: dict[str, Any] | None = None,
) -> int:
    """Runs a command without input, its output in a descriptor; returns the pid once the command really runs.

    `view` is what it sees beside what is there, `containment` the limits that it gets, `user` who it runs as. OSError
    says what is wrong with the command, the directory or the view.
    """
    reader, writer = os.pipe()  # a successful exec closes the writer, a failed one writes into it
    runner = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            if containment is not None:
                # Before all else: only the runner's user may enter a group, and a view may change who we are.
                containment.enter(None if user is None else int(user["uid"]))
            if user is not None:
                # Before the view, too: mounts that root makes where a user says would fool programs that are setuid.
                become(user)
                if view is not None:
                    be_visible(keep=(0, 1, 2, output, writer))
            _become(argv, env, cwd, output, runner, view)
        except Exception as problem:
            told = problem if isinstance(problem, OSError) else OSError(errno.EINVAL, "", repr(problem))
            text = f"{told.errno or 0} {told.filename or argv[0]}"
            os.write(writer, text.encode(errors="replace")[:_LONGEST_PROBLEM])
        finally:
            os._exit(127)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as file:
        problem_text = file.read(_LONGEST_PROBLEM)
    if problem_text:
        os.waitpid(pid, 0)
        number, _, what = problem_text.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), what)
    return pid


def _become(
    argv: list[str], env: dict[str, str], cwd: str, output: int, runner: int, view: MountNamespace | None
) -> NoReturn:
    os.setsid()
    if view is not None:
        view.enter()  # before the line below: a change of credentials takes it back
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != runner:
        os._exit(127)  # the runner was gone before the line above
    # Handlers end with exec; what Python or the runner ignores would be ignored by the command too.
    for name in ("SIGHUP", "SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(cwd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _exec(argv, env)


def _exec(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As os.execvpe, which would first import `warnings`."""
    name = argv[0]
    if "/" in name:
        os.execve(name, argv, env)
    denied = False
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(folder, name), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError:
            denied = True
    raise OSError(errno.EACCES if denied else errno.ENOENT, "", name)


_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK


def write_run_files(run_dir: str, spec: dict[str, Any]) -> OSError | None:
    """Makes the folders that are not there yet, and writes the scripts; what was in the way."""
    user, place = spec.get("user"), spec.get("scripts_folder") or run_dir
    try:
        for folder in spec.get("folders") or ():
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue  # another replica was first, or another run
        for name, text in (spec.get("scripts") or {}).items():
            # There may be secrets in it.
            with open(os.open(os.path.join(place, name), _CREATE_FLAGS, 0o600), "wb", buffering=0) as file:
                if user is not None:
                    os.fchown(file.fileno(), user["uid"], user["gid"])
                data = text.encode("utf-8", "surrogateescape")
                while data:
                    data = data[file.write(data) :]
    except OSError as problem:
        return problem
    return None


LIMITS = (PROCESS_LIMIT, MEMORY_LIMIT)
_SWEEP_S = 10.0
_REMOVE_S = 30.0
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
        self._cleanup: list[str] | None = spec.get("cleanup")
        """Removes the container, once; None where there is none, or no more."""
        self._removing = 0
        self._processes = ReplicaProcesses(spec["run_id"] if self._cleanup else None)
        self._obstacle = write_run_files(report.run_dir, spec)
        self._view = _view(report.run_dir, spec)
        self._containment = Containment(None)
        self._limits_at: float | None = None
        self._output = Output(spec["log"], int(spec["log_cap_bytes"]))
        self._user: dict[str, Any] | None = spec.get("user")
        if self._user is not None:
            os.fchown(self._output.writer, self._user["uid"], self._user["gid"])  # so that it may open /dev/stderr
        with ActingAs(self._user):
            self._requests = CheckpointRequests(spec.get("checkpoint_request"))
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        self._poll = select.poll()
        self._poll.register(self._output.reader, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def supervise(self) -> None:
        """Runs the replica. Returns when nothing of it is left, and its last state is written."""
        self._listen()
        self._report.phase("starting")  # from here on, processes and groups may be left if we are killed
        self._containment = Containment(self._spec.get("limits"))
        for file in self._containment.wakes:
            self._poll.register(file, select.POLLPRI)
        try:
            if self._obstacle is not None:
                raise self._obstacle
            if self._view is not None:
                with ActingAs(self._user):
                    self._view.prepare()
            self._step(0.0)  # what the server asked before we could listen
            why = self._stopped_by or self._set_up() or self._run()
        except OSError as problem:
            why = "cannot-start"
            self._report.error = f"{problem.filename or 'runner'}: {problem.strerror}"
            self._output.log.note(f"cannot start: {self._report.error}")
        self._sweep()
        self._containment.remove()
        if self._view is not None:
            with ActingAs(self._user):
                self._view.leave()
        self._output.take_rest()
        self._output.log.close()
        with ActingAs(self._user):
            self._requests.close()
        self._report.log_dropped_bytes = self._output.log.dropped_bytes
        self._report.ended(why)
        while not self._report.flush() and not self._report.is_moot():
            time.sleep(_RETRY_S)  # a full disk: the exit code is worth waiting for

    def _set_up(self) -> str | None:
        """Prepares the node, and waits until all replicas have; why the replica ends here, if it does."""
        if not self._spec.get("setup"):
            return None
        if (why := self._prepare()) is not None:
            return why
        pause_s = 0.01
        for marker in self._spec.get("setup_awaits") or ():
            while self._stopped_by is None and not os.path.exists(marker):
                self._step(pause_s)
                pause_s = min(pause_s * 1.5, 0.25)
        return self._stopped_by

    def _prepare(self) -> str | None:
        """Runs the setup of this replica, unless it was done before."""
        argv, marker = self._spec["setup"], self._spec.get("setup_marker")
        if marker and os.path.exists(marker):
            return None
        self._report.phase("setup")
        lock = self._lock(self._spec["setup_lock"]) if marker else -1
        try:
            if self._stopped_by or (marker and os.path.exists(marker)):
                return self._stopped_by
            self._start(argv, setup=True)
            self._report.phase("setup")
            status = self._wait_for_main()
            if status != 0:
                self._look_at_limits()
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
        if status != 0:
            self._look_at_limits()  # the kernel may have ended it for one
        self._report.exit_status(status)
        if self._stopped_by == "stopped" and status == 0:
            return "exited"  # it has finished, and not been stopped
        return self._stopped_by or "exited"

    def _start(self, argv: list[str], *, setup: bool) -> None:
        env = dict(self._spec["env"])
        if not self._cleanup:
            env["BATUTA_RUN"] = self._spec["run_id"]  # of a container, what runs inside has it
        if setup:
            for name, value in (self._spec.get("setup_env") or {}).items():
                if value is None:
                    env.pop(name, None)
                else:
                    env[name] = value
        self._status = None
        self._processes.main = start_command(
            argv, env, self._spec["cwd"], self._output.writer, self._view, self._containment, self._user
        )
        in_s = self._containment.look_in_s()
        self._limits_at = None if in_s is None else time.monotonic() + in_s
        self._childless = False
        self._report.child_started(self._processes.main, setup=setup)

    def _stopping(self) -> str | None:
        """Why the replica is being stopped, if it is: a type checker forgets that a signal may change it."""
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
                self._processes.ask_orphans_to_end()
                self._look_again(now, min(self._look_in_s * 2.0, _LAST_LOOK_S))
            if self._limits_at is not None and now >= self._limits_at:
                self._look_at_limits()
                continue
            dates = (self._kill_at, self._stop_at, self._look_at, self._limits_at)
            self._step(min((at - now for at in dates if at is not None), default=None))
        return None

    def _look_at_limits(self) -> None:
        """Has the replica killed when it has reached a limit: what it would do in its grace is not worth the harm."""
        is_watched = self._containment.is_watched
        found = self._containment.exceeded(self._processes.living() if is_watched else None)
        now, in_s = time.monotonic(), self._containment.look_in_s()
        self._limits_at = None if in_s is None else now + in_s
        if found is None or self._stopped_by in LIMITS:
            return
        self._stopped_by, limit, sentence = found
        self._report.limit_reached(limit, sentence)
        self._output.log.note(sentence)
        self._report.phase("stopping")
        self._kill_at = now

    def _step(self, timeout_s: float | None) -> None:
        """Waits for output or a signal, and handles it."""
        if self._report.unsaved:
            timeout_s = _RETRY_S if timeout_s is None else min(timeout_s, _RETRY_S)
        for file, _ in self._poll.poll(None if timeout_s is None else max(timeout_s * 1000.0, 0.0)):
            if file == self._output.reader:
                self._output.take()
            elif file != self._wake:
                self._look_at_limits()
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
            with ActingAs(self._user):
                self._report.checkpoint_request = self._requests.add()
            self._report.flush()
            with ActingAs(self._user):  # it reads what the job's processes name as their scripts
                self._processes.ask_for_checkpoint()
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
            if pid == self._processes.main:
                self._status = status
            if pid == self._removing:
                self._removing = 0

    def _stop(self, why: str) -> None:
        now = time.monotonic()
        self._stopped_by = why
        self._stop_at = None
        self._kill_at = now + float(self._spec["grace_s"])
        self._report.phase("stopping")
        self._processes.ask_to_end()
        self._look_again(now, _FIRST_LOOK_S)

    def _look_again(self, now: float, in_s: float) -> None:
        self._look_in_s = in_s
        self._look_at = now + in_s

    def _sweep(self) -> None:
        """Kills all that is left, for as long as it takes, but not for ever."""
        self._containment.forbid_forks()
        self._reap()
        self._remove_container()
        if not self._processes.adopts_orphans:
            self._processes.kill(groups=False)
        give_up = time.monotonic() + _SWEEP_S
        rounds = 0
        while not self._childless and not self._swept:
            left = self._processes.kill(groups=rounds >= 3)
            if time.monotonic() > give_up:
                self._report.survivors = left
                self._swept = True
            rounds += 1
            self._step(0.0 if rounds < 100 else 0.02)
            self._reap()

    def _remove_container(self) -> None:
        """Has the runtime end and remove the container, if there is one: only it can tidy up after itself."""
        argv, self._cleanup = self._cleanup, None
        if not argv:
            return
        try:
            self._removing = start_command(argv, self._spec["env"], "/", self._output.writer)
        except OSError:
            return
        self._childless = False
        give_up = time.monotonic() + _REMOVE_S
        while self._removing and time.monotonic() < give_up:
            self._step(0.05)
            self._reap()


def _view(run_dir: str, spec: dict[str, Any]) -> MountNamespace | None:
    """What the replica sees beside what is there; None for nothing."""
    if not spec.get("view"):
        return None
    from batuta.backends.local.supervisor.mount_namespace import MountNamespace

    staging = os.path.join(run_dir, "view")
    if spec.get("user"):
        load_all()
        staging = os.path.join(spec["view_locks"], f"{spec['run_id']}.view")  # the user does not get to our folder
    return MountNamespace(spec["view"], spec["view_locks"], staging)


def _touch(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return  # so the next replica does it again
