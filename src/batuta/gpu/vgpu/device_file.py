"""Create and open the file that is a machine's virtual GPUs, with its layout and its lock.

The layout mirrors native/vgpu/model.h byte for byte; a test compares the two.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char, c_int32, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path

from batuta.gpu.vgpu.models import Model
from batuta.spec.problem import InputError, Problem

MAGIC = int.from_bytes(b"BATUVGPU", "little")
LAYOUT = 1
DEVICES = 16
PROCESSES = 256
RUNS = 4096
BUCKETS = 64
EVENTS = 64
LINKS = 18

BUCKET_NS = 25_000_000
WINDOW_BUCKETS = 40
"""Utilisation is that of the last second."""
_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1
_ATTRIBUTE_BYTES = 64
"""More than any C library's pthread_mutexattr_t."""
DRIVER_VERSION = "580.0.0"
_UUID_NAMESPACE = uuid.UUID("6f0c2f4e-43a5-4d6e-9a53-2c1be1f0a9d7")


class Run(ctypes.Structure):
    """Kernels of one process, one after the other without a gap."""

    _fields_ = (("start_ns", c_uint64), ("end_ns", c_uint64), ("process", c_uint32), ("launches", c_uint32))


class Bucket(ctypes.Structure):
    """What a device did in one interval."""

    _fields_ = (("number", c_uint64), ("busy_ns", c_uint64), ("received_bytes", c_uint64), ("sent_bytes", c_uint64))


class Event(ctypes.Structure):
    """What `nvmlEventSetWait` reports."""

    _fields_ = (("type", c_uint64), ("data", c_uint64))


