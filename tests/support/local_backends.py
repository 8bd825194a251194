"""A LocalBackend with real jobs; the test plays the engine, and nothing of them is left behind."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from batuta.backends.local.backend import LocalBackend
from batuta.backends.local.containers import ContainerRuntimes
from batuta.backends.local.context import Timing
from batuta.backends.local.limits import LocalLimits
from batuta.backends.local.replica_plan import GpuInjector
from batuta.backends.local.supervisor import process_tree
from batuta.core import event as ev
from batuta.core.job import JobId
from batuta.core.job_table import Phase
from batuta.core.plan import Command, Migrate, Preempt, Resize, Start, Stop
from batuta.core.reason import Reason
from batuta.spec.task import Task, parse_task
from batuta.spec.task_job import task_to_job
from tests.support.local_replicas import PATIENCE_S
from tests.support.worlds import at, make_nodes

QUICK = Timing(poll_s=0.05, poll_asked_s=0.02, back_off_s=0.05, cancel_grace_s=0.5, peer_grace_s=0.5, release_s=0.5)
E = TypeVar("E", bound=ev.Event)

ANSWER = """
number() { cat "$BATUTA_CONTROL/$1" 2>/dev/null || echo 0; }
answer() {
  [ "$RANK" = 0 ] || return 0
  n=$(number checkpoint-request)
  [ "$n" -gt "$(number checkpoint-done)" ] || return 0
  date +%s.%N >>"$BATUTA_CHECKPOINT_DIR/saved"
  echo "{\\"event\\": \\"checkpoint\\", \\"path\\": \\"saved\\", \\"request\\": $n}" >>"$BATUTA_PROGRESS"
  echo "$n" >"$BATUTA_CONTROL/checkpoint-done"
}
"""
"""Shell functions with which a script answers requests for checkpoints."""
TRAINS = ANSWER + "echo restart $BATUTA_RESTART of $SKYPILOT_NUM_NODES; while :; do answer; sleep 0.03; done"
"""A script that trains until it is stopped, and writes a checkpoint when asked."""
WAITS = "echo ready; exec sleep 1000"


class Bench:
    """One machine with nodes n0, n1, … that has jobs; may have one server after another."""

    def __init__(self, folder: Path, *gpus: int) -> None:
        self.root = folder / "state"
        self.nodes = make_nodes(*gpus)
        self.tasks: dict[JobId, Task] = {}
        self.devices: dict[str, list[str | int]] | None = None
        self.gpu_injector: GpuInjector | None = None
        self.containers: ContainerRuntimes | None = None
        self.limits: LocalLimits | None = None
        self.results: dict[JobId, str] = {}
        self.said: list[ev.Event] = []
        self._backend: LocalBackend | None = None

    @property
    def backend(self) -> LocalBackend:
        if self._backend is None:
            self._backend = LocalBackend(
                self.root,
                self.nodes,
                lambda job: (self.tasks[job], task_to_job(self.tasks[job], job, 0.0, nodes=self.nodes)),
                devices=self.devices,
                gpu_injector=self.gpu_injector,
                containers=self.containers,
                limits=self.limits,
                on_result=self.results.__setitem__,
                inherited={"PATH": os.environ["PATH"]},
                timing=QUICK,
            )
        return self._backend

    def task(self, job: JobId, run: str, **keys: Any) -> None:
        """Says what a job runs. With `sizes=2` it has up to two replicas, and a short grace unless told."""
        sizes = keys.pop("sizes", 1)
        elastic = {"min_nodes": 1, "max_nodes": sizes, "grace": "0.3s", "checkpoint": "none"}
        elastic |= keys.pop("elastic", {})
        self.tasks[job] = parse_task(
            json.dumps({"run": run, "resources": {"accelerators": 1}, "elastic": elastic, **keys}),
            str(self.root / "task.yaml"),
            check_paths=False,
        )

    # ------------------------------------------------------------------------------------------ the engine

    def start(self, job: JobId, where: str) -> None:
        self.do(Start(job, at(where), Reason.ADMITTED))

    def resize(self, job: JobId, where: str) -> None:
        self.do(Resize(job, at(where), Reason.GREW))

    def migrate(self, job: JobId, where: str) -> None:
        self.do(Migrate(job, at(where), Reason.CONSOLIDATED))

    def preempt(self, job: JobId) -> None:
        self.do(Preempt(job, Reason.PREEMPTED))

    def stop(self, job: JobId) -> None:
        self.do(Stop(job, Reason.CANCELLING))

    def do(self, *commands: Command) -> None:
        self.said += self.backend.execute(commands, time.time())

    def look(self, seconds: float = 0.1) -> None:
        self.said += self.backend.next_events(time.time() + seconds)

    def idle(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look(0.05)

    def until(self, done: Callable[[], object], what: str = "") -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < give_up, f"in vain: {what or done}; said: {self._news()}"
            self.look()

    def until_said(self, kind: type[E], job: JobId, times: int = 1) -> E:
        """Looks on until a job was said to do something so often; the last that was said."""
        self.until(lambda: len(self.heard(kind, job)) >= times, f"{times} {kind.__name__} of {job}")
        return self.heard(kind, job)[times - 1]

    def until_logged(self, job: JobId, text: str, rank: int = 0, times: int = 1) -> None:
        self.until(lambda: self.log(job, rank).count(text) >= times, f"{text!r} in the log of {job}")

    def _news(self) -> list[ev.Event]:
        return [event for event in self.said if not isinstance(event, ev.TimePassed)]

    def heard(self, kind: type[E], job: JobId) -> list[E]:
        return [event for event in self.said if isinstance(event, kind) and getattr(event, "job", "") == job]

    def end_of(self, job: JobId) -> ev.JobEnded:
        return self.until_said(ev.JobEnded, job)

    # --------------------------------------------------------------------------------------------- its files

    def folder(self, job: JobId) -> Path:
        return self.root / "jobs" / job

    def log(self, job: JobId, rank: int = 0) -> str:
        path = self.backend.log_path(job, rank)
        return path.read_text(errors="replace") if path.exists() else ""

    # ------------------------------------------------------------------------------------------- its server

    def vanish(self) -> None:
        """The server is gone, and says nothing more: as far as its jobs can tell, it was killed."""
        self.backend._watch.close()
        self.backend._trash.close()
        self._backend = None

    def shut_down(self, *, keep_jobs: bool, within_s: float = 60.0) -> None:
        self.backend.shutdown(keep_jobs=keep_jobs, within_s=within_s)
        self._backend = None

    def come_back(self, living: Mapping[JobId, tuple[str | None, Phase]]) -> None:
        """A new server, to which the World says: placements and phases."""
        self.backend.resume({job: (at(where) if where else None, phase) for job, (where, phase) in living.items()})

    def processes(self) -> list[int]:
        """All living processes that belong to any job here, runners too."""
        return [entry.pid for entry in process_tree.all_entries() if not entry.dead and self._is_ours(entry.pid)]

    def _is_ours(self, pid: int) -> bool:
        if pid == os.getpid():
            return False
        mark = str(self.root).encode()
        for name in ("environ", "cmdline"):
            try:
                if mark in Path(f"/proc/{pid}/{name}").read_bytes():
                    return True
            except OSError:
                return False
        return False

    def clean_up(self) -> None:
        """Ends what the test left running on purpose; fails when anything else is left."""
        if self._backend is not None:
            self._backend.shutdown(keep_jobs=False, within_s=0.0)
        give_up = time.monotonic() + 10.0
        while (left := self.processes()) and time.monotonic() < give_up:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left behind: {left}"
