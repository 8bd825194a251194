"""Local mode's virtual nodes: programs of jobs use virtual GPUs, and NVML's tools see the jobs on them."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from batuta.bootstrap.local_gpus import LocalGpus
from batuta.core.cluster import Node
from batuta.gpu.local_nodes import VirtualGpus, VirtualGpuUtilisation, device_path, virtual_nodes
from batuta.gpu.vgpu.snapshot import VirtualGpu
from tests.support.cli_server import Cli
from tests.support.local_backends import Bench
from tests.support.vgpu import client_python

WITHIN_S = 60.0
GIB = 1 << 30
TRAINS = f"exec {sys.executable} -m batuta.demo.trainer --steps 1000000 --work-ms 20"
CUDA = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def ok(code):
    assert code == 0, code
context, count, address = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
ok(cuda.cuInit(0)); ok(cuda.cuDeviceGetCount(ctypes.byref(count)))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)); ok(cuda.cuCtxSetCurrent(context))
"""


def python(code: str) -> str:
    """A task's `run` that is a Python program."""
    return f"exec {sys.executable} - <<'END'\n{CUDA}{code}\nEND\n"


@dataclass
class Nodes:
    """A bench whose two nodes have device files."""

    bench: Bench
    virtual: VirtualGpus
    gpus: LocalGpus

    def read(self, node: str) -> tuple[VirtualGpu, ...]:
        return self.virtual.read(node)

    def until(self, done: Callable[[], object]) -> None:
        self.bench.until(done)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    bench = Bench(tmp_path, 2, 2)
    virtual = VirtualGpus(tmp_path, bench.nodes)
    bench.gpu_injector = gpus = LocalGpus(tmp_path, {}, virtual)
    ready = threading.Event()
    gpus.prepare(ready.set)
    assert ready.wait(WITHIN_S)
    virtual.make_ahead()
    yield Nodes(bench, virtual, gpus)
    bench.clean_up()


def test_a_job_is_seen_on_its_gpus_and_nowhere_else(nodes: Nodes):
    # given a job with one GPU of each node, which trains
    nodes.bench.task("a", TRAINS, sizes=2)
    nodes.bench.start("a", "n0:1 n1:0")
    # then it is on these two, one process each, and keeps them busy
    nodes.until(lambda: nodes.read("n0")[1].utilization > 0.3 and nodes.read("n1")[0].utilization > 0.3)
    seen = [[len(gpu.processes) for gpu in nodes.read(node)] for node in ("n0", "n1")]
    assert seen == [[0, 1], [1, 0]]
    assert nodes.read("n0")[1].processes[0].pid in nodes.bench.processes()
    # and gone when it is
    nodes.bench.stop("a")
    nodes.bench.end_of("a")
    assert [gpu.used_bytes for gpu in (*nodes.read("n0"), *nodes.read("n1"))] == [0, 0, 0, 0]


def test_a_job_sees_only_what_it_has(nodes: Nodes):
    ask = "uuid = (ctypes.c_ubyte * 16)(); ok(cuda.cuDeviceGetUuid(uuid, 0))"
    nodes.bench.task("a", python(f"{ask}; print(count.value, bytes(uuid).hex())"))
    nodes.bench.start("a", "n1:1")
    nodes.bench.end_of("a")
    uuid = nodes.virtual.uuids("n1")[1].removeprefix("GPU-").replace("-", "")
    assert nodes.bench.log("a").split() == ["1", uuid]


