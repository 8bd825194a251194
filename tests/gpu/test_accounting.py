"""Memory is accounted for to the byte, by both libraries alike, whoever is killed wherever."""

import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batuta.gpu.vgpu.device_file import open_device_file
from tests.support.vgpu import VirtualNode, compile_program

MIB = 1 << 20
HOLDER = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]))), flush=True)
sys.stdin.read()
"""
NVML = """
import pynvml, sys
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    used = [(one.pid, one.usedGpuMemory) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    print(pynvml.nvmlDeviceGetMemoryInfo(handle).used, sorted(used))
"""
CUDA_FREE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
print(total.value - free.value)
"""
OUT_OF_MEMORY = "2"


def hold(node: VirtualNode, size_bytes: int) -> "subprocess.Popen[str]":
    """A process that has so much of GPU 0 until its input ends."""
    return node.start(["python3", "-c", HOLDER, str(size_bytes)])


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.communicate(timeout=30)


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=30)


def test_both_libraries_and_the_command_line_tell_the_same(node: VirtualNode):
    # given two processes with memory of one GPU
    first, second = hold(node, 1000 * MIB), hold(node, 300 * MIB + 1)
    assert (said(first), said(second)) == ("0", "0")
    used = {first.pid: 1000 * MIB, second.pid: 300 * MIB + 512}
    # when all three are asked
    nvml = node.run_python(NVML).splitlines()
    cuda = int(node.run_python(CUDA_FREE))
    gpu, other = node.read()
    # then they say the same
    assert nvml == [f"{sum(used.values())} {sorted(used.items())}", "0 []"]
    assert cuda == gpu.used_bytes == sum(used.values())
    assert {one.pid: one.used_bytes for one in gpu.processes} == used
    assert other.used_bytes == 0
    end(first)
    end(second)
    assert node.run_python(NVML).splitlines() == ["0 []", "0 []"]


@pytest.mark.parametrize("leave", [end, kill], ids=["ends", "is killed"])
def test_memory_is_free_again_when_its_owner(node: VirtualNode, leave):
    whole = node.read()[0].memory_bytes
    owner = hold(node, whole)
    assert said(owner) == "0"
    refused = hold(node, 1)
    assert said(refused) == OUT_OF_MEMORY
    end(refused)
    leave(owner)
    heir = hold(node, whole)
    assert said(heir) == "0"
    end(heir)


def test_memory_of_one_that_was_killed_is_free_for_those_who_run_already(node: VirtualNode):
    # given a process that has started, and another one that takes all memory
    ready = HOLDER.replace("print(", "print('ready', flush=True); input(); print(")
    whole = node.read()[0].memory_bytes
    heir = node.start(["python3", "-c", ready, str(whole)])
    assert said(heir) == "ready"
    owner = hold(node, whole)
    assert said(owner) == "0"
    # when that one is killed, then the first one's very next call has it
    kill(owner)
    assert heir.stdin is not None
    heir.stdin.write("\n")
    heir.stdin.flush()
    assert said(heir) == "0"
    end(heir)


@pytest.mark.parametrize("first", ["NVML", "Python"])
def test_one_that_is_killed_with_the_lock_leaves_nothing_wrong(node: VirtualNode, first: str):
    # given an owner of memory, and a process that is killed in the middle of a change
    owner = hold(node, 100 * MIB)
    assert said(owner) == "0"
    killed = node.run(
        [
            *(sys.executable, "-c"),
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from batuta.gpu.vgpu.device_file import open_device_file\n"
            "with open_device_file(Path(sys.argv[1])) as file:\n"
            "    file.devices[0].used_bytes += 12345\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n",
            str(node.path),
        ]
    )
    assert killed.returncode == -signal.SIGKILL
    # when somebody looks, in whichever language, then the sum is that of the living
    if first == "Python":
        assert node.read()[0].used_bytes == 100 * MIB
    assert node.run_python(NVML).splitlines()[0] == f"{100 * MIB} [({owner.pid}, {100 * MIB})]"
    end(owner)


def test_one_that_is_dead_but_not_buried_has_nothing(node: VirtualNode):
    # given a process that was killed, and whose parent has not looked yet
    owner = hold(node, 100 * MIB)
    assert said(owner) == "0"
    owner.kill()
    for _ in range(1000):
        if Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    # when NVML is asked, then it is not there any more
    assert node.run_python(NVML).splitlines()[0] == "0 []"
    end(owner)


def test_another_process_with_the_same_pid_is_another(node: VirtualNode):
    # given a slot whose pid runs, but was started at another time
    owner = hold(node, 100 * MIB)
    assert said(owner) == "0"
    with open_device_file(node.path) as file:
        slot = next(one for one in file.processes if one.taken)
        slot.start_ticks -= 1
    # when somebody looks, then its memory is nobody's
    assert node.read()[0].used_bytes == 0
    assert node.run_python(NVML).splitlines()[0] == "0 []"
    owner.kill()
    owner.communicate(timeout=30)


