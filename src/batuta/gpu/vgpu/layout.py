"""The device file, byte for byte: the mirror of native/vgpu/model.h, which a test compares with it."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_uint32, c_uint64

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


class Run(ctypes.Structure):
    """Kernels of one process, one after the other without a gap."""

    _fields_ = (
        ("start_ns", c_uint64),
        ("end_ns", c_uint64),
        ("process", c_uint32),
        ("launches", c_uint32),
    )


class Bucket(ctypes.Structure):
    """What a device did in one stretch of time."""

    _fields_ = (
        ("number", c_uint64),
        ("busy_ns", c_uint64),
        ("received_bytes", c_uint64),
        ("sent_bytes", c_uint64),
    )


class Event(ctypes.Structure):
    """What `nvmlEventSetWait` reports."""

    _fields_ = (("type", c_uint64), ("data", c_uint64))


class Device(ctypes.Structure):
    """One GPU: what it is, what was done to it, what it does."""

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
    """What a process had of a device in one stretch of time."""

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

    _fields_ = (
        ("taken", c_uint32),
        ("pid", c_int32),
        ("start_ticks", c_uint64),
        ("use", Use * DEVICES),
    )


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
