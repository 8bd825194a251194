"""A whole server finds jobs that hold virtual GPUs without using them, and does what it was told to."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.api.operations import Operations, Submission
from batuta.bootstrap.local_server import Server, UpOptions, built
from batuta.core.job import DesiredState, JobId
from batuta.core.job_table import Phase
from batuta.core.quota import IdleAction
from batuta.core.reason import Reason
from batuta.core.utilisation import IdleRules
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from tests.support.local_replicas import wait_until

AFTER_S = 0.3
SLEEPS = """
trap 'echo "{\\"event\\": \\"checkpoint\\", \\"path\\": \\"x\\"}" >>"$BATUTA_PROGRESS"; \
cat "$BATUTA_CONTROL/checkpoint-request" >"$BATUTA_CONTROL/checkpoint-done"; echo saved' USR1
while :; do sleep 0.05; done
"""
TRAINS = f"exec {sys.executable} -m batuta.demo.trainer --steps 1000000 --work-ms 20"


@dataclass
class Cluster:
    """A server with two virtual GPUs."""

    server: Server

    def submit(self, run: str, *, most: int = 1) -> JobId:
        elastic = {"min_nodes": 1, "max_nodes": most, "grace": "5s", "checkpoint": "on-signal"}
        if most > 1:
            elastic["restartable"] = True  # it saves when it is asked, which no report has shown yet
        task = parse_task(
            json.dumps({"run": run, "resources": {"accelerators": 1}, "elastic": elastic}), check_paths=False
        )
        submission = Submission(task, task_to_json(task), "ana")
        self.server.service.ask(Operations(self.server.store, time.time).submit(submission))
        wait_until(lambda: self.phase(submission.job) is Phase.RUNNING, what="it runs")
        return submission.job

    def phase(self, job: JobId) -> Phase:
        return self.server.world.jobs.phase_of(self.server.world.jobs.row(job))

    def gpus(self, job: JobId) -> int:
        return int(self.server.world.jobs.held[self.server.world.jobs.row(job)])

    def wish(self, job: JobId) -> DesiredState:
        return self.server.world.jobs.wish_of(self.server.world.jobs.row(job))

    def look(self) -> None:
        """Measures now, and not when the time for it comes."""
        usage = self.server.usage
        assert usage is not None
        usage.tell()

    def looked(self, job: JobId) -> int:
        """The GPUs of a job after another look."""
        self.look()
        return self.gpus(job)

    def reason(self, job: JobId) -> Reason | None:
        with self.server.service.reading() as (_, plan):
            decision = None if plan is None else plan.decisions.of(job)
        return None if decision is None else decision.reason


@contextmanager
def cluster(tmp_path: Path, action: IdleAction) -> Iterator[Cluster]:
    options = UpOptions(home=tmp_path / "home", nodes=1, gpus=2, virtual=True, idle=IdleRules(AFTER_S, action))
    with built(options) as server:
        server.keep_jobs = False
        server.service.start()
        wait_until(lambda: server.gpus.virtual is not None and server.gpus.virtual.uuids("node-0"), what="GPUs")
        yield Cluster(server)


def test_who_trains_is_left_in_peace_and_who_sleeps_is_parked_with_a_checkpoint(tmp_path: Path):
    with cluster(tmp_path, IdleAction.PARK) as given:
        # given a job that uses its GPU and one that does not
        busy, idle = given.submit(TRAINS), given.submit(SLEEPS)
        virtual = given.server.gpus.virtual
        assert virtual is not None
        wait_until(lambda: any(gpu.launches for gpu in virtual.read("node-0")), what="it trains")
        given.look()
        begun_ns = max(gpu.busy_ns for gpu in virtual.read("node-0"))
        wait_until(
            lambda: max(gpu.busy_ns for gpu in virtual.read("node-0")) > begun_ns + 200_000_000,
            what="it is busy",
        )
        # when that is measured, then the one that sleeps is parked
        given.look()
        wait_until(lambda: given.wish(idle) is DesiredState.PARK, what="it is parked")
        assert given.reason(idle) is Reason.PARKED_IDLE
        # after it was asked for a checkpoint
        wait_until(lambda: "saved" in given.server.backend.log_path(idle).read_text(), what="it has saved")
        wait_until(lambda: given.gpus(idle) == 0, what="it has gone")
        assert (given.wish(busy), given.gpus(busy)) == (DesiredState.RUN, 1)


def test_a_job_that_sleeps_is_made_small(tmp_path: Path):
    with cluster(tmp_path, IdleAction.SHRINK) as given:
        job = given.submit(SLEEPS, most=2)
        assert given.gpus(job) == 2
        given.look()
        wait_until(lambda: given.looked(job) == 1, what="it is small")
        wait_until(lambda: given.phase(job) is Phase.RUNNING, what="it runs again")
        assert given.wish(job) is DesiredState.RUN


def test_it_is_only_told_where_nothing_else_was_asked_for(tmp_path: Path):
    with cluster(tmp_path, IdleAction.REPORT) as given:
        job = given.submit(SLEEPS)
        given.look()
        given.look()
        wait_until(lambda: given.reason(job) is Reason.IDLE, what="it is told")
        assert (given.wish(job), given.gpus(job)) == (DesiredState.RUN, 1)
