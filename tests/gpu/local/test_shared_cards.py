"""A whole server: jobs go to the virtual GPU that is really less used, and soft shares get promises."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from batuta.api.operations import Operations, Submission
from batuta.bootstrap.local_server import Server, UpOptions, built
from batuta.core.cluster import Span
from batuta.engine.usage_watch import UsageWatch
from batuta.gpu.local_nodes import VirtualGpus
from batuta.policies.registry import DEFAULT_POLICY
from batuta.spec.task import parse_task
from batuta.spec.task_serialization import task_to_json
from tests.support.local_replicas import wait_until

SLEEPS = "exec sleep 1000"
SPINS = """
from batuta.demo.training import find_device
device = find_device()
print("ready", flush=True)
while True:
    device.spend(0.05)
"""


class Machine:
    """A server with one node of two virtual GPUs."""

    def __init__(self, server: Server, virtual: VirtualGpus) -> None:
        self.server, self.virtual = server, virtual

    def place(self, name: str, **gpu: str) -> Span:
        """Where a job goes that runs from now on; with a part of a GPU if that is said."""
        elastic = {
            "max_nodes": 1,
            "checkpoint": "none",
        }  # else the server waits at its end for one to be made
        asked = {"name": name, "run": SLEEPS, "resources": {"accelerators": 1}, "elastic": elastic}
        task = parse_task(json.dumps(asked | ({"gpu": gpu} if gpu else {})), check_paths=False)
        submission = Submission(task, task_to_json(task), "ana")
        self.server.service.ask(Operations(self.server.store, time.time).submit(submission))
        jobs = self.server.world.jobs
        placed: Callable[[], object] = lambda: jobs.placements[jobs.row(submission.job)]  # noqa: E731
        wait_until(placed, what="it has a place")
        placement = jobs.placements[jobs.row(submission.job)]
        assert placement is not None
        (span,) = placement.spans
        return span

    def _busy_since_look(self, gpu: int, usage: UsageWatch) -> float:
        """The part of half a second that a GPU is busy: less where other programs keep the CPU from who uses it."""
        usage.look()
        begun_ns, begun_s = self.virtual.read("node-0")[gpu].busy_ns, time.monotonic()
        time.sleep(0.5)
        return (self.virtual.read("node-0")[gpu].busy_ns - begun_ns) / 1e9 / (time.monotonic() - begun_s)

    @contextmanager
    def stranger(self, gpu: int) -> Iterator[None]:
        """Somebody who is no job keeps a GPU busy, and that is known."""
        environ = self.virtual.environment("node-0", os.environ) | {"CUDA_VISIBLE_DEVICES": str(gpu)}
        process = subprocess.Popen([sys.executable, "-c", SPINS], env=environ, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            usage = self.server.usage
            assert usage is not None
            wait_until(lambda: self._busy_since_look(gpu, usage) > 0.85, what="it is busy")
            usage.tell()
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)


@contextmanager
def machine(
    tmp_path: Path,
    over_allocate: int = 100,
    busiest: float = 0.7,
    shares: Literal["bin-pack", "spread"] = "bin-pack",
    policy: str = "elastic-fifo",
) -> Iterator[Machine]:
    options = UpOptions(
        home=tmp_path / "home",
        nodes=1,
        gpus=2,
        virtual=True,
        over_allocate=over_allocate,
        busiest=busiest,
        shares=shares,
        policy=policy,
    )
    with built(options) as server:
        server.keep_jobs = False
        server.service.start()
        wait_until(lambda: server.gpus.virtual is not None and server.gpus.virtual.uuids("node-0"), what="GPUs")
        assert server.gpus.virtual is not None
        yield Machine(server, server.gpus.virtual)


def test_a_job_goes_to_the_gpu_that_is_really_less_used(tmp_path: Path):
    with machine(tmp_path) as given, given.stranger(0):
        assert given.place("first").gpus == (1,)
        # and to the other one when there is no better
        assert given.place("second").gpus == (0,)


def test_without_a_stranger_the_first_one_is_taken(tmp_path: Path):
    with machine(tmp_path) as given:
        assert given.place("first").gpus == (0,)


def test_a_share_goes_there_too(tmp_path: Path):
    with machine(tmp_path) as given, given.stranger(0):
        assert given.place("first", compute="20%", memory="1GiB").gpus == (1,)


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, "elastic-fifo"])
def test_a_busy_card_gets_no_further_sharer_unless_the_server_says_so(tmp_path: Path, policy: str):
    for busiest, card in ((0.7, 1), (1.0, 0)):
        with machine(tmp_path / str(busiest), busiest=busiest, policy=policy) as given:
            assert given.place("first", compute="20%", memory="1GiB").gpus == (0,)
            with given.stranger(0):
                assert given.place("second", compute="20%", memory="1GiB").gpus == (card,)


@pytest.mark.parametrize("policy", [DEFAULT_POLICY, "elastic-fifo"])
def test_shares_are_spread_where_the_server_says_so(tmp_path: Path, policy: str):
    with machine(tmp_path, shares="spread", policy=policy) as given:
        assert given.place("first", compute="20%", memory="1GiB").gpus == (0,)
        assert given.place("second", compute="20%", memory="1GiB").gpus == (1,)


def test_soft_shares_are_promised_more_than_there_is_where_the_server_says_so(tmp_path: Path):
    with machine(tmp_path, over_allocate=160) as given:
        # 40 percent are kept for the first one, and 90 soft ones of 160 are 57 of the 60 that are left
        assert given.place("hard", compute="40%", memory="1GiB").gpus == (0,)
        assert given.place("soft", compute="90%", memory="1GiB", limit="soft").gpus == (0,)
        assert given.place("other", compute="10%", memory="1GiB", limit="soft").gpus == (1,)


def test_nothing_is_promised_twice_where_it_does_not(tmp_path: Path):
    with machine(tmp_path) as given:
        assert given.place("hard", compute="40%", memory="1GiB").gpus == (0,)
        assert given.place("soft", compute="90%", memory="1GiB", limit="soft").gpus == (1,)
