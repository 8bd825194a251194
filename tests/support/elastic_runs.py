"""Jobs started as Batuta starts them: a process per replica, `build_run_env`, one size after another."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batuta.backends.local.addresses import PortReservations, node_address
from batuta.spec.progress import ProgressReport, parse_line
from batuta.spec.replica_env import ReplicaContext, build_run_env
from batuta.spec.task import Task
from tests.support.scripts import ask

PATIENCE_S = 60.0
"""A shared machine may be slow for a while. A test that waits this long has failed; none needs it."""
POLITE_S = 15.0
OWN_ENV = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    "LC_ALL": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
}


def wait_until(condition: Callable[[], object], what: str, within_s: float = PATIENCE_S) -> None:
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {within_s} s in vain for {what}"
        time.sleep(0.01)


@dataclass
class Run:
    """One start of a job: all of its replicas, at one size."""

    replicas: list[subprocess.Popen[bytes]]
    control: Path
    progress: Path
    logs: list[Path]

    def log(self, rank: int) -> str:
        return self.logs[rank].read_text(encoding="utf-8", errors="replace")

    def all_logs(self) -> str:
        return "\n".join(f"--- replica {rank}\n{self.log(rank)}" for rank in range(len(self.logs)))

    def reports(self) -> list[ProgressReport]:
        data = self.progress.read_bytes() if self.progress.exists() else b""
        return [report for line in data.split(b"\n")[:-1] if (report := parse_line(line)) is not None]

    def step(self) -> int:
        return max((report.step or 0 for report in self.reports()), default=0)

    def until_step(self, step: int) -> None:
        def is_there() -> bool:
            dead = [one.returncode for one in self.replicas if one.poll() not in (None, 0)]
            assert not dead, f"exit codes {dead}\n{self.all_logs()}"
            return self.step() >= step

        wait_until(is_there, f"step {step}\n{self.all_logs()}")

    def checkpoint(self, request: int = 1) -> int:
        """Asks for a checkpoint as a backend does, and returns the step that it was made at."""
        ask(self.control, request)
        done = self.control / "checkpoint-done"
        wait_until(lambda: done.exists() and int(done.read_text()) >= request, "an answer")
        return next(report.step or 0 for report in self.reports() if report.request == request)

    def signal(self, number: signal.Signals) -> None:
        for replica in self.replicas:
            if replica.poll() is None:
                os.killpg(replica.pid, number)

    def wait(self, within_s: float = PATIENCE_S) -> list[int]:
        return [replica.wait(within_s) for replica in self.replicas]

    def finish(self) -> object:
        """What it returned, at the end of its work.

        Workers of torch 1 sometimes hang in their last barrier, or when the one that they meet through has
        left first; that is theirs to mend, and not waited for.
        """
        wait_until((self.control / "result.json").exists, "the result")
        self.signal(signal.SIGKILL)
        self.wait()
        return self.result()

    def stop(self) -> list[int]:
        """SIGTERM to all, as before a resize."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def result(self) -> object:
        return json.loads((self.control / "result.json").read_text())


@dataclass
class ElasticJob:
    """A job with its folders; what it has saved is there for the next start."""

    home: Path
    job_id: str = "j1"
    inherited: Mapping[str, str] = field(default_factory=lambda: OWN_ENV)
    ports: PortReservations = field(default_factory=PortReservations)
    runs: list[Run] = field(default_factory=list)

    def start(self, task: Task, size: int) -> Run:
        """Starts the task with so many replicas."""
        restart = len(self.runs)
        folder = self.home / f"run-{restart}"
        control, checkpoints = folder / "control", self.home / "checkpoints"
        for made in (control, checkpoints):
            made.mkdir(parents=True, exist_ok=True)
        port = self.ports.reserve(self.job_id)
        run = Run([], control, folder / "progress.jsonl", [folder / f"{rank}.log" for rank in range(size)])
        self.runs.append(run)
        for rank in range(size):
            place = ReplicaContext(
                job_id=self.job_id,
                rank=rank,
                node_ips=tuple(map(node_address, range(size))),
                gpus=tuple(range(rank * task.gpus_per_node, (rank + 1) * task.gpus_per_node)),
                master_port=port,
                checkpoint_dir=str(checkpoints),
                progress_file=str(run.progress),
                control_dir=str(control),
                restart=restart,
            )
            with run.logs[rank].open("wb") as log:
                run.replicas.append(
                    subprocess.Popen(
                        [shutil.which("bash") or "/bin/sh", "-c", task.run],
                        cwd=task.workdir or self.home,
                        env=build_run_env(task, place, self.inherited),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        return run

    def losses(self) -> dict[int, set[float]]:
        """By step, every loss that was ever reported for it."""
        found: dict[int, set[float]] = {}
        for run in self.runs:
            for report in run.reports():
                if report.step is not None and report.loss is not None:
                    found.setdefault(report.step, set()).add(report.loss)
        return found

    def clean_up(self) -> None:
        """Ends what is left. Politely at first: a launcher that is killed leaves its workers behind."""
        for run in self.runs:
            run.signal(signal.SIGTERM)
        for run in self.runs:
            try:
                run.wait(POLITE_S)
            except subprocess.TimeoutExpired:
                run.signal(signal.SIGKILL)
                run.wait()
