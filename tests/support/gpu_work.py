"""Programs that keep virtual GPUs busy, and the agent that looks at them, as processes."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests.support.vgpu import VirtualNode

WITHIN_S = 60.0
_WORK = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
gpu, mib, busy_ms, rest_ms = map(int, sys.argv[1:])
name = b"step_vgpu_%dms" % max(busy_ms, 1)
image = b".version 8.0\\n.target sm_75\\n.visible .entry %s() { ret; }\\0" % name
device, context, module, kernel = ctypes.c_int(), *(ctypes.c_void_p() for _ in range(3))
memory = ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), gpu) == 0
assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)) == 0
assert cuda.cuModuleLoadData(ctypes.byref(module), image) == 0
assert cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name) == 0
print("ready", flush=True)
while True:
    if busy_ms:
        assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None) == 0
        assert cuda.cuCtxSynchronize() == 0
    time.sleep(rest_ms / 1000)
"""


def work(
    stack: ExitStack,
    node: VirtualNode,
    gpu: int = 0,
    *,
    mib: int = 1024,
    busy_ms: int = 50,
    rest_ms: int = 0,
    job: str = "",
    progress: Path | None = None,
) -> "subprocess.Popen[str]":
    """A process that works on a GPU and rests in turns, until the stack is left. It has begun already."""
    env = {"BATUTA_JOB_ID": job, "BATUTA_REPLICA": "0"} if job else {}
    if progress is not None:
        env["BATUTA_PROGRESS"] = str(progress)
    words = [str(word) for word in (gpu, mib, busy_ms, rest_ms)]
    started = node.start([sys.executable, "-c", _WORK, *words], **env)
    stack.callback(end, started)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def end(process: "subprocess.Popen[str]") -> None:
    """Ends a process that this test started; one that has ended is fine."""
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=WITHIN_S)


def start_agent(
    stack: ExitStack, node: VirtualNode, *words: str | Path, log: IO[str] | None = None
) -> "subprocess.Popen[str]":
    """`batuta agent` on these GPUs, until the stack is left."""
    command = [sys.executable, "-m", "batuta", "agent", *map(str, words)]
    started = subprocess.Popen(command, env=node.env, stderr=log, text=True)
    stack.callback(end, started)
    return started
