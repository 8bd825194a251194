"""CPU time of `batuta agent` with 8 GPUs and a sample every second, against one core.

The agent runs as it does on a node, on virtual GPUs: eight of them, each with one busy process of a job. What
the real driver's own calls cost is not in this figure. Bar: less than 1 % of one core.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from batuta.gpu.native_libraries import vgpu_environment
from batuta.gpu.owners import read_work
from batuta.gpu.vgpu.device_file import Machine, create_device_file, find_model
from benchmarks.measure import show

GPUS = 8
BAR = 0.01
SETTLE_S = 8.0
"""Imports and the first report are not part of it."""
MEASURE_S = 60.0
WORK = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
handle = [ctypes.c_void_p() for _ in range(3)]
device = ctypes.c_int()
cuda.cuInit(0)
cuda.cuDeviceGet(ctypes.byref(device), int(sys.argv[1]))
cuda.cuCtxCreate_v2(ctypes.byref(handle[0]), 0, device)
image = b".version 8.0\\n.target sm_75\\n.visible .entry step_vgpu_300ms() { ret; }\\0"
assert cuda.cuModuleLoadData(ctypes.byref(handle[1]), image) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(handle[2]), handle[1], b"step_vgpu_300ms") == 0
print("ready", flush=True)
while True:
    cuda.cuLaunchKernel(handle[2], 1, 1, 1, 32, 1, 1, 0, None, None, None)
    time.sleep(0.5)
"""


def measure(folder: Path) -> dict[str, float]:
    """CPU seconds per second of the agent, by interval between its looks."""
    path = folder / "node.vgpu"
    create_device_file(path, Machine(find_model("A100"), gpus=GPUS))
    env = vgpu_environment(path) | {"OPENBLAS_NUM_THREADS": "1"}
    started: list[subprocess.Popen[str]] = []
    try:
        for gpu in range(GPUS):
            own = env | {"BATUTA_JOB_ID": f"job-{gpu}", "BATUTA_REPLICA": "0"}
            command = [sys.executable, "-c", WORK, str(gpu)]
            started.append(subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True))
        for worker in started:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        agents = {interval: _agent(interval, env) for interval in ("1", "60")}
        started += agents.values()
        time.sleep(SETTLE_S)
        before = {interval: _cpu_s(agent.pid) for interval, agent in agents.items()}
        begun_s = time.monotonic()
        time.sleep(MEASURE_S)
        spent_s = time.monotonic() - begun_s
        return {interval: (_cpu_s(agent.pid) - before[interval]) / spent_s for interval, agent in agents.items()}
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=10)


def _agent(interval: str, env: dict[str, str]) -> subprocess.Popen[str]:
    report_every = str(max(30, int(interval)))
    words = ["--interval", interval, "--report-every", report_every]
    command = [sys.executable, "-m", "batuta", "agent", *words]
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, text=True)


def _cpu_s(pid: int) -> float:
    work = read_work(pid)
    assert work is not None, "the agent has ended"
    return work.cpu_s


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    rows = [
        (f"a look every {interval} s", f"{share:.2%}{' !' if interval == '1' and share >= BAR else ''}")
        for interval, share in found.items()
    ]
    title = f"Share of one core, {GPUS} GPUs and as many busy processes, over {MEASURE_S:.0f} s"
    show(title, ("`batuta agent`", "CPU"), rows)


if __name__ == "__main__":
    main()
