"""Replicas as processes: start one, find it again after a restart of the server, stop it, learn its end.

A replica has a directory for each of its runs, used once:

    spec.json     what to run (runner_protocol.py); locked as long as its runner lives
    state.json    how it goes, written by the runner (supervisor/report.py); never half-written
    setup.sh, run.sh, runner.err

The server starts a runner and may then be killed at any instant: the lock passes from the server to the runner with no
moment in between at which it is free. So `spec.json` without `state.json` is either a replica that is just starting
(locked) or one that will never start (not locked); a new server cannot take one for the other.

When a runner is gone, the processes of its run are found and killed. The kernel ends the main process with
its runner; what the main process has forked loses its ancestors and lives on. It is found by `BATUTA_RUN` in
its environment, by the session of the main process, and by descent from these. (A program that sets its title
writes over its environment; one that leaves the session keeps the environment.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batuta.backends.local import runner, runner_protocol
from batuta.backends.local.files import read_json, unless_gone
from batuta.backends.local.runner_protocol import ReplicaPhase, ReplicaSpec, ReplicaState
from batuta.backends.local.supervisor import containment, process_tree
from batuta.backends.local.supervisor.process_tree import CannotTell, Entry

_WITHIN_S = 10.0


def kill_leftovers(run_id: str, session: process_tree.Process | None = None) -> int:
    """Kills what is left of a run, and waits until it is gone, at most ten seconds; how many processes.

    Only for a run whose runner is gone: a living runner's processes would be found too.
    """
    killed: set[process_tree.Process] = set()
    give_up = time.monotonic() + _WITHIN_S
    while left := find_leftovers(run_id, session):
        for entry in left:
            if process_tree.send(entry.process, signal.SIGKILL):
                killed.add(entry.process)
        if time.monotonic() > give_up:
            break
        time.sleep(0.002)
    return len(killed)


def find_leftovers(run_id: str, session: process_tree.Process | None = None) -> list[Entry]:
    """The living processes of a run, wherever they hang now; never this process, nor a runner."""
    mark = f"BATUTA_RUN={run_id}".encode()
    own = {os.getpid(), os.getppid()}
    roots = [
        entry
        for entry in process_tree.all_entries()
        if entry.pid not in own and (_is_member(entry, session) or process_tree.is_marked(entry.pid, mark))
    ]
    below = process_tree.descendants({entry.pid for entry in roots}) if roots else []
    return [entry for entry in (*roots, *below) if entry.pid not in own and not entry.dead]


def _is_member(entry: Entry, session: process_tree.Process | None) -> bool:
    """Whether it is in the session that the main process led.

    A session keeps its number from being used again. If its leader's pid belongs to another process now, the
    session is over, and the number means another one.
    """
    if session is None or entry.session != session[0] or entry.start < session[1]:
        return False
    leader = process_tree.look_up(session[0])
    return leader is None or leader.start == session[1]


_LOCK_FILE = 3
_STARTS_WITHIN_S = 10.0
_REMOVES_WITHIN_S = 30.0
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # an interpreter may need them to start


class RunExists(Exception):
    """The directory has been used for a run already."""


@dataclass(frozen=True, slots=True)
class RunningReplica:
    """A runner that lives, or did a moment ago; named so that no other process is taken for it."""

    run_id: str
    run_dir: Path
    pid: int
    start: int | None

    @property
    def is_running(self) -> bool:
        """CannotTell when that cannot be found out now."""
        return _is_running(self.run_dir, self.pid, self.start)


def launch(run_dir: Path, spec: ReplicaSpec) -> RunningReplica:
    """Starts a replica, which goes on whatever becomes of this process. OSError when that is not possible."""
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = os.open(run_dir / "spec.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise RunExists(str(run_dir)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits at most for an observe() of the same moment
        runner_protocol.write_spec(lock, run_dir, spec)
        pid = _spawn(run_dir, spec.run_id, lock)
    finally:
        os.close(lock)  # the runner has it as well, so it stays locked
    try:
        start = process_tree.start_of(pid)
    except CannotTell:
        start = None  # its lock tells whether it runs
    return RunningReplica(spec.run_id, run_dir, pid, start)


def observe(run_dir: Path) -> ReplicaState:
    """How a replica is now: what its runner wrote last, unless the runner is gone without having ended it.

    CannotTell when that cannot be found out now: no descriptor is left, say.
    """
    state = runner_protocol.read_state(run_dir)
    if state is None:
        if _is_locked(run_dir):
            return ReplicaState(phase=ReplicaPhase.STARTING)
        state = runner_protocol.read_state(run_dir)  # it may have run and ended since
        if state is None:
            return ReplicaState(phase=ReplicaPhase.ABSENT, error=_complaint(run_dir))
    if state.phase is ReplicaPhase.EXITED or _runs(run_dir, state):
        return state
    last = runner_protocol.read_state(run_dir) or state
    return last if last.phase is ReplicaPhase.EXITED else last.lost(_complaint(run_dir))


def adopt(run_dir: Path, within_s: float = _STARTS_WITHIN_S) -> RunningReplica | None:
    """The replica that a former server started here, if it still runs; waits for one that just starts."""
    give_up = time.monotonic() + within_s
    state = observe(run_dir)
    while state.phase is ReplicaPhase.STARTING and state.runner_pid is None and time.monotonic() < give_up:
        time.sleep(0.005)
        state = observe(run_dir)
    if not state.phase.is_alive or state.runner_pid is None:
        return None
    return RunningReplica(state.run_id, run_dir, state.runner_pid, state.runner_start)


def clean_up(run_dir: Path) -> ReplicaState:
    """The final state of a replica whose runner is gone. Of one that was killed, no process is left behind.

    Nothing else may be started in its place before this returns. CannotTell when processes may be left.
    """
    state = observe(run_dir)
    if state.phase is not ReplicaPhase.LOST:
        return state
    spec = read_json(run_dir / "spec.json")
    spec = spec if isinstance(spec, dict) else {}
    groups = (spec.get("limits") or {}).get("cgroup")
    if groups:
        containment.kill_all(groups)
    kill_leftovers(state.run_id, session=state.session)
    if groups:
        containment.remove(groups)
    _remove_container(spec)
    left = find_leftovers(state.run_id, session=state.session)
    final = state.killed(time.time(), survivors=tuple(entry.pid for entry in left))
    runner_protocol.write_state(run_dir, final)  # on a full disk the next one comes to the same conclusion
    return final


def _remove_container(spec: Mapping[str, Any]) -> None:
    """Does what the runner was to do last, where its run had a container."""
    if argv := spec.get("cleanup"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, env=spec["env"], cwd="/", capture_output=True, timeout=_REMOVES_WITHIN_S, check=False)


def request_checkpoint(replica: RunningReplica) -> bool:
    """Asks for a checkpoint, whose number is in the state once it is asked for; False when it could not be asked.

    To ask twice would be two requests: one that cannot be asked now is not asked again, and stopped in its time.
    """
    try:
        return _tell(replica, signal.SIGUSR1)
    except CannotTell:
        return False


def stop(replica: RunningReplica) -> bool:
    """Asks the replica to end, and ends it after its grace; False when the runner is gone.

    To ask again changes nothing: a server that was started again cannot know whether the last one did.
    """
    if observe(replica.run_dir).phase is ReplicaPhase.STOPPING:
        return replica.is_running
    return _tell(replica, signal.SIGTERM)


def kill(replica: RunningReplica) -> bool:
    """Ends the replica now, without grace; False when the runner is gone."""
    # Two different signals: two of the same kind may arrive as one.
    return _tell(replica, signal.SIGTERM) and _tell(replica, signal.SIGINT)


def _tell(replica: RunningReplica, number: signal.Signals) -> bool:
    if replica.start is not None:
        return process_tree.send((replica.pid, replica.start), number)
    if not _is_locked(replica.run_dir):
        return False
    try:
        os.kill(replica.pid, number)
    except OSError:
        return False
    return True


def _runs(run_dir: Path, state: ReplicaState) -> bool:
    """Whether the runner that wrote this state is still there."""
    if state.runner_pid is None:
        return False
    if state.runner_start is not None and state.boot_id != process_tree.boot_id():
        return False
    return _is_running(run_dir, state.runner_pid, state.runner_start)


def _is_running(run_dir: Path, pid: int, start: int | None) -> bool:
    """Whether a runner is there. It holds its lock for as long, should the process not be visible."""
    if start is None:  # no /proc here
        return _is_locked(run_dir)
    try:
        return process_tree.is_running((pid, start))
    except CannotTell:
        return _is_locked(run_dir)


def _complaint(run_dir: Path) -> str:
    """What a runner said when it broke down, which it should never do."""
    try:
        return (run_dir / "runner.err").read_text(encoding="utf-8", errors="replace").strip()[-500:]
    except OSError:
        return ""


def _is_locked(run_dir: Path) -> bool:
    """Whether a runner lives here, or a server is just about to start one."""
    try:
        file = os.open(run_dir / "spec.json", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        unless_gone(problem)
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as problem:
        raise CannotTell(f"whether {run_dir} is locked: {problem.strerror}") from problem
    finally:
        os.close(file)
    return False


def _spawn(run_dir: Path, run_id: str, lock: int) -> int:
    """Starts the runner in a session of its own, with the lock and nothing else of this process."""
    handed = fcntl.fcntl(lock, fcntl.F_DUPFD_CLOEXEC, 10)  # never the number it shall have in the runner
    own = {name: os.environ[name] for name in _LIBRARY_PATHS if name in os.environ}
    heard = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", runner.__file__, str(run_dir.absolute())],
            {**own, "BATUTA_RUNNER": run_id},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, handed, _LOCK_FILE),
            ],
            setsid=sys.platform == "linux",  # elsewhere the runner does it
            setsigdef=(*heard, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT),
            setsigmask=heard,  # they wait until the runner can handle them
        )
    finally:
        os.close(handed)
