"""The whole way with torchrun and Lightning: `batuta up`, an example, resizes from 2 nodes to 1 to 2."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batuta.apitypes.resources import Job
from batuta.backends.local.job_files import JobFiles
from batuta.client.client import Client
from batuta.spec.progress import ProgressReport, parse_line
from tests.support.server_process import PlainServers
from tests.support.torch_install import REPO, stock_python

pytestmark = pytest.mark.slow
STEPS = 100_000
"""More than it will ever do."""
WITHIN_S = 600.0
SIZES = (2, 1, 2)
STARTS = {
    "torchrun-elastic": {"rank 0 of 2, from step": 2, "rank 0 of 1, from step": 1, "from step 0 of": 1},
    "lightning": {"GPU available: False": 3, "Restored all states from the checkpoint": 2},
}
"""By example: what its starts say, and how often. The first of the three begins, the others resume."""


def wait(client: Client, job: Job, done: Callable[[Job], bool]) -> Job:
    give_up = time.monotonic() + WITHIN_S
    while not done(now := client.job(job)):
        if now.is_over or time.monotonic() > give_up:
            told = "\n".join(client.logs(job, follow=False))[-2000:]
            pytest.fail(f"{now.state}: {now.detail}\n{told}")
        time.sleep(0.2)
    return now


def step_of(job: Job) -> int:
    return 0 if job.progress is None else job.progress.step or 0


def wait_training(client: Client, job: Job, gpus: int) -> None:
    """Waits until it has done a step with that many GPUs; the start before cannot report then any more."""
    started = wait(client, job, lambda now: (now.state, now.gpus.now) == ("RUNNING", gpus))
    wait(client, job, lambda now: step_of(now) > step_of(started))


def check_course(reports: list[ProgressReport], log: str) -> None:
    """Each start goes on from the step that was saved last, and computes what the one before it computed."""
    saved = {report.restart: report.step for report in reports if report.request is not None}
    starts = re.findall(r"rank 0 of (\d), from step (\d+) of", log)
    assert [int(size) for size, _ in starts] == list(SIZES)
    assert [int(step) for _, step in starts] == [0, saved[0], saved[1]]
    losses: dict[int, set[float]] = {}
    for report in reports:
        if report.step is not None and report.loss is not None:
            losses.setdefault(report.step, set()).add(report.loss)
    for step, found in losses.items():
        # Steps that were done twice, with 2 workers and with 1, had the same batch and the same weights.
        assert max(found) == pytest.approx(min(found), rel=1e-4), step


@pytest.mark.parametrize("example", STARTS)
def test_an_example_is_resized_from_2_nodes_to_1_to_2(tmp_path: Path, example: str) -> None:
    # given a server with virtual GPUs, and an environment with the framework, as the example's setup makes it
    folder = REPO / "examples" / example
    env = {"STEPS": str(STEPS), "EPOCHS": str(STEPS), "VENV": str(stock_python().parents[1])}
    with PlainServers(tmp_path) as servers:
        server = servers.start(
            tmp_path / "home", "--nodes", "2", "--gpus", "1", env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        server.wait_ready()
        with server.client() as client:
            # when the job is resized again and again
            job = client.submit(folder / "task.yaml", workdir=str(folder), max_nodes=2, env=env)
            try:
                for size in SIZES:
                    client.resize(job, size)
                    wait_training(client, job, size)
                log = "\n".join(client.logs(job, follow=False))
                # then every start has gone on from a checkpoint, and none from the beginning
                assert client.job(job).restarts == 2, log
                timed = [event for event in client.job_events(job) if event.type == "TransitionTimed"]
                assert [event.data["checkpoint_s"] is not None for event in timed] == [False, True, True]
                told = JobFiles(tmp_path / "home", job.id).progress.read_bytes().split(b"\n")[:-1]
            finally:  # a job outlives its server, and this one would train for days
                client.cancel(job)
                assert client.wait(job, timeout_s=WITHIN_S).state == "CANCELLED"
        server.end()
    # and no start has found fault with the virtual GPUs
    assert "cuda" not in log.lower(), log
    assert {line: log.count(line) for line in STARTS[example]} == STARTS[example], log
    if example == "torchrun-elastic":
        check_course([report for line in told if (report := parse_line(line)) is not None], log)
