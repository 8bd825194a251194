"""GPUs prove that they work, and do not when they do not: on virtual ones, by the driver's own libraries."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from batuta.core.health_rules import Source
from batuta.core.health_signals import Figure
from batuta.gpu.health.burn_in import expected_results
from batuta.gpu.health.kernel_log import parse_line
from batuta.gpu.health.nvml_source import VirtualHealthSource
from batuta.gpu.health.repair import BurnInRun
from batuta.gpu.vgpu.inject import FaultSpec, inject, reset
from tests.support.vgpu import VirtualNode

PROGRAM = [sys.executable, "-m", "batuta.gpu.health.burn_in", "--seconds", "0.05"]
FIGURES = """
import json, sys
from batuta.gpu.health.nvml_source import NvmlHealthSource
found = NvmlHealthSource({"n0": sys.argv[1:]})
print(json.dumps([found.addresses(), [dict(values) for values in found.read().values()]]))
"""
EVENTS = """
import json, sys, time
from batuta.gpu.health.nvml_source import NvmlEventLog
events = NvmlEventLog(sys.argv[1:])
print("ready", flush=True)
sys.stdin.readline()
give_up = time.monotonic() + 20
while len(events.read(None).lines) < 2 and time.monotonic() < give_up:
    time.sleep(0.05)