def test_the_child_of_a_process_with_gpus_has_to_start_anew(node: VirtualNode):
    program = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0); cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))
child = os.fork()
if child == 0:
    os._exit(0 if (cuda.cuInit(0), cuda.cuMemFree_v2(address)) == (3, 3) else 1)
status = os.waitpid(child, 0)[1]
print(status, cuda.cuMemFree_v2(address))
"""
    assert node.run_python(program) == "0 0\n"


def test_only_visible_devices_are_seen(node: VirtualNode):
    count = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
print(cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
    uuid = node.read()[1].uuid
    seen = {
        visible: node.run_python(count, CUDA_VISIBLE_DEVICES=visible).strip()
        for visible in ("0,1", "1", uuid, uuid[:12], "1,7,0", "")
    }
    none = "100 3 0"
    assert seen == {
        "0,1": "0 0 2",
        "1": "0 0 1",
        uuid: "0 0 1",
        uuid[:12]: "0 0 1",
        "1,7,0": "0 0 1",
        "": none,
    }


def test_when_all_slots_are_taken_the_next_process_is_refused(node: VirtualNode):
    # given as many processes as the file has room for (here one, many times)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    with open_device_file(node.path) as file:
        for slot in file.processes:
            slot.taken, slot.pid, slot.start_ticks = 1, os.getpid(), int(fields[19])
    start = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    system_not_ready = "802\n"
    assert node.run_python(start) == system_not_ready
    # when one of them is gone, then there is room
    with open_device_file(node.path) as file:
        file.processes[100].start_ticks += 1
    assert node.run_python(start) == "0\n"


def repairs(node: VirtualNode) -> int:
    """How often somebody had the lock when it was killed."""
    with open_device_file(node.path) as file:
        return int(file.repairs)


class Line(ctypes.Structure):
    _fields_ = (
        ("operations", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64 * 4),
        ("holds_still", ctypes.c_uint64),
    )


class Board(ctypes.Structure):
    """What the fuzzers write down; the same as in programs/fuzz.c."""

    _fields_ = (("hold", ctypes.c_uint64), ("lines", Line * 64))


def test_random_calls_and_kill_9_at_random_leave_the_accounts_exact(tmp_path: Path):
    # given four small GPUs, and twelve processes that allocate, free and launch on all of them
    node = VirtualNode.make(tmp_path, gpus=4, memory_bytes=256 * MIB)
    program = compile_program(tmp_path, "fuzz")
    path = tmp_path / "board"
    path.write_bytes(bytes(ctypes.sizeof(Board)))
    chance = random.Random(8)
    with path.open("r+b") as stream:
        board = Board.from_buffer(mmap.mmap(stream.fileno(), ctypes.sizeof(Board)))

    def start(line: int) -> "subprocess.Popen[str]":
        board.lines[line].operations = 0
        return node.start([program, path, str(line), str(chance.randrange(1 << 30))])

    running = {line: start(line) for line in range(12)}
    operations = 0
    try:
        # when they are killed, each after some operations: forty times, and until some had the lock just then
        kills = 0
        while kills < 40 or (repairs(node) < 3 and kills < 400):
            kills += 1
            line = chance.choice(list(running))
            wanted = chance.randrange(50, 200)
            while board.lines[line].operations < wanted:
                assert running[line].poll() is None
                time.sleep(0)
            kill(running[line])
            operations += board.lines[line].operations
            running[line] = start(line)
        # and the others, when each has done something, hold still
        while min(board.lines[line].operations for line in running) < 50:
            assert all(one.poll() is None for one in running.values())
            time.sleep(0.001)
        board.hold = 1
        while not all(board.lines[line].holds_still for line in running):
            assert all(one.poll() is None for one in running.values())
            time.sleep(0.001)
        # then what each of them has is what is written in the file, and the sums are theirs
        tallies = {running[line].pid: tuple(board.lines[line].bytes) for line in running}
        gpus = node.read()
        for index, gpu in enumerate(gpus):
            assert {one.pid: one.used_bytes for one in gpu.processes} == {
                pid: tally[index] for pid, tally in tallies.items()
            }
        told = [line.split(" ", 1)[0] for line in node.run_python(NVML).splitlines()]
        assert told == [str(sum(tally[index] for tally in tallies.values())) for index in range(4)]
        with open_device_file(node.path) as file:
            assert [file.devices[index].used_bytes for index in range(4)] == [gpu.used_bytes for gpu in gpus]
    finally:
        for process in running.values():
            kill(process)
    assert operations + sum(board.lines[line].operations for line in running) >= 2000
    assert repairs(node) >= 3
    # and when all are dead, all is free
    assert node.run_python(NVML).splitlines() == ["0 []"] * 4
