"""Two jobs on one card are held to their shares of it: memory always, compute hard or soft."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from batuta.backends.local.replica_plan import ReplicaGpus
from batuta.bootstrap.local_gpus import LocalGpus
from batuta.core.cluster import NodeName
from batuta.core.job import Share
from batuta.gpu.local_nodes import VirtualGpus
from batuta.gpu.share.cards import CardFolder, demand_paths, tenant_key
from batuta.gpu.share.limits import read_limits
from tests.support.local_backends import Bench
from tests.support.worlds import make_job

WITHIN_S = 60.0
MIB = 1 << 20
OUT_OF_MEMORY = 2
NOBODY = 65534
TAKES = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
for mib in (1000, 1000, 1000):
    print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)), flush=True)
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(total.value >> 20, flush=True)
time.sleep(1000)
"""
SPINS = f"exec {sys.executable} -m batuta.demo.trainer --steps 1000000 --work-ms 50"


class Card:
    """One virtual GPU that jobs share."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench(folder, 1)
        self.virtual = VirtualGpus(folder, self.bench.nodes)
        self.bench.gpu_injector = self.gpus = LocalGpus(folder, {}, self.virtual)
        ready = threading.Event()
        self.gpus.prepare(ready.set)
        assert ready.wait(WITHIN_S)
        assert self.gpus.notes == []
        self.virtual.make_ahead()

    def share(self, job: str, run: str, **gpu: str) -> None:
        self.bench.task(job, run, resources={"accelerators": 1}, gpu=gpu, elastic={"max_nodes": 1})
        self.bench.start(job, "n0:0")

    def busy_ns(self) -> dict[str, int]:
        """Device time so far, by job."""
        jobs = {pid: job for job in self.bench.tasks for pid in self._pids(job)}
        return {jobs[one.pid]: one.busy_ns for one in self.virtual.read("n0")[0].processes if one.pid in jobs}

    def _pids(self, job: str) -> list[int]:
        mark = f"BATUTA_JOB_ID={job}\0".encode()
        return [pid for pid in self.bench.processes() if mark in _environ(pid)]

    def parts(self, seconds: float = 1.5) -> dict[str, float]:
        """What part of the card's time each job has, measured for so long."""
        before, begun = self.busy_ns(), time.monotonic_ns()
        self.bench.idle(seconds)
        took, after = time.monotonic_ns() - begun, self.busy_ns()
        return {job: (after[job] - before.get(job, 0)) / took for job in after}


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    made = Card(tmp_path)
    yield made
    made.bench.clean_up()


def test_memory_beyond_a_share_is_refused_and_the_share_looks_like_the_whole(card: Card):
    card.share("a", f"exec {sys.executable} - <<'END'\n{TAKES}\nEND\n", memory="2500MiB")
    card.share("b", f"exec {sys.executable} - <<'END'\n{TAKES}\nEND\n", memory="1500MiB")
    card.bench.until_logged("a", "2500")
    card.bench.until_logged("b", "1500")
    assert card.bench.log("a").split() == ["0", "0", str(OUT_OF_MEMORY), "2500"]
    assert card.bench.log("b").split() == ["0", str(OUT_OF_MEMORY), str(OUT_OF_MEMORY), "1500"]
    assert card.virtual.read("n0")[0].used_bytes == 3000 * MIB


def test_two_jobs_get_the_compute_that_they_were_given(card: Card):
    card.share("a", SPINS, compute="60%", memory="1GiB")
    card.share("b", SPINS, compute="30%", memory="1GiB")
    card.bench.until(lambda: len([busy for busy in card.busy_ns().values() if busy]) == 2)
    card.bench.idle(1.0)  # credit that was saved up before both ran
    parts = card.parts()
    # Without limits each would have half; how exact they are is for the share library's own tests.
    assert parts["a"] / (parts["a"] + parts["b"]) > 0.57
    assert parts["b"] < 0.43


def test_a_soft_share_has_more_while_the_card_is_idle(card: Card):
    card.share("a", SPINS, compute="10%", memory="1GiB", limit="soft")
    card.bench.until(lambda: card.busy_ns().get("a"))
    assert card.parts()["a"] > 0.3


def test_limits_are_written_as_the_task_says(card: Card):
    card.share("hard", SPINS, compute="40%", memory="1GiB")
    card.share("soft", SPINS, compute="20%", memory="2GiB", limit="soft")
    found = {}
    for job in ("hard", "soft"):
        path = card.bench.folder(job) / "runs" / "0" / "gpu-limits"
        card.bench.until(path.exists)
        (found[job],) = read_limits(path).devices
    assert (found["hard"].memory_mib, found["hard"].compute_percent) == (1024, 40)
    assert (found["soft"].compute_percent, found["soft"].soft_compute_percent) == (None, 20)
    assert found["hard"].uuid == found["soft"].uuid == card.virtual.uuids("n0")[0]


def test_the_server_grants_and_a_job_may_write_what_it_wants_alone(card: Card, tmp_path: Path):
    # given a job whose folder belongs to another user, as where root starts jobs as their users
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = tmp_path / "run"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    job = replace(make_job("a"), share=Share(memory_mib=1024, compute_percent=40))
    card.gpus.inject(ReplicaGpus(job, NodeName("n0"), (0,), "a-0-0", folder), {})
    # then the grant is the server's, and what the job wants the job's
    limits = read_limits(folder / "gpu-limits")
    assert limits.cards is not None
    uuid = limits.devices[0].uuid
    (granted,) = CardFolder(limits.cards).tenants(uuid)
    assert (granted.key, granted.hard_permille) == (tenant_key(limits), 400)
    status, (demand,) = (limits.cards / uuid).stat(), demand_paths(limits)
    assert (status.st_uid, status.st_mode & 0o777) == (0, 0o644)
    assert (demand.stat().st_uid, demand.stat().st_mode & 0o777) == (NOBODY, 0o600)
