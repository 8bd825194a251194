"""The whole way with a real torchrun: `batuta up`, a task file, and resizes from 2 nodes to 1 to 2."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batuta.client.answers import Job
from batuta.client.client import Client
from tests.support.server_process import PlainServers
from tests.support.torch_install import REPO, require_torch

pytestmark = pytest.mark.slow
STEPS = 100_000
"""More than it will ever do."""
WITHIN_S = 120.0


def wait(client: Client, job: Job, done: Callable[[Job], bool]) -> Job:
    give_up = time.monotonic() + WITHIN_S
    while not done(now := client.job(job)):
        told = "\n".join(client.logs(job, follow=False))[-2000:]
        assert not now.is_over, f"{now.state}: {now.detail}\n{told}"
        assert time.monotonic() < give_up, f"{now}\n{told}"
        time.sleep(0.1)
    return now


def trains(gpus: int, beyond: int) -> Callable[[Job], bool]:
    """Whether it runs with so many GPUs, and has come further than a step."""
    return lambda job: (
        (job.state, job.gpus.now) == ("RUNNING", gpus)
        and job.progress is not None
        and (job.progress.step or 0) > beyond
    )


def test_a_real_torchrun_is_resized_from_2_nodes_to_1_to_2(tmp_path: Path) -> None:
    torch = require_torch()
    env = {**os.environ, **torch.env(tmp_path / "bin")}
    passed = [word for name in torch.quirks for word in ("--pass-env", name)]
    task = REPO / "examples" / "torchrun-elastic" / "task.yaml"
    with PlainServers(tmp_path) as servers:
        server = servers.start(tmp_path / "home", "--nodes", "2", "--gpus", "1", *passed, env=env)
        server.wait_ready()
        with server.client() as client:
            job = client.submit(task, max_nodes=2, env={"STEPS": str(STEPS)})
            at, sizes = 0, (2, 1, 2)
            for size in sizes:
                client.resize(job, size)
                seen = wait(client, job, trains(size, at))
                assert seen.progress is not None
                at = seen.progress.step or 0
            log = "\n".join(client.logs(job, follow=False))
            assert client.job(job).restarts == 2, log
            # Every start went on from a checkpoint, and none from the beginning.
            assert [f"of {size}, from step" in log for size in sizes] == [True] * 3
            assert log.count("from step 0 of") == 1
            timed = [event for event in client.job_events(job) if event.type == "TransitionTimed"]
            assert [event.data["checkpoint_s"] is not None for event in timed] == [False, True, True]
            client.cancel(job)
            assert client.wait(job, timeout_s=WITHIN_S).state == "CANCELLED"
        server.end()
