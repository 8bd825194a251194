"""A server inside bounds of its own, with a job that computes, and jobs that misbehave beside it."""

import os
import time
from contextlib import suppress
from pathlib import Path

from batuta.apitypes import resources as a
from batuta.client.client import Client
from tests.support.local_replicas import wait_until
from tests.support.outer_cgroup import shell_prefix
from tests.support.server_process import PlainServers, ServerProcess

WORKS = "exec python3 -S -c 'while True: pass'"
FORKS = "f() { f | f & }; f; sleep 60"
FILLS = "exec python3 -S -c 'x = [bytearray(1 << 24) for _ in range(1000)]'"
WRITES = "while :; do dd if=/dev/zero of=$BATUTA_CHECKPOINT_DIR/file bs=1M count=48 conv=fsync 2>/dev/null; done"
LIMITS = ("--job-processes", "300", "--job-memory", "0.25")
_ANSWERS_WITHIN_S = 5.0
_WINDOW_S = 3.0
_ATTEMPTS = 4
SPEED = 0.8


class Contained:
    """A server inside bounds, with a job that computes."""

    def __init__(self, servers: PlainServers, home: Path, groups: dict[str, Path], works: str = WORKS) -> None:
        self.servers, self.home, self.groups = servers, home, groups
        self.server = self.start()
        self.works = self.submit("works", works)
        wait_until(lambda: self.cpu_s() > 0.5, what="the job that works")

    def start(self) -> ServerProcess:
        server = self.servers.start(self.home, *LIMITS, prefix=shell_prefix(self.groups))
        server.wait_ready()
        return server

    @property
    def client(self) -> Client:
        return self.server.client()

    def submit(self, name: str, run: str, **resources: object) -> a.Job:
        with self.client as client:
            return client.submit({"name": name, "run": run, "resources": dict(resources)})

    def end_of(self, job: a.Job, within_s: float = 60.0) -> a.Job:
        give_up = time.monotonic() + within_s
        with self.client as client:
            while (found := client.job(job.id)).state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
                assert time.monotonic() < give_up, found
                time.sleep(0.05)
        return found

    def _pids(self) -> list[str]:
        return [
            pid
            for path in self.groups["pids"].glob(f"*/b-{self.works.id}-*/cgroup.procs")
            for pid in path.read_text().split()
        ]

    def cpu_s(self) -> float:
        """The CPU time that the job which works has had."""
        total = 0
        for pid in self._pids():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def speed(self) -> float:
        """The part of a CPU that it gets for a while, in which the API is asked again and again."""
        begun_s, had_s = time.monotonic(), self.cpu_s()
        while time.monotonic() < begun_s + _WINDOW_S:
            asked_s = time.monotonic()
            with self.client as client:
                client.jobs()
            assert time.monotonic() - asked_s < _ANSWERS_WITHIN_S, "the API does not answer"
            time.sleep(0.1)
        return (self.cpu_s() - had_s) / (time.monotonic() - begun_s)

    def speed_beside(self, name: str, run: str) -> tuple[float, a.Job]:
        """How fast it is beside a job that misbehaves, compared with one that computes as it does itself.

        The best of some attempts: other programs use the machine, too, now more and now less.
        """
        for attempt in range(_ATTEMPTS):
            neighbour = self.submit(f"neighbour-of-{name}-{attempt}", WORKS)
            usual = self.speed()
            self.cancel(neighbour)
            job = self.submit(f"{name}-{attempt}", run)
            ratio = self.speed() / usual
            if ratio >= SPEED:
                break
            self.cancel(job)
        return ratio, job

    def cancel(self, job: a.Job) -> None:
        with self.client as client:
            if client.job(job.id).state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
                client.cancel(job.id)
        self.end_of(job)
