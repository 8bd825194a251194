"""What NVML and the file itself say of virtual GPUs, to the profiler."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from batuta.gpu.vgpu.snapshot import VirtualGpu
from tests.support.gpu_work import work
from tests.support.vgpu import VirtualNode

LOOK = """
import dataclasses, json, sys, time
from batuta.gpu.profiler.sources import NvmlSource
with NvmlSource() as look:
    look()
    time.sleep(1.2)
    print(json.dumps(dataclasses.asdict(look())))
"""
LOSE = """
import dataclasses, json, os
from pathlib import Path
from batuta.gpu.profiler.sources import NvmlSource
from batuta.gpu.vgpu.inject import FaultSpec, inject
with NvmlSource() as look:
    samples = [look()]
    inject(Path(os.environ["BATUTA_VGPU"]), 1, FaultSpec(xid=79))
    samples.append(look())
print(json.dumps([dataclasses.asdict(sample)["gpus"][1] for sample in samples]))
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def look_by_nvml(node: VirtualNode) -> list[dict]:
    return json.loads(node.run_python(LOOK))["gpus"]


def shares_in_file(node: VirtualNode) -> tuple[VirtualGpu, dict[int, float]]:
    """The first GPU, and the shares of its processes in about a second."""
    begin_s, before = time.monotonic(), {one.pid: one.busy_ns for one in node.read()[0].processes}
    time.sleep(1.2)  # shares of time are differences
    gpu, since_s = node.read()[0], time.monotonic() - begin_s
    return gpu, {one.pid: (one.busy_ns - before[one.pid]) / 1e9 / since_s for one in gpu.processes}


def test_nvml_and_the_file_agree_on_who_does_how_much(node: VirtualNode, stack: ExitStack):
    # given two processes on one GPU, one of which works twice as long at a time
    long, short = (work(stack, node, busy_ms=busy_ms, mib=512) for busy_ms in (80, 40))
    # when NVML is asked and the file is read
    (by_nvml, idle), (in_file, same) = look_by_nvml(node), shares_in_file(node)
    # then they say the same: a full GPU, and the share of each process
    shares = {one["pid"]: one["utilisation"] for one in by_nvml["processes"]}
    assert by_nvml["utilisation"] > 0.8
    assert in_file.utilization > 0.8
    for found in (shares, same):
        assert found[long.pid] == pytest.approx(2 / 3, abs=0.15)
        assert found[short.pid] == pytest.approx(1 / 3, abs=0.15)
    assert by_nvml["memory_used_mib"] == in_file.used_bytes / 2**20 == 1024
    assert by_nvml["power_w"] > idle["power_w"]
    assert by_nvml["temperature_c"] > idle["temperature_c"]
    assert (idle["utilisation"], idle["processes"]) == (0.0, [])


def test_a_gpu_off_the_bus_keeps_its_name_and_tells_nothing(node: VirtualNode):
    before, after = json.loads(node.run_python(LOSE))
    assert (after["uuid"], after["model"]) == (before["uuid"], "T4")
    assert (after["utilisation"], after["memory_used_mib"], after["processes"]) == (None, None, [])


def test_the_drivers_samples_are_between_two_looks(node: VirtualNode, stack: ExitStack):
    work(stack, node, busy_ms=100, rest_ms=100)
    (first, _) = look_by_nvml(node)
    times = [time_s for time_s, _ in first["recent"]]
    assert times == sorted(times)
    assert 0.5 <= times[-1] - times[0] <= 2.0
    assert {0.0, 1.0} <= {round(busy) for _, busy in first["recent"]}
