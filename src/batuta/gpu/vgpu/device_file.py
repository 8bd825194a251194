"""Making and opening the file that is a machine's virtual GPUs."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.vgpu.layout import DEVICES, LAYOUT, LINKS, MAGIC, Device, DeviceFile
from batuta.gpu.vgpu.lock import locked, make_lock
from batuta.gpu.vgpu.models import Model
from batuta.spec.problem import InputError, Problem

DRIVER_VERSION = "580.0.0"
_SIZE_BYTES = ctypes.sizeof(DeviceFile)
_NAMES = uuid.UUID("6f0c2f4e-43a5-4d6e-9a53-2c1be1f0a9d7")


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs to make: all of one model, in equal parts on the NUMA nodes."""

    model: Model
    gpus: int = 1
    memory_bytes: int = 0
    """Of each; 0: as the model has it."""
    numa_nodes: int = 1
    kernel_ns: int = 20_000
    """How long a launch takes for each wave of threads that the device can hold at once."""
    context_bytes: int = 0
    """What each context takes of the memory."""
    label: str = ""
    """The same label, the same UUIDs; empty: new ones each time."""

    def problems(self) -> list[Problem]:
        """All that is wrong with it."""
        checks = (
            (1 <= self.gpus <= DEVICES, f"--gpus: from 1 to {DEVICES}, not {self.gpus}"),
            (1 <= self.numa_nodes <= 64, f"--numa: from 1 to 64 nodes, not {self.numa_nodes}"),
            (0 <= self.memory_bytes < 1 << 50, "--memory: more than a GPU can have"),
            (0 < self.kernel_ns <= 3_600_000_000_000, "--kernel-us: more than 0, and at most an hour"),
            (
                0 <= self.context_bytes < (self.memory_bytes or self.model.memory_bytes),
                "--context-memory: less than the memory of a GPU",
            ),
        )
        return [Problem(message) for holds, message in checks if not holds]


def create(path: Path, machine: Machine, *, overwrite: bool = False) -> None:
    """Writes the file whole or not at all; one that exists is kept unless told otherwise."""
    if problems := machine.problems():
        raise InputError(problems)
    if path.exists() and not overwrite:
        raise InputError.of(f"{path} exists", fix="add --force to make it anew")
    file = DeviceFile(
        magic=MAGIC,
        layout=LAYOUT,
        devices_count=machine.gpus,
        size_bytes=_SIZE_BYTES,
        created_s=int(time.time()),
        driver_version=DRIVER_VERSION.encode(),
    )
    make_lock(file)
    label = machine.label or uuid.uuid4().hex
    for index in range(machine.gpus):
        _describe(file.devices[index], machine, index, uuid.uuid5(_NAMES, f"{label}/{index}"))
    # A new file, not the old one written over: who has that mapped keeps it whole.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(bytes(file).rstrip(b"\0"))
        os.truncate(unfinished, _SIZE_BYTES)  # the rest are zeros, which take no room
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise InputError.of(f"cannot write {path}: {error.strerror}") from error


def _describe(device: Device, machine: Machine, index: int, unique: uuid.UUID) -> None:
    model = machine.model
    device.name = model.name.encode()
    device.uuid = f"GPU-{unique}".encode()
    device.serial = f"{unique.int % 10**13:013}".encode()
    device.pci_bus = index + 1
    device.pci_bus_id = f"00000000:{device.pci_bus:02X}:00.0".encode()
    device.pci_id = 0x10DE
    device.compute_major, device.compute_minor = model.compute
    device.multiprocessors = model.multiprocessors
    device.threads_per_multiprocessor = model.threads_per_multiprocessor
    device.numa_node = index * machine.numa_nodes // machine.gpus
    device.memory_bus_bits = model.memory_bus_bits
    device.pcie_generation, device.pcie_width = model.pcie_generation, 16
    device.memory_bytes = machine.memory_bytes or model.memory_bytes
    device.context_bytes = machine.context_bytes
    device.kernel_ns = machine.kernel_ns
    device.idle_mw, device.limit_mw = model.idle_w * 1000, model.limit_w * 1000
    device.idle_sm_mhz, device.max_sm_mhz = 300, model.max_sm_mhz
    device.memory_mhz = model.memory_mhz
    device.idle_celsius, device.busy_celsius = 32, 72
    device.slowdown_celsius, device.shutdown_celsius = 90, 96
    device.ecc, device.row_remap = 1, model.row_remap
    device.links = model.links if machine.gpus > 1 else 0
    device.link_mbps = model.link_mbps
    others = [other for other in range(machine.gpus) if other != index]
    for link in range(LINKS):
        device.link_peer[link] = -1 if model.switched or not others else others[link % len(others)]


@contextmanager
def opened(path: Path) -> Iterator[DeviceFile]:
    """The file, mapped, with its lock held."""
    try:
        with path.open("r+b") as stream:
            mapped = mmap.mmap(stream.fileno(), _checked_size(path, stream.read(24)))
    except OSError as error:
        raise InputError.of(
            f"cannot open {path}: {error.strerror}", fix="make one: batuta vgpu create"
        ) from error
    # Closed when nobody has a part of it any more; Python refuses to do so before.
    file = DeviceFile.from_buffer(mapped)
    with locked(file):
        yield file


def _checked_size(path: Path, head: bytes) -> int:
    if int.from_bytes(head[:8], "little") != MAGIC or len(head) < 24:
        raise InputError.of(f"{path} is not a virtual GPU", fix="make one: batuta vgpu create")
    layout = int.from_bytes(head[8:12], "little")
    if layout != LAYOUT:
        raise InputError.of(
            f"{path} has layout {layout}, this version reads {LAYOUT}",
            fix="make it again: batuta vgpu create --force",
        )
    size = path.stat().st_size
    if size != _SIZE_BYTES or int.from_bytes(head[16:24], "little") != _SIZE_BYTES:
        raise InputError.of(f"{path} is damaged: {size} bytes where {_SIZE_BYTES} belong")
    return _SIZE_BYTES