class Device(ctypes.Structure):
    """One GPU: its properties, its injected faults, its activity."""

    _fields_ = (
        ("name", c_char * 64),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("pci_bus_id", c_char * 32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("multiprocessors", c_uint32),
        ("threads_per_multiprocessor", c_uint32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_id", c_uint32),
        ("numa_node", c_int32),
        ("memory_bus_bits", c_uint32),
        ("pcie_generation", c_uint32),
        ("pcie_width", c_uint32),
        ("memory_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("kernel_ns", c_uint64),
        ("idle_mw", c_uint32),
        ("limit_mw", c_uint32),
        ("idle_sm_mhz", c_uint32),
        ("max_sm_mhz", c_uint32),
        ("memory_mhz", c_uint32),
        ("idle_celsius", c_int32),
        ("busy_celsius", c_int32),
        ("slowdown_celsius", c_int32),
        ("shutdown_celsius", c_int32),
        ("ecc", c_uint32),
        ("row_remap", c_uint32),
        ("links", c_uint32),
        ("link_mbps", c_uint32),
        ("link_peer", c_int32 * LINKS),
        ("lost", c_uint32),
        ("uncorrectable", c_uint32),
        ("fixed_celsius", c_int32),
        ("links_down", c_uint32),
        ("ecc_volatile", c_uint64 * 2),
        ("ecc_aggregate", c_uint64 * 2),
        ("remapped_correctable", c_uint32),
        ("remapped_uncorrectable", c_uint32),
        ("remap_pending", c_uint32),
        ("remap_failed", c_uint32),
        ("used_bytes", c_uint64),
        ("busy_ns", c_uint64),
        ("launches", c_uint64),
        ("settled_ns", c_uint64),
        ("busy_until_ns", c_uint64),
        ("first_run", c_uint64),
        ("next_run", c_uint64),
        ("next_event", c_uint64),
        ("events", Event * EVENTS),
        ("buckets", Bucket * BUCKETS),
        ("runs", Run * RUNS),
    )


class Share(ctypes.Structure):
    """What a process had of a device in one interval."""

    _fields_ = (("number", c_uint64), ("busy_ns", c_uint64))


class Use(ctypes.Structure):
    """What a process has of one device."""

    _fields_ = (
        ("used_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("busy_ns", c_uint64),
        ("launches", c_uint64),
        ("contexts", c_uint32),
        ("reserved", c_uint32),
        ("shares", Share * BUCKETS),
    )


class Process(ctypes.Structure):
    """A process: a pid and the time it started, in clock ticks since boot."""

    _fields_ = (("taken", c_uint32), ("pid", c_int32), ("start_ticks", c_uint64), ("use", Use * DEVICES))


class DeviceFile(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        ("magic", c_uint64),
        ("layout", c_uint32),
        ("devices_count", c_uint32),
        ("size_bytes", c_uint64),
        ("created_s", c_uint64),
        ("damaged", c_uint32),
        ("repairs", c_uint32),
        ("reaped_ns", c_uint64),
        ("driver_version", c_char * 32),
        ("lock", c_uint64 * 8),
        ("devices", Device * DEVICES),
        ("processes", Process * PROCESSES),
    )


def make_lock(file: DeviceFile) -> None:
    """Write a lock that is free."""
    threads = ctypes.CDLL(None)
    attributes = (ctypes.c_char * _ATTRIBUTE_BYTES)()
    for result in (
        threads.pthread_mutexattr_init(attributes),
        threads.pthread_mutexattr_setpshared(attributes, _PTHREAD_PROCESS_SHARED),
        threads.pthread_mutexattr_setrobust(attributes, _PTHREAD_MUTEX_ROBUST),
        threads.pthread_mutex_init(ctypes.byref(file.lock), attributes),
    ):
        if result != 0:
            raise OSError(result, os.strerror(result))


@contextmanager
def locked(file: DeviceFile) -> Iterator[None]:
    """Hold the lock. If its last holder was killed, mark the file for repair by the C side."""
    threads = ctypes.CDLL(None)
    address = ctypes.byref(file.lock)
    result = threads.pthread_mutex_lock(address)
    if result == errno.EOWNERDEAD:
        threads.pthread_mutex_consistent(address)
        file.damaged = 1
    elif result != 0:
        raise OSError(result, os.strerror(result))
    try:
        yield
    finally:
        threads.pthread_mutex_unlock(address)


_SIZE_BYTES = ctypes.sizeof(DeviceFile)


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
        """Return all that is wrong with it."""
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


def create_device_file(path: Path, machine: Machine, *, overwrite: bool = False) -> None:
    """Write the file whole or not at all; an existing one is kept unless `overwrite`."""
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
        _describe(file.devices[index], machine, index, uuid.uuid5(_UUID_NAMESPACE, f"{label}/{index}"))
    # A new file, not the old one written over: processes that have that mapped keep it whole.
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
def open_device_file(path: Path) -> Iterator[DeviceFile]:
    """Map the file and hold its lock."""
    try:
        with path.open("r+b") as stream:
            mapped = mmap.mmap(stream.fileno(), _checked_size(path, stream.read(24)))
    except OSError as error:
        raise InputError.of(f"cannot open {path}: {error.strerror}", fix="make one: batuta vgpu create") from error
    # Closed with the last reference to a part of it; Python refuses to do so before.
    file = DeviceFile.from_buffer(mapped)
    with locked(file):
        yield file


def _checked_size(path: Path, head: bytes) -> int:
    if int.from_bytes(head[:8], "little") != MAGIC or len(head) < 24:
        raise InputError.of(f"{path} is not a virtual GPU", fix="make one: batuta vgpu create")
    layout = int.from_bytes(head[8:12], "little")
    if layout != LAYOUT:
        raise InputError.of(
            f"{path} has layout {layout}, this version reads {LAYOUT}", fix="make it again: batuta vgpu create --force"
        )
    size = path.stat().st_size
    if size != _SIZE_BYTES or int.from_bytes(head[16:24], "little") != _SIZE_BYTES:
        raise InputError.of(f"{path} is damaged: {size} bytes where {_SIZE_BYTES} belong")
    return _SIZE_BYTES
