"""Harm that is injected is seen by NVML and felt by CUDA; healing ends it."""

import subprocess
from pathlib import Path

import pytest

from batuta.gpu.vgpu.inject import FaultSpec, inject
from batuta.spec.problem import InputError
from tests.support.vgpu import VirtualNode

LOOK = """
import pynvml as n
n.nvmlInit()
def said(function, *words):
    try:
        return function(*words)
    except n.NVMLError as error:
        return error.value
gpu = n.nvmlDeviceGetHandleByIndex(0)
def errors():
    kinds = [(kind, count) for kind in (0, 1) for count in (0, 1)]
    return [said(n.nvmlDeviceGetTotalEccErrors, gpu, *one) for one in kinds]
"""
WAITER = (
    LOOK
    + """
events = n.nvmlEventSetCreate()
for index in range(n.nvmlDeviceGetCount()):
    n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(index), n.nvmlEventTypeXidCriticalError, events)
print("waiting", flush=True)
found = n.nvmlEventSetWait_v2(events, 30_000)
print(found.eventType, found.eventData, n.nvmlDeviceGetIndex(found.device))
print(said(n.nvmlEventSetWait_v2, events, 10))
"""
)
TIMEOUT, LOST, NOT_SUPPORTED = 10, 15, 3
ALLOCATE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), flush=True)
cuda.cuCtxSetCurrent(context)
while input():
    print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)), flush=True)
"""
UNKNOWN, ECC_UNCORRECTABLE = "999", "214"


def ask(process: "subprocess.Popen[str]") -> str:
    """Lets it allocate, and gives the result."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_an_xid_wakes_who_waits_for_it_once(node: VirtualNode):
    # given a program that waits for the events of both GPUs
    waiter = node.start_python(WAITER)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "waiting\n"
    # when one of them has an Xid
    inject(node.path, 1, FaultSpec(xid=31))
    # then it is told which and where, and then there is nothing more
    said, _ = waiter.communicate(timeout=60)
    assert said.splitlines() == ["8 31 1", str(TIMEOUT)]


def test_a_gpu_off_the_bus_answers_nothing_until_it_is_healed(node: VirtualNode):
    program = node.start_python(ALLOCATE)
    assert program.stdout is not None
    assert program.stdout.readline().strip() == "0"
    assert ask(program) == "0"
    inject(node.path, 0, FaultSpec(xid=79))
    assert ask(program) == UNKNOWN
    lost = "print(said(n.nvmlDeviceGetMemoryInfo, gpu))"
    handle = LOOK.replace("gpu = n.nvmlDeviceGetHandleByIndex(0)", "print(said(n.nvmlDeviceGetHandleByIndex, 0))")
    assert node.run_python(handle) == f"{LOST}\n"
    assert node.read()[0].lost
    inject(node.path, 0, FaultSpec(heal=True))
    assert ask(program) == "0"
    assert node.run_python(LOOK + lost) != f"{LOST}\n"
    program.communicate("\n", timeout=30)


def test_an_uncorrectable_error_ends_contexts(node: VirtualNode):
    program = node.start_python(ALLOCATE)
    assert program.stdout is not None
    assert program.stdout.readline().strip() == "0"
    inject(node.path, 0, FaultSpec(xid=48, uncorrected=1))
    assert ask(program) == ECC_UNCORRECTABLE
    program.communicate("\n", timeout=30)


def test_counters_and_temperatures_are_those_that_were_injected(tmp_path: Path):
    node = VirtualNode.make(tmp_path, gpus=2, model="A100")
    inject(
        node.path,
        0,
        FaultSpec(corrected=7, uncorrected=2, remapped_rows=3, remap_failed=True, temperature_c=95),
    )
    inject(node.path, 0, FaultSpec(corrected=1, link_down=4))
    said = node.run_python(
        LOOK + "print(errors(),\n"
        "    said(n.nvmlDeviceGetRemappedRows, gpu), said(n.nvmlDeviceGetTemperature, gpu, 0),\n"
        "    [said(n.nvmlDeviceGetNvLinkState, gpu, link) for link in (3, 4)],\n"
        "    said(n.nvmlDeviceGetCurrentClocksEventReasons, gpu),\n"
        "    [one.value.ullVal for one in n.nvmlDeviceGetFieldValues(gpu, [3, 4, 91, 143])])"
    )
    idle_and_too_hot = 0x1 | 0x20 | 0x40
    assert said == f"[8, 8, 2, 2] (0, 3, 1, 1) 95 [1, 0] {idle_and_too_hot} [8, 2, 12, 3]\n"
    (gpu, _) = node.read()
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected, gpu.remapped_rows, gpu.links_up) == (8, 2, 3, 11)
    # and after healing what outlives a reset is still there
    inject(node.path, 0, FaultSpec(heal=True))
    healed = node.run_python(
        LOOK + "print(errors(),\n    said(n.nvmlDeviceGetRemappedRows, gpu), said(n.nvmlDeviceGetTemperature, gpu, 0))"
    )
    assert healed == "[0, 8, 0, 2] (0, 3, 0, 0) 32\n"


def test_a_model_without_nvlink_and_row_remapping_says_so(node: VirtualNode):
    said = node.run_python(
        LOOK + "print(said(n.nvmlDeviceGetRemappedRows, gpu), said(n.nvmlDeviceGetNvLinkState, gpu, 0),\n"
        "said(n.nvmlDeviceGetMigMode, gpu))"
    )
    assert said == f"{NOT_SUPPORTED} {NOT_SUPPORTED} {NOT_SUPPORTED}\n"


def test_numa_nodes_and_links_are_a_topology(tmp_path: Path):
    node = VirtualNode.make(tmp_path, gpus=4, model="V100", numa_nodes=2)
    said = node.run_python(
        LOOK + "gpus = [n.nvmlDeviceGetHandleByIndex(index) for index in range(4)]\n"
        "print([n.nvmlDeviceGetNumaNodeId(one) for one in gpus],\n"
        "    [n.nvmlDeviceGetTopologyCommonAncestor(gpu, one) for one in gpus],\n"
        "    [n.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).bus for link in range(6)])"
    )
    assert said == "[0, 0, 1, 1] [0, 40, 50, 50] [2, 3, 4, 2, 3, 4]\n"


def test_all_that_is_wrong_with_a_harm_is_said_at_once(node: VirtualNode):
    with pytest.raises(InputError) as refused:
        inject(node.path, 5, FaultSpec(xid=0, temperature_c=999, corrected=-1))
    assert len(refused.value.problems) == 4
    with pytest.raises(InputError, match="remaps no rows"):
        inject(node.path, 0, FaultSpec(remapped_rows=1))
    with pytest.raises(InputError, match="has 0 links"):
        inject(node.path, 0, FaultSpec(link_down=1))
    assert not node.read()[0].ecc_corrected
