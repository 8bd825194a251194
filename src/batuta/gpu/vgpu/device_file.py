"""Create and open the file that is a machine's virtual GPUs, with its layout, its lock and the models of GPUs.

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
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batuta.spec.problem import InputError, Problem, did_you_mean

MAGIC = int.from_bytes(b"BATUVGPU", "little")
LAYOUT = 1
DEVICES = 16
PROCESSES = 256
RUNS = 4096
BUCKETS = 64
EVENTS = 64
LINKS = 18

BUCKET_NS = 25_000_000
WINDOW_BUCKETS = 40  # utilisation is that of the last second
_PTHREAD_PROCESS_SHARED = 1
_PTHREAD_MUTEX_ROBUST = 1
_ATTRIBUTE_BYTES = 64  # more than any C library's pthread_mutexattr_t
DRIVER_VERSION = "580.0.0"
_GIB = 1 << 30
_UUID_NAMESPACE = uuid.UUID("6f0c2f4e-43a5-4d6e-9a53-2c1be1f0a9d7")
_C_TYPES: dict[str, Any] = {"char": c_char, "i32": c_int32, "i64": c_int64, "u32": c_uint32, "u64": c_uint64}


def c_fields(declarations: str) -> list[tuple[str, Any]]:
    """Return the fields of a structure, from declarations like those in C: `u64 start_ns, end_ns; char[64] name`."""
    found: list[tuple[str, Any]] = []
    for declaration in declarations.split(";"):
        kind, names = declaration.split(maxsplit=1)
        word, _, length = kind.rstrip("]").partition("[")
        found += [
            (name.strip(), _C_TYPES[word] * int(length) if length else _C_TYPES[word]) for name in names.split(",")
        ]
    return found


class Run(ctypes.Structure):
    """Kernels of one process, one after the other without a gap."""

    _fields_ = c_fields("u64 start_ns, end_ns; u32 process, launches")


class Bucket(ctypes.Structure):
    """What a device did in one interval."""

    _fields_ = c_fields("u64 number, busy_ns, received_bytes, sent_bytes")


class Event(ctypes.Structure):
    """What `nvmlEventSetWait` reports."""

    _fields_ = c_fields("u64 type, data")


class Device(ctypes.Structure):
    """One GPU: its properties, its injected faults, its activity."""

    _fields_ = (
        *c_fields("char[64] name; char[48] uuid; char[32] serial; char[32] pci_bus_id"),
        *c_fields("u32 compute_major, compute_minor, multiprocessors, threads_per_multiprocessor"),
        *c_fields("u32 pci_domain, pci_bus, pci_device, pci_id; i32 numa_node"),
        *c_fields("u32 memory_bus_bits, pcie_generation, pcie_width; u64 memory_bytes, context_bytes, kernel_ns"),
        *c_fields("u32 idle_mw, limit_mw, idle_sm_mhz, max_sm_mhz, memory_mhz"),
        *c_fields("i32 idle_celsius, busy_celsius, slowdown_celsius, shutdown_celsius"),
        *c_fields("u32 ecc, row_remap, links, link_mbps"),
        ("link_peer", c_int32 * LINKS),
        *c_fields("u32 lost, uncorrectable; i32 fixed_celsius; u32 links_down"),
        *c_fields("u64[2] ecc_volatile, ecc_aggregate"),
        *c_fields("u32 remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed"),
        *c_fields("u64 used_bytes, busy_ns, launches, settled_ns, busy_until_ns, first_run, next_run, next_event"),
        ("events", Event * EVENTS),
        ("buckets", Bucket * BUCKETS),
        ("runs", Run * RUNS),
    )


class Share(ctypes.Structure):
    """What a process had of a device in one interval."""

    _fields_ = c_fields("u64 number, busy_ns")


class Use(ctypes.Structure):
    """What a process has of one device."""

    _fields_ = (
        *c_fields("u64 used_bytes, peak_bytes, busy_ns, launches; u32 contexts, reserved"),
        ("shares", Share * BUCKETS),
    )


class Process(ctypes.Structure):
    """A process: a pid and the time it started, in clock ticks since boot."""

    _fields_ = (*c_fields("u32 taken; i32 pid; u64 start_ticks"), ("use", Use * DEVICES))


class DeviceFile(ctypes.Structure):
    """The whole file."""

    _fields_ = (
        *c_fields("u64 magic; u32 layout, devices_count; u64 size_bytes, created_s; u32 damaged, repairs"),
        *c_fields("u64 reaped_ns; char[32] driver_version; u64[8] lock"),
        ("devices", Device * DEVICES),
        ("processes", Process * PROCESSES),
    )


def make_lock(file: DeviceFile) -> None:
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
_OF_THE_MODEL = (
    *("multiprocessors", "threads_per_multiprocessor", "memory_bus_bits", "pcie_generation"),
    *("max_sm_mhz", "memory_mhz", "row_remap", "link_mbps"),
)
"""Fields of a device that are its model's."""


