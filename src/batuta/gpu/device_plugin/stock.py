"""What a node has to give: its cards, cut into units of memory and of compute that the kubelet can count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from batuta.gpu.device_plugin.messages import HEALTHY, UNHEALTHY, Device, DeviceList

UNIT_MIB: Final = 256
"""Memory of one unit. With units of 1 MiB, a node with eight large cards would send lists of 43 MB."""
WHOLE_PERCENT: Final = 100


class Resource(StrEnum):
    """What pods ask for; its units are counted by the kubelet."""

    MEMORY = "batuta.dev/gpu-memory"
    COMPUTE = "batuta.dev/gpu-compute"

    @property
    def word(self) -> str:
        """In names of units and of sockets."""
        return self.rpartition("-")[2]


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU."""

    index: int
    uuid: str
    memory_mib: int
    illness: str = ""
    """Why nothing may be given of it; empty: it is well."""
    minor: int = -1
    """The number of its device file; -1 where nobody knows it."""
    pci: str = ""
    """Its address on the bus, as in `0000:3b:00.0`."""


@dataclass(frozen=True, slots=True)
class Generosity:
    """How much of a card is given out, in percent of what it has: more than 100 is over-allocation."""

    memory_percent: int = WHOLE_PERCENT
    compute_percent: int = WHOLE_PERCENT

    def units(self, card: Card, resource: Resource) -> int:
        """How many units of a card there are to give."""
        if resource is Resource.COMPUTE:
            return self.compute_percent
        return card.memory_mib * self.memory_percent // WHOLE_PERCENT // UNIT_MIB


AS_IT_IS: Final = Generosity()


def unit_id(card: Card, resource: Resource, number: int) -> str:
    """The name of a unit: it says which card it is of. The kubelet takes up to 63 characters."""
    return f"{card.uuid}/{resource.word}/{number}"


class Stock:
    """The cards as they are now; who watches is told when one falls ill or recovers."""

    def __init__(self, cards: tuple[Card, ...], generosity: Generosity = AS_IT_IS) -> None:
        self._cards = cards
        self.generosity = generosity
        self._changed = asyncio.Event()

    @property
    def cards(self) -> tuple[Card, ...]:
        return self._cards

    def update(self, cards: tuple[Card, ...]) -> bool:
        """Writes how the cards are; true when that is news."""
        if cards == self._cards:
            return False
        self._cards = cards
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    def card_of(self, unit: str, resource: Resource) -> Card | None:
        """The card that a unit is of; None for a unit that does not exist."""
        uuid, _, rest = unit.partition("/")
        word, _, number = rest.partition("/")
        card = next((one for one in self._cards if one.uuid == uuid), None)
        if card is None or word != resource.word or not number.isdecimal():
            return None
        known = int(number) < self.generosity.units(card, resource) and number == str(int(number))
        return card if known else None

    def units(self, resource: Resource) -> DeviceList:
        """All units of a resource, and how each is."""
        return DeviceList(
            tuple(
                Device(unit_id(card, resource, number), UNHEALTHY if card.illness else HEALTHY)
                for card in self._cards
                for number in range(self.generosity.units(card, resource))
            )
        )

    async def watch(self) -> AsyncIterator[tuple[Card, ...]]:
        """The cards as they are, and again after each change; changes in quick succession count as one."""
        while True:
            changed, cards = self._changed, self._cards
            yield cards
            await changed.wait()
