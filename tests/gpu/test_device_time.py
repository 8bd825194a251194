"""Kernels take device time: one after the other, for all processes together; NVML sees the share."""

import subprocess
import sys

import pytest

from tests.support.vgpu import VirtualNode

LAUNCHER = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
PTX = b".version 8.0\\n.target sm_75\\n.visible .entry %s() { ret; }" % sys.argv[1].encode()
context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), PTX) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, sys.argv[1].encode()) == 0
def launch(blocks=1, threads=32):
    assert cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, None, None, None) == 0
"""
SPIN = (
    LAUNCHER
    + """
begin = time.monotonic()
for _ in range(int(sys.argv[2])):
    launch()
launched = time.monotonic()
assert cuda.cuCtxSynchronize() == 0
print(launched - begin, time.monotonic() - begin)
"""
)


def spin(node: VirtualNode, kernel: str, launches: int) -> "subprocess.Popen[str]":
    return node.start(["python3", "-c", SPIN, kernel, str(launches)])


def seconds(process: "subprocess.Popen[str]") -> tuple[float, float]:
    launched_s, done_s = process.communicate(timeout=60)[0].split()
    return float(launched_s), float(done_s)


def busy_ns(node: VirtualNode) -> int:
    return node.read()[0].busy_ns


def test_a_launch_returns_at_once_and_synchronizing_waits(node: VirtualNode):
    launched_s, done_s = seconds(spin(node, "spin_vgpu_500ms", 2))
    assert done_s >= 1.0 > launched_s


def test_device_time_is_counted_exactly(node: VirtualNode):
    seconds(spin(node, "spin_vgpu_3ms", 70))
    gpu, other = node.read()
    assert busy_ns(node) == 70 * 3_000_000
    assert (gpu.launches, other.launches) == (70, 0)


def test_processes_on_one_gpu_wait_for_each_other(node: VirtualNode):
    # given two processes with 0.3 s of kernels each
    both = [spin(node, "spin_vgpu_10ms", 30) for _ in range(2)]
    slowest_s = max(seconds(one)[1] for one in both)
    # then the device was busy for both, and no kernel ran beside another
    assert busy_ns(node) == 600_000_000
    assert slowest_s >= 0.3


def test_a_launch_waits_while_a_thousand_others_do(node: VirtualNode):
    launched_s, done_s = seconds(spin(node, "spin_vgpu_200us", 1524))
    # the last 1,024 are queued, so some 500 were done when the last one was launched
    assert launched_s >= 0.09
    assert done_s >= 0.3


def test_what_a_killed_process_had_queued_never_runs(node: VirtualNode):
    # given a process with an hour of kernels ahead of it
    waiting = LAUNCHER + "launch(); launch(); print('queued', flush=True); sys.stdin.read()"
    hog = node.start(["python3", "-c", waiting, "spin_vgpu_1800000ms"])
    assert hog.stdout is not None
    assert hog.stdout.readline() == "queued\n"
    hog.kill()
    hog.communicate(timeout=30)
    # when another one launches, then it has the device to itself
    _, done_s = seconds(spin(node, "spin_vgpu_1ms", 5))
    assert done_s < 30


@pytest.mark.parametrize(("blocks", "waves"), [(1, 1), (40, 1), (41, 2), (400, 10)])
def test_a_kernel_without_a_time_takes_one_wave_after_the_other(node: VirtualNode, blocks: int, waves: int):
    # given a T4: 40 multiprocessors with 1,024 threads each, and 20 µs for a wave
    program = LAUNCHER + f"launch(blocks={blocks}, threads=1024); assert cuda.cuCtxSynchronize() == 0"
    done = node.run(["python3", "-c", program, "plain"])
    assert done.returncode == 0, done.stderr
    assert busy_ns(node) == waves * 20_000


def test_a_busy_device_is_seen_by_nvml_and_so_is_who_keeps_it_busy(node: VirtualNode):
    # given a process that has kept GPU 0 busy for more than a second, and will for many more
    program = LAUNCHER + (
        "import pynvml\n"
        "pynvml.nvmlInit()\n"
        "busy, idle = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))\n"
        "for _ in range(10): launch()\n"
        "time.sleep(1.1)\n"
        "look = lambda gpu: (pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,\n"
        "    pynvml.nvmlDeviceGetPowerUsage(gpu), pynvml.nvmlDeviceGetTemperature(gpu, 0),\n"
        "    pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM))\n"
        "print(pynvml.nvmlDeviceGetProcessUtilization(busy, 0)[0].smUtil, *look(busy), *look(idle))\n"
        "print('looked', flush=True); sys.stdin.read()"
    )
    process = node.start([sys.executable, "-c", program, "spin_vgpu_10000ms"])
    assert process.stdout is not None
    share, percent, power_mw, heat_c, clock_mhz, *idle = map(int, process.stdout.readline().split())
    # then NVML says so, and so does the file
    assert (share, percent, power_mw, heat_c, clock_mhz) == (100, 100, 70_000, 72, 1590)
    assert idle == [0, 10_000, 32, 300]
    gpu, other = node.read()
    assert (gpu.utilization, other.utilization) == (1.0, 0.0)
    (user,) = gpu.processes
    assert user.pid == process.pid
    assert gpu.busy_ns == user.busy_ns >= 1_100_000_000
    process.communicate(timeout=30)


def test_nvml_has_the_last_second_as_samples(node: VirtualNode):
    program = LAUNCHER + (
        "import pynvml\n"
        "pynvml.nvmlInit()\n"
        "gpu = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "launch(); time.sleep(1.1)\n"
        "kind, samples = pynvml.nvmlDeviceGetSamples(gpu, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)\n"
        "times = [one.timeStamp for one in samples]\n"
        "assert times == sorted(times) and len(times) == 40\n"
        "assert {one.sampleValue.uiVal for one in samples} == {100}\n"
    )
    done = node.run([sys.executable, "-c", program, "spin_vgpu_60000ms"])
    assert done.returncode == 0, done.stderr