@dataclass(frozen=True, slots=True)
class Model:
    """The properties of a GPU model. Temperatures and idle values are typical, not measured."""

    name: str  # as NVML reports it
    memory_bytes: int
    compute: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    limit_w: int
    idle_w: int
    max_sm_mhz: int
    memory_mhz: int
    memory_bus_bits: int
    pcie_generation: int
    row_remap: bool = True
    links: int = 0
    link_mbps: int = 0
    switched: bool = False  # NVLink goes to a switch, which joins all; else to the other GPUs in turn


_V100_LINKS: dict[str, Any] = {"links": 6, "link_mbps": 25_781}
_A100_LINKS: dict[str, Any] = {"links": 12, "link_mbps": 25_781, "switched": True}
_H100_LINKS: dict[str, Any] = {"links": 18, "link_mbps": 26_562, "switched": True}

MODELS = {
    "P100": Model("Tesla P100-PCIE-16GB", 16 * _GIB, (6, 0), 56, 2048, 250, 27, 1328, 715, 4096, 3, False),
    "V100": Model(
        "Tesla V100-SXM2-16GB", 16 * _GIB, (7, 0), 80, 2048, 300, 40, 1530, 877, 4096, 3, False, **_V100_LINKS
    ),
    "T4": Model("Tesla T4", 15 * _GIB, (7, 5), 40, 1024, 70, 10, 1590, 5001, 256, 3, False),
    "A10": Model("NVIDIA A10", 23 * _GIB, (8, 6), 72, 1536, 150, 16, 1695, 6251, 384, 4),
    "A100": Model("NVIDIA A100-SXM4-40GB", 40 * _GIB, (8, 0), 108, 2048, 400, 50, 1410, 1215, 5120, 4, **_A100_LINKS),
    "A100-80GB": Model(
        "NVIDIA A100-SXM4-80GB", 80 * _GIB, (8, 0), 108, 2048, 400, 60, 1410, 1593, 5120, 4, **_A100_LINKS
    ),
    "L4": Model("NVIDIA L4", 23 * _GIB, (8, 9), 58, 1536, 72, 12, 2040, 6251, 192, 4),
    "H100": Model("NVIDIA H100 80GB HBM3", 80 * _GIB, (9, 0), 132, 2048, 700, 70, 1980, 2619, 5120, 5, **_H100_LINKS),
    "H200": Model("NVIDIA H200", 141 * _GIB, (9, 0), 132, 2048, 700, 75, 1980, 3201, 6144, 5, **_H100_LINKS),
}


def find_model(name: str) -> Model:
    """Return the model with a name as in task files, in upper or lower case."""
    for known, model in MODELS.items():
        if known.lower() == name.lower():
            return model
    raise InputError.of(f"unknown GPU model: {name}", fix=did_you_mean(name, tuple(MODELS)))


@dataclass(frozen=True, slots=True)
class Machine:
    """The GPUs to make: all of one model, in equal parts on the NUMA nodes."""

    model: Model
    gpus: int = 1
    memory_bytes: int = 0  # of each; 0: as the model has it
    numa_nodes: int = 1
    kernel_ns: int = 20_000  # how long a launch takes for each wave of threads that the device can hold at once
    context_bytes: int = 0
    label: str = ""  # the same label, the same UUIDs; empty: new ones each time

    def problems(self) -> list[Problem]:
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
    for name in _OF_THE_MODEL:
        setattr(device, name, getattr(model, name))
    device.numa_node = index * machine.numa_nodes // machine.gpus
    device.pcie_width = 16
    device.memory_bytes = machine.memory_bytes or model.memory_bytes
    device.context_bytes = machine.context_bytes
    device.kernel_ns = machine.kernel_ns
    device.idle_mw, device.limit_mw = model.idle_w * 1000, model.limit_w * 1000
    device.idle_sm_mhz = 300
    device.idle_celsius, device.busy_celsius = 32, 72
    device.slowdown_celsius, device.shutdown_celsius = 90, 96
    device.ecc = 1
    device.links = model.links if machine.gpus > 1 else 0
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
