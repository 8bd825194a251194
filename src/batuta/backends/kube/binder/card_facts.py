"""What each GPU of a node has to give, and whether it may be given, as the node says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.quantity import amount, whole

WHOLE_COMPUTE: Final = 100
_MOST_CARDS: Final = 1024


class CardFacts(NamedTuple):
    """One GPU. It may give more than it has: then its sharers count on each other to leave some unused."""

    memory_mib: int
    compute_percent: int = WHOLE_COMPUTE
    is_ill: bool = False


def cards_of(node: objects.Node) -> tuple[CardFacts, ...]:
    """A node's GPUs by index: what the device plugin has written, else what capacity and labels tell.

    One that health has taken out of service is ill, whatever the device plugin thinks of it.
    """
    annotations = node.metadata.annotations
    cards = _written(annotations.get(names.CARDS, "")) or _counted(node)
    out = ill_gpus(annotations)
    if not out:
        return cards
    return tuple(card._replace(is_ill=True) if gpu in out else card for gpu, card in enumerate(cards))


def ill_gpus(annotations: Mapping[str, str]) -> dict[int, str]:
    """The GPUs that health has taken out of service, and why; what cannot be read says nothing."""
    text = annotations.get(names.ILL_GPUS, "")
    try:
        told: dict[str, str] = _decode_ill(text.encode()) if text else {}
    except msgspec.MsgspecError:
        return {}
    return {int(gpu): why for gpu, why in told.items() if gpu.isdecimal() and len(gpu) < 5}


def _written(text: str) -> tuple[CardFacts, ...]:
    """What cannot be read says nothing."""
    try:
        told = {card.index: card for card in _decode(text.encode())} if text else {}
    except (msgspec.DecodeError, msgspec.ValidationError):
        return ()
    if not told or min(told) < 0 or max(told) >= _MOST_CARDS:
        return ()
    # A number that is not told of is no card: nothing may be given of it.
    listed = (told.get(index) for index in range(max(told) + 1))
    return tuple(
        CardFacts(0, 0, is_ill=True)
        if card is None
        else CardFacts(card.memory * names.SHARE_UNIT_MIB, card.compute, bool(card.illness))
        for card in listed
    )


def _counted(node: objects.Node) -> tuple[CardFacts, ...]:
    # Capacity, because a GPU that is out of order leaves allocatable and keeps its number.
    stated: Mapping[str, str] = {**node.status.allocatable, **node.status.capacity}
    count = next((_count(stated[name]) for name in names.GPU_RESOURCES if _count(stated.get(name, "0"))), 0)
    if not count:
        count = -(-_count(stated.get(names.SHARE_COMPUTE, "0")) // WHOLE_COMPUTE)
    if not count:
        return ()
    labelled = node.metadata.labels.get(names.GPU_MEMORY_LABEL, "")
    units = _count(stated.get(names.SHARE_MEMORY, "0")) // count
    memory_mib = int(labelled) if labelled.isdecimal() else units * names.SHARE_UNIT_MIB
    return (CardFacts(memory_mib),) * count


def _count(text: str) -> int:
    return whole(amount(text))


class _Told(msgspec.Struct):
    """One line of what the device plugin writes; memory in units."""

    index: int
    memory: int = 0
    compute: int = WHOLE_COMPUTE
    illness: str = ""


_decode: Any = msgspec.json.Decoder(list[_Told]).decode
_decode_ill: Any = msgspec.json.Decoder(dict[str, str]).decode