whole = events.read(None)
print(json.dumps([whole.lines, events.read(whole.cursor).lines, events.read({"run": "", "seen": 9}).lines]))
events.close()
"""


@pytest.fixture
def node(tmp_path: Path) -> VirtualNode:
    return VirtualNode.make(tmp_path, gpus=2, model="A100", memory_bytes=1 << 30)


def outcome(node: VirtualNode, *gpus: int) -> dict[str, Any]:
    done = node.run([*PROGRAM, *(word for gpu in gpus for word in ("--gpu", str(gpu)))])
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["passed"] else 1), done.stderr
    return told


def test_gpus_that_work_pass_and_the_outcome_says_what_was_not_tried(node: VirtualNode):
    told = outcome(node, 0, 1)
    assert told["passed"]
    assert told["virtual"]
    checks = {check["name"]: check["detail"] for check in told["checks"]}
    assert checks["GPU 1 memory"] == "921 MiB held, 16 MiB written and read back"
    assert "a virtual GPU computes nothing" in checks["GPU 0 compute"]
    assert "stand-in" in checks["GPU 0 to GPU 1"]
    # and nothing is left on them
    assert [gpu.used_bytes for gpu in node.read()] == [0, 0]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (FaultSpec(xid=79), "GPU 1 does not answer: GPU is lost"),
        (FaultSpec(xid=48), "uncorrectable ECC error encountered"),
        (FaultSpec(remap_failed=True), "a row of its memory could not be remapped"),
        (FaultSpec(remapped_rows=1), "waits for a reset"),
        (FaultSpec(link_down=3), "NVLink is down: link 3"),
        (FaultSpec(temperature_c=95), "95 °C hot"),
    ],
)
def test_a_gpu_that_was_harmed_fails(node: VirtualNode, harm: FaultSpec, why: str):
    inject(node.path, 1, harm)
    told = outcome(node, 1)
    assert not told["passed"]
    assert why in told["detail"]


def test_a_reset_mends_what_a_reset_can_mend(node: VirtualNode):
    inject(node.path, 0, FaultSpec(xid=95, remapped_rows=1, uncorrected=2))
    inject(node.path, 1, FaultSpec(xid=79, remap_failed=True))
    reset(node.path, 0)
    reset(node.path, 1)
    told = outcome(node, 0, 1)
    failed = [check["name"] for check in told["checks"] if not check["passed"]]
    assert failed == ["GPU 1 driver"]
    # and a repair mends all
    inject(node.path, 1, FaultSpec(heal=True))
    assert outcome(node, 1)["passed"]


def test_it_runs_beside_others_and_is_asked_for_its_outcome(node: VirtualNode):
    run = BurnInRun(["0"], node.env, 0.05)
    give_up = time.monotonic() + 60
    while (found := run.poll()) is None:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert found[0], found[1]
    # one that cannot even begin has failed, with its last words
    broken = BurnInRun(["0"], os.environ | {"PYTHONPATH": "", "PYTHONHOME": "/nowhere"}, 0.05)
    while (found := broken.poll()) is None:
        assert time.monotonic() < give_up
        time.sleep(0.02)
    assert not found[0]
    assert "it ended with code" in found[1]


def test_a_run_that_is_closed_leaves_nothing_behind(node: VirtualNode):
    run = BurnInRun(["0", "1"], node.env, 60.0)
    run.close()
    assert not any(gpu.processes for gpu in node.read())


def test_where_each_thread_arrives_is_worked_out_in_advance():
    def walked(start: int, rounds: int) -> int:
        for _ in range(rounds):
            start = (start * 1664525 + 1013904223) & 0xFFFFFFFF
        return start

    assert list(expected_results(5, 1000)) == [walked(start, 1000) for start in range(5)]


def test_nvml_tells_the_figures_that_the_files_of_virtual_gpus_tell(node: VirtualNode):
    uuids = [gpu.uuid for gpu in node.read()]
    inject(node.path, 0, FaultSpec(uncorrected=3, corrected=2, link_down=2, temperature_c=97, remap_failed=True))
    inject(node.path, 1, FaultSpec(xid=79))
    told = node.run([sys.executable, "-c", FIGURES, *uuids])
    assert told.returncode == 0, told.stderr
    addresses, by_nvml = json.loads(told.stdout)
    assert addresses == {"n0": ["00000000:01:00.0", ""]}
    by_file = VirtualHealthSource(["n0"], lambda _: node.path).read()
    assert by_nvml[0].pop("nvlink-errors") == 0  # of which the file has no count
    assert [by_file["n0", gpu] for gpu in (0, 1)] == by_nvml
    assert by_nvml[1] == {Figure.LOST: 1}
    assert by_nvml[0] == {
        "lost": 0,
        "remap-pending": 0,
        "remap-failed": 1,
        "ecc-corrected": 2,
        "ecc-uncorrected": 3,
        "temperature": 97,
        "slowed-down": 1,
        "nvlinks-down": 1,
    }


def test_nvml_tells_of_xids_for_who_may_not_read_the_kernel_log(node: VirtualNode):
    """Given a server that listens, each error is a line that can be read again, from where one left off."""
    uuids = [gpu.uuid for gpu in node.read()]
    with node.start([sys.executable, "-c", EVENTS, *uuids]) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "ready\n"
        inject(node.path, 1, FaultSpec(xid=31))
        inject(node.path, 0, FaultSpec(xid=79))
        told, _ = listening.communicate("\n", timeout=60)
    whole, rest, again = json.loads(told)
    errors = [parse_line(line) for line in whole]
    # Errors of different GPUs come in any order.
    assert {(one.code, one.pci) for one in errors if one} == {(31, "0000:02:00"), (79, "0000:01:00")}
    assert (rest, again) == ([], whole)


def test_what_a_model_does_not_have_is_no_figure(tmp_path: Path):
    node = VirtualNode.make(tmp_path, gpus=1, model="T4")
    told = node.run([sys.executable, "-c", FIGURES, node.read()[0].uuid])
    (figures,) = json.loads(told.stdout)[1]
    assert not figures.keys() & {"remap-failed", "nvlinks-down", "nvlink-errors"}


def test_an_injected_xid_is_in_the_log_with_the_process_that_is_blamed(node: VirtualNode, tmp_path: Path):
    log = tmp_path / "folder" / "kern.log"
    inject(node.path, 1, FaultSpec(xid=79), log)
    holds = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_void_p(); c.cuInit(0);"
    holds += "c.cuDevicePrimaryCtxRetain(ctypes.byref(p), 0); print(1, flush=True); input()"
    with node.start_python(holds) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "1\n"
        inject(node.path, 0, FaultSpec(xid=31), log)
        program.communicate("\n", timeout=60)
    first, second = log.read_text().splitlines()
    lost, fault = parse_line(first), parse_line(second)
    assert lost is not None
    assert fault is not None
    assert (lost.source, lost.code, lost.pci, lost.pid) == (Source.XID, 79, "0000:02:00", None)
    assert (fault.code, fault.pci, fault.pid) == (31, "0000:01:00", program.pid)
    assert " node kernel: NVRM: Xid" in first
