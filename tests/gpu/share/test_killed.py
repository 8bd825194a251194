"""Processes that are killed anywhere leave the accounts exact."""

import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from batuta.gpu.share.limits import DeviceLimit
from batuta.gpu.share.region import Region
from tests.gpu.share.containers import (
    DRIVER,
    MIB,
    OUT_OF_MEMORY,
    Container,
    container,
    end,
    kill,
    limit,
    said,
)
from tests.support.vgpu import VirtualNode, compile_program

GPUS, LIMIT_MIB, WORKERS, KILLS, OPERATIONS = 4, 64, 6, 40, 12_000


class Line(ctypes.Structure):
    _fields_ = (
        ("operations", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64 * GPUS),
        ("holds_still", ctypes.c_uint64),
    )


class Board(ctypes.Structure):
    """What the fuzzers write down; the same as in programs/fuzz.c."""

    _fields_ = (("hold", ctypes.c_uint64), ("lines", Line * 64))


def region_of(place: Container) -> Region:
    return Region.from_buffer_copy(place.limits.region.read_bytes())


class Fuzzers:
    """Processes of one container that allocate, free and launch at random on all GPUs."""

    def __init__(self, place: Container, program: Path, folder: Path) -> None:
        self.place, self.program, self.path = place, program, folder / "board"
        self.chance = random.Random(8)
        self.path.write_bytes(bytes(ctypes.sizeof(Board)))
        with self.path.open("r+b") as stream:
            self.board = Board.from_buffer(mmap.mmap(stream.fileno(), ctypes.sizeof(Board)))
        self.running = {line: self.start(line) for line in range(WORKERS)}
        self.operations = 0

    def start(self, line: int) -> "subprocess.Popen[str]":
        self.board.lines[line].operations = 0
        return self.place.start([self.program, self.path, str(line), str(self.chance.randrange(1 << 30))])

    def kill_one(self) -> None:
        """One of them, after some operations."""
        line = self.chance.choice(list(self.running))
        self.await_operations(line, self.chance.randrange(50, 600))
        kill(self.running[line])
        self.operations += self.board.lines[line].operations
        self.running[line] = self.start(line)

    def await_operations(self, line: int, wanted: int) -> None:
        given_up_s = time.monotonic() + 60
        while self.board.lines[line].operations < wanted:
            assert self.running[line].poll() is None
            assert time.monotonic() < given_up_s
            time.sleep(0)

    def hold_still(self) -> dict[int, tuple[int, ...]]:
        """What each of them has, by pid; they change nothing any more."""
        for line in self.running:
            self.await_operations(line, 50)
        self.board.hold = 1
        given_up_s = time.monotonic() + 60
        while not all(self.board.lines[line].holds_still for line in self.running):
            assert all(one.poll() is None for one in self.running.values())
            assert time.monotonic() < given_up_s
            time.sleep(0.001)
        self.operations += sum(self.board.lines[line].operations for line in self.running)
        return {one.pid: tuple(self.board.lines[line].bytes) for line, one in self.running.items()}


def test_random_calls_and_kill_9_at_random_leave_the_accounts_exact(tmp_path: Path):
    # given four small GPUs, and six processes of one container that use them
    node = VirtualNode.make(tmp_path, gpus=GPUS, memory_bytes=256 * MIB)
    place = container(node, *(DeviceLimit(gpu.uuid, LIMIT_MIB) for gpu in node.read()))
    fuzzers = Fuzzers(place, compile_program(tmp_path, "fuzz"), tmp_path)
    try:
        # when they are killed again and again, and some had the lock just then
        kills = 0
        while kills < KILLS or fuzzers.operations < OPERATIONS or region_of(place).repairs < 3:
            fuzzers.kill_one()
            kills += 1
            assert kills < 600
        tallies = fuzzers.hold_still()
        # then what each of them has is what is written in the region, and what the GPU has given
        place.run_python("start(); info()")  # whoever asks next frees what the dead had
        for index, gpu in enumerate(node.read()):
            device = place.device(index)
            wanted = {pid: tally[index] for pid, tally in tallies.items()}
            assert {one.pid: one.used_bytes for one in device.processes if one.pid in wanted} == wanted
            assert {one.pid: one.used_bytes for one in gpu.processes} == wanted
            assert region_of(place).devices[index].used_bytes == sum(wanted.values()) <= LIMIT_MIB * MIB
            assert 0 < device.peak_bytes <= LIMIT_MIB * MIB
    finally:
        for process in fuzzers.running.values():
            kill(process)
    assert fuzzers.operations >= OPERATIONS
    # and when all are dead, all is free at the next call
    place.run_python("start(); info()")
    assert [device.used_bytes for device in region_of(place).devices] == [0] * len(region_of(place).devices)


def test_one_that_is_killed_with_the_lock_leaves_nothing_wrong(node: VirtualNode):
    # given an owner of memory, and a process that is killed in the middle of a change, with the lock
    place = container(node, limit(node, 100))
    owner = place.hold(40)
    assert said(owner) == "0"
    killed = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import ctypes, mmap, os, signal, sys\n"
            "from batuta.gpu.share.region import Region\n"
            "with open(sys.argv[1], 'r+b') as stream:\n"
            "    region = Region.from_buffer(mmap.mmap(stream.fileno(), 0))\n"
            "assert ctypes.CDLL(None).pthread_mutex_lock(ctypes.byref(region.lock)) == 0\n"
            "region.devices[0].used_bytes += 12345\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
            str(place.limits.region),
        ],
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    # when somebody asks, then the sum is that of the living
    assert place.run_python("start(); print(info())") == "(60, 100)\n"
    assert (region_of(place).repairs, region_of(place).devices[0].used_bytes) == (1, 40 * MIB)
    end(owner)


def test_another_process_with_the_same_pid_is_another(node: VirtualNode):
    # given a slot whose pid runs, but was started at another time
    place = container(node, limit(node, 100))
    owner = place.hold(100)
    assert said(owner) == "0"
    with place.limits.region.open("r+b") as stream:
        region = Region.from_buffer(mmap.mmap(stream.fileno(), 0))
    next(one for one in region.processes if one.taken).start_ticks -= 1
    # when another asks, then its memory is nobody's
    assert place.run_python("start(); print(allocate(100 * MIB)[0])") == "0\n"
    kill(owner)


def test_when_all_slots_are_taken_the_next_process_gets_no_memory(node: VirtualNode):
    # given as many processes as the region has room for (here one, many times)
    place = container(node, limit(node, 100))
    place.run_python("start(); allocate(1)")
    own = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    with place.limits.region.open("r+b") as stream:
        region = Region.from_buffer(mmap.mmap(stream.fileno(), 0))
    for slot in region.processes:
        slot.taken, slot.pid, slot.start_ticks = 1, os.getpid(), own
    ask = [str(node.python), "-c", DRIVER + "start(); print(allocate(1)[0])"]
    refused = place.run(ask)
    assert refused.stdout == f"{OUT_OF_MEMORY}\n"
    assert "256 processes of this container have GPU memory already" in refused.stderr
    # when one of them is gone, then there is room
    region.processes[100].start_ticks += 1
    assert place.run(ask).stdout == "0\n"
