"""What an agent noted of its node's kernel log, as the annotation through which the operator hears of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

MOST_NOTES: Final = 64
"""At a time, the oldest first: the rest follows when these are acknowledged."""
LONGEST_TEXT: Final = 240
"""Characters of what follows a code: rules look at them, and annotations are small."""
MOST_OWNERS: Final = 16
_SOURCES: Final = ("xid", "sxid")
_MOST_BYTES: Final = 64 << 10


class NodeNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Numbers count up over restarts of the agent: who has seen one knows it by its number."""

    n: int
    time: float
    """When it was read, by the node's clock."""
    source: str = "xid"
    code: int = 0
    gpu: int | None = None
    """None: not about a GPU, or nobody knows about which."""
    text: str = ""
    owners: tuple[str, ...] = ()
    """Whose pods were hit, as `namespace/job/pod`; empty where the agent cannot tell."""


def write_notes(notes: Iterable[NodeNote]) -> str:
    """The annotation, with as many of the oldest notes as it may hold."""
    listed = sorted(notes, key=lambda note: note.n)[:MOST_NOTES]
    while (text := msgspec.json.encode(listed).decode()) and len(text) > _MOST_BYTES:
        listed.pop()
    return text


def read_notes(text: str) -> tuple[NodeNote, ...]:
    """The notes of an annotation in the order of their numbers; what cannot be read says nothing."""
    try:
        found = _decode(text.encode()) if text else []
    except msgspec.MsgspecError:
        return ()
    known = {note.n: note for note in found if note.n > 0 and note.source in _SOURCES}
    return tuple(note for _, note in sorted(known.items()))


def read_seen(text: str) -> int:
    """The number of the last note that is dealt with; 0 where nothing is."""
    return int(text) if text.isdecimal() and len(text) < 20 else 0


_decode: Any = msgspec.json.Decoder(list[NodeNote]).decode