def test_gpustat_sees_the_jobs_of_a_node(nodes: Nodes, tmp_path: Path):
    equipped = client_python()
    hold = f"ok(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({GIB}))); print('holding', flush=True)"
    nodes.bench.task("a", python(f"{hold}; time.sleep(1000)"))
    nodes.bench.start("a", "n0:1")
    nodes.bench.until_logged("a", "holding")
    environ = nodes.virtual.environment("n0", os.environ)
    said = subprocess.run(
        [equipped, "-m", "gpustat", "--json"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    found = json.loads(said)["gpus"]
    assert [gpu["memory.used"] for gpu in found] == [0, 1024]
    (process,) = found[1]["processes"]
    assert process["pid"] in nodes.bench.processes()


def test_use_is_measured_and_whose_it_is(nodes: Nodes):
    nodes.bench.task("busy", TRAINS)
    nodes.bench.start("busy", "n0:0")
    nodes.until(lambda: nodes.read("n0")[0].launches > 0)
    measure = VirtualGpuUtilisation(nodes.virtual, ("n0", "n1"))
    assert measure.look() == {}
    begun = nodes.read("n0")[0].busy_ns
    nodes.until(lambda: nodes.read("n0")[0].busy_ns > begun + 300_000_000)
    found = measure.look()
    (busy, idle), nobody = found["n0"].gpus, found["n1"].gpus
    assert busy is not None
    assert 0.3 < busy <= 1.0
    assert (idle, nobody) == (0.0, (0.0, 0.0))
    assert found["n0"].jobs == {"busy": pytest.approx(busy, abs=0.01)}
    assert found["n0"].knows_all_jobs


def test_a_next_server_finds_the_same_gpus_unless_it_is_told_otherwise(tmp_path: Path):
    def made(*nodes: Node) -> tuple[str, ...]:
        virtual = VirtualGpus(tmp_path, nodes)
        virtual.build()
        virtual.make_ahead()
        return virtual.uuids("n0")

    first = made(Node("n0", 2, "H100", 81_920))
    inode = device_path(tmp_path, "n0").stat().st_ino
    assert made(Node("n0", 2, "H100", 81_920)) == first
    assert device_path(tmp_path, "n0").stat().st_ino == inode
    assert len(made(Node("n0", 4, "H100", 81_920))) == 4


def test_virtual_nodes_are_as_large_as_what_they_pretend_to_be(tmp_path: Path):
    nodes = (*virtual_nodes(1, 1, "h100").nodes, *virtual_nodes(1, 1).nodes)
    assert [node.gpu_memory_mib for node in nodes] == [81_920, 16_384]
    virtual = VirtualGpus(tmp_path, nodes[:1])
    virtual.build()
    virtual.make_ahead()
    (gpu,) = virtual.read("node-0")
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3", 80 * GIB)


def test_without_a_compiler_jobs_run_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # given a machine without one
    monkeypatch.setenv("CC", "")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    bench = Bench(tmp_path, 1)
    virtual = VirtualGpus(tmp_path, bench.nodes)
    bench.gpu_injector = gpus = LocalGpus(tmp_path, {}, virtual)
    ready = threading.Event()
    gpus.prepare(ready.set)
    assert ready.wait(WITHIN_S)
    # then it says so, once
    (note,) = gpus.notes
    assert "no program sees the virtual GPUs" in note
    assert "C compiler" in note
    # and jobs run
    monkeypatch.setenv("PATH", path)
    bench.task("a", 'echo "has $CUDA_VISIBLE_DEVICES ${BATUTA_VGPU:-nothing}"')
    bench.start("a", "n0:0")
    bench.end_of("a")
    assert bench.log("a") == "has 0 nothing\n"
    bench.clean_up()


def test_more_gpus_than_programs_can_see_are_numbers_only(tmp_path: Path):
    virtual = VirtualGpus(tmp_path, [Node("n0", 17)])
    gpus = LocalGpus(tmp_path, {}, virtual)
    ready = threading.Event()
    gpus.prepare(ready.set)
    assert ready.wait(WITHIN_S)
    assert any("16" in note for note in gpus.notes)
    assert virtual.environment("n0", {"A": "1"}) == {"A": "1"}


def test_the_command_line_knows_a_node_by_its_name(nodes: Nodes, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cli = Cli(tmp_path, elsewhere)
    nodes.bench.task("a", TRAINS)
    nodes.bench.start("a", "n1:1")
    nodes.until(lambda: nodes.read("n1")[1].processes)
    shown = cli.json("vgpu", "status", "n1")
    assert [gpu["uuid"] for gpu in shown] == list(nodes.virtual.uuids("n1"))
    assert [len(gpu["processes"]) for gpu in shown] == [0, 1]
    # a program that it runs there sees the node's GPUs
    done = cli.run("vgpu", "run", "n0", "--", sys.executable, "-c", f"{CUDA}print(count.value)")
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
    refused = cli.run("vgpu", "status", "n7")
    assert refused.returncode == 2
    assert "batuta vgpu create" in refused.stderr
