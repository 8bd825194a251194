"""Real replicas for tests: start, wait, and make sure that nothing of them is left."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batuta.backends.local.logs import Piece, ReplicaLog
from batuta.backends.local.processes import RunningReplica, clean_up, find_leftovers, kill, launch, observe
from batuta.backends.local.runner_protocol import ReplicaPhase, ReplicaSpec, ReplicaState
from batuta.backends.local.supervisor import process_tree

# A shared machine may be slow for a while. A test that waits this long has failed; none needs it.
PATIENCE_S = 60.0
ENV = {"PATH": os.environ.get("PATH", os.defpath), "PYTHON": sys.executable, "LC_ALL": "C.UTF-8"}


def wait_until(condition: Callable[[], object], within_s: float = PATIENCE_S, what: str = "") -> None:
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {within_s} s in vain: {what or condition}"
        time.sleep(0.003)


def follow(log: ReplicaLog, is_over: Callable[[], bool], poll_s: float = 0.0) -> Iterator[Piece]:
    """The pieces of a log as they are written, until its replica is over."""
    offset = 0
    while True:
        over = is_over()  # asked before reading: what was written before the end is then read
        piece = log.read(offset)
        if piece.data:
            yield piece
            offset = piece.end
        elif over:
            return
        else:
            time.sleep(poll_s)


def run_time_s(state: ReplicaState) -> float:
    assert state.run_begun_s is not None
    assert state.ended_s is not None
    return state.ended_s - state.run_begun_s


def begun_s(state: ReplicaState) -> float:
    assert state.run_begun_s is not None
    return state.run_begun_s


def process(pid: int | None, start: int | None = None) -> process_tree.Process:
    """A process that is there, by its pid."""
    assert pid is not None
    found = process_tree.start_of(pid) if start is None else start
    assert found is not None
    return pid, found


@dataclass(frozen=True)
class Started:
    """A replica of a test, its files at hand."""

    replica: RunningReplica
    spec: ReplicaSpec

    @property
    def run_dir(self) -> Path:
        return self.replica.run_dir

    def log(self) -> str:
        return self.spec.log.read_text(encoding="utf-8", errors="replace")

    def state(self) -> ReplicaState:
        return observe(self.run_dir)

    def until(self, phase: ReplicaPhase) -> ReplicaState:
        wait_until(lambda: self.state().phase is phase, what=f"{phase} of {self.state()}")
        return self.state()

    def until_logged(self, text: str) -> None:
        wait_until(lambda: self.spec.log.exists() and text in self.log(), what=f"{text!r} in {self.spec.log}")

    def end(self) -> ReplicaState:
        """Waits for the runner's end; what it wrote last."""
        wait_until(lambda: not self.replica.is_running, what=f"the end of {self.state()}")
        reap(self.replica.pid)
        return self.state()


def reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


class Replicas:
    """Starts the replicas of one test, each with a directory of its own."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self._name = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self._count = itertools.count()
        self._run_ids: list[str] = []
        self._started: list[Started] = []

    def new_id(self) -> str:
        run_id = f"{self._name}-{next(self._count)}"
        self._run_ids.append(run_id)
        return run_id

    def start(self, run: list[str] | str, **spec) -> Started:
        run_id = self.new_id()
        run_dir = self.home / "runs" / run_id
        usual: dict[str, Any] = {"cwd": self.home, "log": run_dir / "log", "env": ENV, "grace_s": 30.0}
        full = ReplicaSpec(run_id=run_id, run=run, **(usual | spec))
        started = Started(launch(run_dir, full), full)
        self._started.append(started)
        return started

    def python(self, code: str, **spec) -> Started:
        return self.start([sys.executable, "-I", "-S", "-u", "-c", code], **spec)

    def clean_up(self) -> None:
        """Ends what the test left running on purpose; fails when anything else is left."""
        for started in self._started:
            if started.replica.is_running:
                kill(started.replica)
        for started in self._started:
            started.end()
            clean_up(started.run_dir)
        left = {run_id: found for run_id in self._run_ids if (found := find_leftovers(run_id))}
        assert not left, f"processes left behind: {[(e.pid, e.state) for es in left.values() for e in es]}"
