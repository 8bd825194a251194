"""What NVML and the file itself say of virtual GPUs, to the profiler."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from batuta.gpu.profiler.sample import NodeSample
from batuta.gpu.profiler.virtual import VirtualSource
from batuta.gpu.vgpu.inject import Harm, inject
from tests.support.gpu_work import work
from tests.support.vgpu import VirtualNode

LOOK = """
import dataclasses, json, sys, time
from batuta.gpu.profiler.nvml import NvmlSource
with NvmlSource() as look:
    look()
    time.sleep(1.2)
    print(json.dumps(dataclasses.asdict(look())))
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def look_by_nvml(node: VirtualNode) -> list[dict]:
    return json.loads(node.run_python(LOOK))["gpus"]


def look_twice(source: VirtualSource) -> NodeSample:
    source()
    time.sleep(1.2)  # shares of time are differences
    return source()


def test_nvml_and_the_file_agree_on_who_does_how_much(node: VirtualNode, stack: ExitStack):
    # given two processes on one GPU, one of which works twice as long at a time
    long, short = (work(stack, node, busy_ms=busy_ms, mib=512) for busy_ms in (80, 40))
    # when both sources look
    (by_nvml, idle), sample = look_by_nvml(node), look_twice(VirtualSource(node.path))
    # then they see the same: a full GPU, and who has which part of it
    shares = {one["pid"]: one["utilisation"] for one in by_nvml["processes"]}
    same = {one.pid: one.utilisation for one in sample.gpus[0].processes}
    assert by_nvml["utilisation"] > 0.8
    assert (sample.gpus[0].utilisation or 0.0) > 0.8
    for found in (shares, same):
        assert found[long.pid] == pytest.approx(2 / 3, abs=0.15)
        assert found[short.pid] == pytest.approx(1 / 3, abs=0.15)
    assert by_nvml["memory_used_mib"] == sample.gpus[0].memory_used_mib == 1024
    assert by_nvml["power_w"] > idle["power_w"]
    assert by_nvml["temperature_c"] > idle["temperature_c"]
    assert (idle["utilisation"], idle["processes"]) == (0.0, [])


def test_a_gpu_off_the_bus_keeps_its_name_and_tells_nothing(node: VirtualNode):
    before = look_by_nvml(node)
    inject(node.path, 1, Harm(xid=79))
    after = VirtualSource(node.path)().gpus[1]
    assert (after.uuid, after.model) == (before[1]["uuid"], "T4")
    assert (after.utilisation, after.memory_used_mib, after.processes) == (None, None, ())


def test_the_drivers_samples_are_between_two_looks(node: VirtualNode, stack: ExitStack):
    work(stack, node, busy_ms=100, rest_ms=100)
    (first, _) = look_by_nvml(node)
    times = [time_s for time_s, _ in first["recent"]]
    assert times == sorted(times)
    assert 0.5 <= times[-1] - times[0] <= 2.0
    assert {0.0, 1.0} <= {round(busy) for _, busy in first["recent"]}
