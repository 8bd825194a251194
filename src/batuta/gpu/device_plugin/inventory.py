"""Keep the GPUs of a node, their health, and the units that the kubelet can count.

Health has three sources. NVML's state of a GPU is read every second, so it is found again after a restart.
Xid errors come as events, and the rules say which of them are the GPU's own fault; the plugin remembers them
until it restarts, or until the operator puts a GPU that it had taken out of service back. And GPUs that the
operator takes out are withheld.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from batuta.core.health_rules import HealthRules, Source
from batuta.gpu.device_plugin.messages import HEALTHY, UNHEALTHY, Device, ListAndWatchResponse
from batuta.gpu.devices import EVENT_WAIT_MS, NvmlUnavailable, XidEvents, ask_nvml, nvml_text, open_nvml
from batuta.gpu.health.rules import read_rules

UNIT_MIB: Final = 256
"""Memory of one unit. With units of 1 MiB, a node with eight large GPUs would send lists of 43 MB."""
WHOLE_PERCENT: Final = 100
log = logging.getLogger("batuta.device_plugin")
_MIB: Final = 1 << 20


class Resource(StrEnum):
    """A resource that pods request; the kubelet counts its units."""

    MEMORY = "batuta.dev/gpu-memory"
    COMPUTE = "batuta.dev/gpu-compute"

    @property
    def word(self) -> str:
        """The short name, in names of units and of sockets."""
        return self.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU."""

    index: int
    uuid: str
    memory_mib: int
    illness: str = ""  # why none of its units may be allocated; empty: it is healthy
    minor: int = -1  # the number of its device file; -1 where it is unknown
    pci: str = ""  # its address on the bus, as in `0000:3b:00.0`


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How much of a GPU may be allocated, in percent of what it has: more than 100 is overcommitted."""

    memory_percent: int = WHOLE_PERCENT
    compute_percent: int = WHOLE_PERCENT

    def units(self, card: Card, resource: Resource) -> int:
        if resource is Resource.COMPUTE:
            return self.compute_percent
        return card.memory_mib * self.memory_percent // WHOLE_PERCENT // UNIT_MIB


NO_OVERCOMMIT: Final = Overcommit()


def unit_id(card: Card, resource: Resource, number: int) -> str:
    """Return the name of a unit, with its GPU in it. The kubelet takes up to 63 characters."""
    return f"{card.uuid}/{resource.word}/{number}"


class DeviceInventory:
    """The GPUs as they are now; watchers are notified of each change."""

    def __init__(self, cards: tuple[Card, ...], overcommit: Overcommit = NO_OVERCOMMIT) -> None:
        self._cards = cards
        self.overcommit = overcommit
        self._changed = asyncio.Event()

    @property
    def cards(self) -> tuple[Card, ...]:
        return self._cards

    def update(self, cards: tuple[Card, ...]) -> bool:
        if cards == self._cards:
            return False
        self._cards = cards
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    def card_of(self, unit: str, resource: Resource) -> Card | None:
        """Return the GPU of a unit; None for a unit that does not exist."""
        uuid, _, rest = unit.partition("/")
        word, _, number = rest.partition("/")
        card = next((one for one in self._cards if one.uuid == uuid), None)
        if card is None or word != resource.word or not number.isdecimal():
            return None
        known = int(number) < self.overcommit.units(card, resource) and number == str(int(number))
        return card if known else None

    def units(self, resource: Resource) -> ListAndWatchResponse:
        return ListAndWatchResponse(
            tuple(
                Device(unit_id(card, resource, number), UNHEALTHY if card.illness else HEALTHY)
                for card in self._cards
                for number in range(self.overcommit.units(card, resource))
            )
        )

    async def watch(self) -> AsyncIterator[tuple[Card, ...]]:
        """Yield the GPUs now, and after each change; changes in quick succession count as one."""
        while True:
            changed, cards = self._changed, self._cards
            yield cards
            await changed.wait()


class NoGpus(Exception):
    """The node has no GPU that NVML can use."""


class NvmlCards:
    """Reads the GPUs of the node, as a context manager around NVML."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        """`rules`: which Xids are the GPU's own fault; None: Batuta's own rules."""
        self._rules = read_rules() if rules is None else rules
        self._withheld: Mapping[int, str] = {}
        self._ordered: Mapping[int, str] = {}  # what is withheld from the next read on
        self._nvml: Any = None
        self._events: XidEvents | None = None
        self._xids: dict[str, int] = {}
        self._cards: dict[int, Card] = {}
        self._handles: dict[str, Any] = {}
        # A thread may be waiting inside NVML at the end: what it uses is not freed before.
        self._in_use = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self._nvml = open_nvml()
        except NvmlUnavailable as error:
            raise NoGpus(f"NVML cannot be used: {error}") from None
        self._events = ask_nvml(self._nvml, XidEvents, self._nvml)
        return self

    def __exit__(self, *error: object) -> None:
        with self._in_use, suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._events.close()
                self._events = None
            self._nvml.nvmlShutdown()

    def look(self) -> tuple[Card, ...]:
        """Return the GPUs as they are now, without those that were lost before the plugin started."""
        with self._in_use:
            return self._look()

    def _look(self) -> tuple[Card, ...]:
        withheld, self._withheld = self._withheld, self._ordered
        for index in withheld.keys() - self._withheld.keys():
            if index in self._cards:
                self._xids.pop(self._cards[index].uuid, None)
        for index in range(self._nvml.nvmlDeviceGetCount()):
            if index not in self._cards:
                with suppress(self._nvml.NVMLError):
                    self._cards[index] = self._card(index)
        return tuple(replace(card, illness=self._illness(card)) for _, card in sorted(self._cards.items()))

    def withhold(self, ill: Mapping[int, str]) -> None:
        """Withhold these GPUs, by index, because the operator took them out; others are back in service.

        It takes effect with the next read, so the caller does not wait.
        """
        self._ordered = dict(ill)

    def wait(self) -> None:
        """Wait for an event, up to a second, and note it."""
        with self._in_use, suppress(self._nvml.NVMLError):
            found = None if self._events is None else self._events.wait()
            if found is not None and self._is_gpu_fault(found[1]):
                self._xids[found[0]] = found[1]

    def _is_gpu_fault(self, xid: int) -> bool:
        """Return whether an Xid takes the GPU out of service at once; an event has only its number."""
        rule = self._rules.find(Source.XID, xid, "")
        return rule is not None and rule.action.takes_out and not rule.at_idle

    @property
    def listens(self) -> bool:
        return self._events is not None

    def _card(self, index: int) -> Card:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml_text(nvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        minor, pci = ask_nvml(nvml, nvml.nvmlDeviceGetMinorNumber, handle), ask_nvml(nvml, _bus_address, nvml, handle)
        memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
        if self._events is not None:
            ask_nvml(nvml, self._events.register, handle, uuid)
        return Card(index, uuid, memory_mib, minor=-1 if minor is None else minor, pci=pci or "")

    def _illness(self, card: Card) -> str:
        nvml, handle = self._nvml, self._handles[card.uuid]
        if card.index in self._withheld:
            return self._withheld[card.index]
        if card.uuid in self._xids:
            return f"Xid {self._xids[card.uuid]}"
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            return f"it does not answer: {error}"
        kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        if errors := ask_nvml(nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, *kind):
            return f"{errors} uncorrectable memory errors since the driver was loaded"
        rows = ask_nvml(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        return "a row of its memory could not be remapped" if rows is not None and rows[3] else ""


async def watch_health(cards: NvmlCards, inventory: DeviceInventory) -> None:
    """Keep the inventory up to date until cancelled; an event is acted on at once."""
    while True:
        if cards.listens:
            await asyncio.to_thread(cards.wait)
        else:
            await asyncio.sleep(EVENT_WAIT_MS / 1000)
        before = {card.uuid: card.illness for card in inventory.cards}
        found = await asyncio.to_thread(cards.look)
        for card in found:
            if card.illness != before.get(card.uuid, ""):
                log.warning("GPU %d (%s): %s", card.index, card.uuid, card.illness or "healthy again")
        inventory.update(found)


def _bus_address(nvml: Any, handle: Any) -> str:
    """`00000000:3B:00.0`, as NVML says it, is `0000:3b:00.0` for the kernel."""
    return nvml_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
