"""Looks after the cards: which there are, and whether each is well, as NVML and the operator tell.

Three sources. What NVML says of a card's state is asked every second, so it is found again after a restart.
Xid errors come as events, of which the rules know whether they are the card's own fault; they are remembered
until the plugin is started again, or until the operator, who had taken the card out of service, puts it back:
whether a card may return is not for this program to say. And what the operator takes out is withheld.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from batuta.core.health_rules import HealthRules, Source
from batuta.gpu.device_plugin.stock import Card, Stock
from batuta.gpu.health.rules_file import read_rules

log = logging.getLogger("batuta.device_plugin")

_MIB: Final = 1 << 20
_WAIT_MS: Final = 1000


class NoGpus(Exception):
    """There is nothing here to give."""


class NvmlCards:
    """The node's cards, as a context manager: NVML is open between start and end."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        """`rules`: which Xids are the fault of the card; None: as those say that come with Batuta."""
        self._rules = read_rules() if rules is None else rules
        self._withheld: Mapping[int, str] = {}
        self._ordered: Mapping[int, str] = {}
        """What is to be withheld from the next look on."""
        self._nvml: Any = None
        self._events: Any = None
        self._xids: dict[str, int] = {}
        self._cards: dict[int, Card] = {}
        self._handles: dict[str, Any] = {}
        # A thread may be waiting inside of NVML when we end: what it uses is not taken from under it.
        self._in_use = threading.Lock()

    def __enter__(self) -> Self:
        import pynvml  # noqa: PLC0415 - only a node with GPUs needs it

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoGpus(f"NVML cannot be used: {error}") from None
        with suppress(pynvml.NVMLError):
            self._events = pynvml.nvmlEventSetCreate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._in_use, suppress(self._nvml.NVMLError):
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
                self._events = None
            self._nvml.nvmlShutdown()

    def look(self) -> tuple[Card, ...]:
        """The cards as they are now. One that was lost before we came has no name, and is not among them."""
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
        """These cards, by number, are out of service by the operator's word; others that were are well.

        It counts from the next look on, so nobody has to wait here.
        """
        self._ordered = dict(ill)

    def wait(self) -> None:
        """Waits for an event, up to a second, and notes it."""
        with self._in_use:
            if self._events is not None:
                self._take_event()

    def _take_event(self) -> None:
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._events, _WAIT_MS)
        except nvml.NVMLError:  # nothing happened
            return
        # By its handle: a card that is lost cannot tell its name any more.
        uuid = next((uuid for uuid, one in self._handles.items() if _same(one, event.device)), "")
        if event.eventType & nvml.nvmlEventTypeXidCriticalError and self._is_its_fault(int(event.eventData)):
            self._xids[uuid] = int(event.eventData)

    def _is_its_fault(self, xid: int) -> bool:
        """Whether the card has to be taken out of service at once; an event tells no more than the number."""
        rule = self._rules.find(Source.XID, xid, "")
        return rule is not None and rule.action.takes_out and not rule.at_idle

    @property
    def listens(self) -> bool:
        """Whether this driver tells about events."""
        return self._events is not None

    def _card(self, index: int) -> Card:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        minor, pci = -1, ""
        with suppress(nvml.NVMLError):
            minor = int(nvml.nvmlDeviceGetMinorNumber(handle))
        with suppress(nvml.NVMLError):
            pci = _bus_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        memory_mib = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB
        if self._events is not None:
            with suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        return Card(index, uuid, memory_mib, minor=minor, pci=pci)

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
        errors, failed = 0, 0
        with suppress(nvml.NVMLError):
            errors = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        with suppress(nvml.NVMLError):
            failed = nvml.nvmlDeviceGetRemappedRows(handle)[3]
        if errors:
            return f"{errors} uncorrectable memory errors since the driver was loaded"
        return "a row of its memory could not be remapped" if failed else ""


async def watch_health(cards: NvmlCards, stock: Stock) -> None:
    """Keeps the stock up to date until cancelled; an event is acted on at once."""
    while True:
        if cards.listens:
            await asyncio.to_thread(cards.wait)
        else:
            await asyncio.sleep(_WAIT_MS / 1000)
        before = {card.uuid: card.illness for card in stock.cards}
        found = await asyncio.to_thread(cards.look)
        for card in found:
            if card.illness != before.get(card.uuid, ""):
                log.warning("GPU %d (%s): %s", card.index, card.uuid, card.illness or "well again")
        stock.update(found)


def _same(one: Any, other: Any) -> bool:
    """Whether two handles of NVML are of one card."""
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _bus_address(text: str) -> str:
    """`00000000:3B:00.0`, as NVML says it, is `0000:3b:00.0` for the kernel."""
    return text.lower()[-12:]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
