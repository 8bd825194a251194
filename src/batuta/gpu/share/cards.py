"""Grant containers their parts of a GPU's time: the files that those on one card read.

The device plugin or the server writes them, and containers may only read them: what a container is promised
follows from what it was granted, and not from what another one claims. For each GPU there is one file of grants;
beside it, for each container, a file that this container alone may write, with what it wants of its grant at the
moment. The layout mirrors native/share/card.h byte for byte; a test compares them.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from batuta.gpu.share.limits import DeviceLimit, ShareLimits
from batuta.gpu.share.region import read_exactly
from batuta.gpu.vgpu.device_file import c_fields
from batuta.spec.problem import InputError

CARD_MAGIC: Final = int.from_bytes(b"BUTSCARD", "little")
DEMAND_MAGIC: Final = int.from_bytes(b"BEDEMAND", "little")
CARD_LAYOUT: Final = 2
MAX_TENANTS: Final = 64
_WHOLE: Final = 1000  # permille
_LEFT_AFTER_NS: Final = 60_000_000_000
_FNV_OFFSET, _FNV_PRIME = 14695981039346656037, 1099511628211


class Tenant(ctypes.Structure):
    """What a container was granted."""

    _fields_ = c_fields("u64 key; u32 hard_permille, soft_permille, weight, reserved")


class Card(ctypes.Structure):
    """The grants on one GPU."""

    _fields_ = (
        *c_fields("u64 magic; u32 layout, count; u64 size_bytes; char[48] uuid"),
        ("tenants", Tenant * MAX_TENANTS),
    )


class Demand(ctypes.Structure):
    """What a container wants."""

    _fields_ = c_fields("u64 magic; u32 layout, use_permille; i64 active_until_ns, hungry_until_ns")


def tenant_key(limits: ShareLimits) -> int:
    """Return the number of a container on its cards, as the library makes it: of its region's path."""
    key = _FNV_OFFSET
    for byte in os.fsencode(limits.region):
        key = (key ^ byte) * _FNV_PRIME % (1 << 64)
    return key | 1


def demand_path(cards: Path, uuid: str, key: int) -> Path:
    """Return the file in which a container says what it wants of a GPU."""
    return cards / f"{uuid}.{key:016x}"


def demand_paths(limits: ShareLimits) -> tuple[Path, ...]:
    """Return the files that the container of these limits has to be able to write."""
    if limits.cards is None:
        return ()
    return tuple(demand_path(limits.cards, device.uuid, tenant_key(limits)) for device in limits.devices)


class CardFolder:
    """The cards of a node. One process writes them, and keeps nothing in memory: it may be started again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)

    def grant(self, limits: ShareLimits, owner: tuple[int, int] | None = None, mode: int = 0o600) -> None:
        """Put a container on the cards that its limits name, or change what it was granted there.

        `owner` (user and group) and `mode` are of the files that the container writes.
        """
        key = tenant_key(limits)
        for device in limits.devices:
            others = [one for one in self.tenants(device.uuid) if one.key != key]
            if len(others) >= MAX_TENANTS:
                others = self._without_one_that_left(device.uuid, others)
            _make_demand(demand_path(self.path, device.uuid, key), owner, mode)
            self._write(device.uuid, [*others, _tenant(key, device)])

    def keep_only(self, containers: Iterable[ShareLimits]) -> None:
        """Take all other containers off the cards."""
        keys = {tenant_key(one) for one in containers}
        words = {f"{key:016x}" for key in keys}
        for path in self.path.iterdir():
            uuid, dot, word = path.name.partition(".")
            if dot and word not in words:
                path.unlink(missing_ok=True)
            elif not dot:
                tenants = self.tenants(uuid)
                staying = [one for one in tenants if one.key in keys]
                if len(staying) != len(tenants):
                    self._write(uuid, staying)

    def tenants(self, uuid: str) -> list[Tenant]:
        """Return the tenants of a card; none where the file is absent or was not written by this version."""
        try:
            data = read_exactly(self.path / uuid, ctypes.sizeof(Card))
        except OSError:
            return []
        card = None if data is None else Card.from_buffer_copy(data)
        if card is None or (card.magic, card.layout) != (CARD_MAGIC, CARD_LAYOUT):
            return []
        return list(card.tenants[: min(card.count, MAX_TENANTS)])

    def _write(self, uuid: str, tenants: list[Tenant]) -> None:
        """Replace the file: a process that reads it has the old grants or the new ones."""
        size = ctypes.sizeof(Card)
        card = Card(CARD_MAGIC, CARD_LAYOUT, len(tenants), size, uuid.encode(), (Tenant * MAX_TENANTS)(*tenants))
        path = self.path / uuid
        unfinished = path.with_name(f"{uuid}.new")
        unfinished.write_bytes(bytes(card))
        # The library refuses a card that others than its owner may write.
        unfinished.chmod(0o644)
        unfinished.replace(path)

    def _without_one_that_left(self, uuid: str, tenants: list[Tenant]) -> list[Tenant]:
        """Return the tenants without the one that was granted first of those that have not been active of late."""
        now_ns = time.monotonic_ns()
        for number, tenant in enumerate(tenants):
            path = demand_path(self.path, uuid, tenant.key)
            with suppress(OSError):
                data = read_exactly(path, ctypes.sizeof(Demand))
                if data is not None and Demand.from_buffer_copy(data).active_until_ns > now_ns - _LEFT_AFTER_NS:
                    continue
            path.unlink(missing_ok=True)
            return tenants[:number] + tenants[number + 1 :]
        raise InputError.of(f"GPU {uuid} is shared by {MAX_TENANTS} containers, and there is no room for another")


def _tenant(key: int, device: DeviceLimit) -> Tenant:
    hard = _WHOLE if device.compute_percent is None else device.compute_percent * 10
    return Tenant(key, hard, (device.soft_compute_percent or 0) * 10, device.weight, 0)


def _make_demand(path: Path, owner: tuple[int, int] | None, mode: int) -> None:
    """Make the file that a container writes, unless it is there: a running container keeps its own."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, mode)
    try:
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, *owner)
    finally:
        os.close(descriptor)
