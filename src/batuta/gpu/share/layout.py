"""Region and card, byte for byte: the mirror of native/share/region.h and card.h; a test compares them."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64

REGION_MAGIC = int.from_bytes(b"BUTSHARE", "little")
CARD_MAGIC = int.from_bytes(b"BUTSCARD", "little")
LAYOUT = 1
DEVICES = 16
PROCESSES = 256
TENANTS = 64
UUID = 48
UNLIMITED = (1 << 64) - 1


class Device(ctypes.Structure):
    """One GPU, for the whole container."""

    _fields_ = (
        ("uuid", c_char * UUID),
        ("limit_bytes", c_uint64),
        ("hard_permille", c_uint32),
        ("soft_permille", c_uint32),
        ("weight", c_uint32),
        ("tenant", c_uint32),
        ("used_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("refusals", c_uint64),
        ("launches", c_uint64),
        ("charged_ns", c_uint64),
        ("waited_ns", c_uint64),
        ("spent_until_ns", c_int64),
        ("rate_permille", c_uint32),
        ("factor_permille", c_uint32),
        ("corrected_ns", c_int64),
        ("corrected_charged_ns", c_uint64),
        ("longest_ns", c_uint64),
        ("published_ns", c_int64),
        ("published_charged_ns", c_uint64),
    )


class Use(ctypes.Structure):
    """What a process has of one device."""

    _fields_ = (("used_bytes", c_uint64), ("peak_bytes", c_uint64), ("launches", c_uint64))


class Process(ctypes.Structure):
    """A process: a pid and the time it started, in clock ticks since boot."""

    _fields_ = (
        ("taken", c_uint32),
        ("pid", c_int32),
        ("start_ticks", c_uint64),
        ("use", Use * DEVICES),
    )


class Region(ctypes.Structure):
    """What the processes of a container share."""

    _fields_ = (
        ("magic", c_uint64),
        ("layout", c_uint32),
        ("devices_count", c_uint32),
        ("size_bytes", c_uint64),
        ("pid_namespace", c_uint64),
        ("damaged", c_uint32),
        ("repairs", c_uint32),
        ("container", c_char * 64),
        ("lock", c_uint64 * 8),
        ("devices", Device * DEVICES),
        ("processes", Process * PROCESSES),
    )


class Tenant(ctypes.Structure):
    """A container on a card."""

    _fields_ = (
        ("key", c_uint64),
        ("hard_permille", c_uint32),
        ("soft_permille", c_uint32),
        ("weight", c_uint32),
        ("use_permille", c_uint32),
        ("active_until_ns", c_int64),
        ("hungry_until_ns", c_int64),
    )


class Card(ctypes.Structure):
    """What the containers on a card share."""

    _fields_ = (
        ("magic", c_uint64),
        ("layout", c_uint32),
        ("reserved", c_uint32),
        ("size_bytes", c_uint64),
        ("uuid", c_char * UUID),
        ("tenants", Tenant * TENANTS),
    )
