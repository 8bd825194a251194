"""Containers on virtual GPUs: processes that the library holds to limits."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.native_libraries import share_library, share_probe
from batuta.gpu.share.cards import CardFolder
from batuta.gpu.share.limits import DeviceLimit, ShareLimits, share_environment, write_limits
from batuta.gpu.share.region import ContainerShare, DeviceShare, read_region
from tests.support.vgpu import VirtualNode

MIB = 1 << 20
OUT_OF_MEMORY = 2

DRIVER = """
import ctypes, os, signal, sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20
def ok(result):
    assert result == 0, result
def start(device=0):
    context = c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    return context
def allocate(size):
    address = c_uint64()
    return cuda.cuMemAlloc_v2(byref(address), c_size_t(size)), address
def info():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value // MIB, total.value // MIB
"""
HOLDER = DRIVER + "start(); print(allocate(int(sys.argv[1]) * MIB)[0], flush=True); sys.stdin.read()"


@dataclass
class Container:
    """What a container's processes are started with."""

    node: VirtualNode
    name: str
    limits: ShareLimits
    limits_path: Path
    library: Path

    @property
    def env(self) -> dict[str, str]:
        return share_environment(self.limits_path, self.library)

    def allow(self, *devices: DeviceLimit) -> None:
        """Writes other limits."""
        self.limits = ShareLimits(self.name, self.limits.region, devices, self.limits.cards)
        write_limits(self.limits_path, self.limits)
        if self.limits.cards is not None:
            CardFolder(self.limits.cards).grant(self.limits)

    def run(self, command: Sequence[str | Path], **env: str) -> "subprocess.CompletedProcess[str]":
        return self.node.run(command, **(self.env | env))

    def run_python(self, code: str, *words: str) -> str:
        """What a program prints that begins with DRIVER; it has to succeed."""
        done = self.run([self.node.python, "-c", DRIVER + code, *words])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, command: Sequence[str | Path], **env: str) -> "subprocess.Popen[str]":
        return self.node.start(command, **(self.env | env))

    def hold(self, size_mib: int) -> "subprocess.Popen[str]":
        """A process that asks for so much of GPU 0, says what came of it, and stays until its input ends."""
        return self.start([self.node.python, "-c", HOLDER, str(size_mib)])

    def load(self, lengths_us: str = "250", how: str = "queued") -> "subprocess.Popen[str]":
        """A process that launches kernels until it is killed."""
        process = self.start([share_probe(), "load", "600", lengths_us, how])
        assert said(process) == "running"
        eventually(self._has_launched)
        return process

    def _has_launched(self) -> bool:
        region = self.limits.region
        return region.exists() and any(device.launches for device in read_region(region).devices)

    def read(self) -> ContainerShare:
        return read_region(self.limits.region)

    def device(self, index: int = 0) -> DeviceShare:
        uuid = self.node.read()[index].uuid
        return next(one for one in self.read().devices if one.uuid == uuid)


def container(
    node: VirtualNode,
    *devices: DeviceLimit,
    name: str = "one",
    cards: bool = False,
    library: Path | None = None,
) -> Container:
    """A container with these limits, in the folder of the node."""
    home = node.path.parent / name
    folder = node.path.parent / "cards"
    limits = ShareLimits(name, home / "region", devices, folder if cards else None)
    made = Container(node, name, limits, home / "limits", library or share_library())
    made.allow(*devices)
    return made


def limit(node: VirtualNode, memory_mib: int | None = None, **numbers: int) -> DeviceLimit:
    """A limit on GPU 0."""
    return DeviceLimit(node.read()[0].uuid, memory_mib, **numbers)


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> None:
    process.communicate(timeout=30)


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=30)


def eventually(holds: Callable[[], bool]) -> None:
    """Waits until it holds, but not for ever."""
    given_up_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < given_up_s
        time.sleep(0.01)
