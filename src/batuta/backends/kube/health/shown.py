"""The annotation that tells how a node and its GPUs are, read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from batuta.backends.kube import names
from batuta.core.health_record import WHOLE_NODE, Record, State
from batuta.core.health_rules import Action

_MOST_GPUS: Final = 1024


class Shown(msgspec.Struct, kw_only=True):
    """How a node or a GPU is, as `marks.show` writes it."""

    state: str
    reason: str = ""
    since_s: float = 0.0
    who: str = ""
    remedy: str = ""
    held: bool = False
    until_s: float | None = None
    flaps: int = 0
    incidents: int = 0

    def record(self) -> Record:
        """The same for the book; a ValueError for words that it does not know."""
        return Record(
            state=State(self.state),
            since_s=self.since_s,
            reason=self.reason,
            who=self.who,
            remedy=Action(self.remedy) if self.remedy else Action.IGNORE,
            held=self.held,
            ends_s=self.until_s or 0.0,
            flaps=self.flaps,
        )


class NodeShown(msgspec.Struct, kw_only=True):
    """All of it."""

    taint: str = ""
    node: Shown | None = None
    gpus: dict[str, Shown] = {}

    def by_gpu(self) -> dict[int, Shown]:
        """The GPUs by their numbers, and the node itself under `WHOLE_NODE`."""
        own = {} if self.node is None else {WHOLE_NODE: self.node}
        known = {int(text): one for text, one in self.gpus.items() if text.isdecimal() and len(text) < 5}
        return own | {gpu: one for gpu, one in known.items() if gpu < _MOST_GPUS}


def read_shown(annotations: Mapping[str, str]) -> NodeShown:
    """What a node says of its health; what cannot be read says nothing."""
    text = annotations.get(names.HEALTH, "")
    try:
        found: NodeShown = _decode(text.encode()) if text else NodeShown()
    except msgspec.MsgspecError:
        return NodeShown()
    return found


def records_on(annotations: Mapping[str, str]) -> dict[int, Record]:
    """The same as records, by GPU."""
    found: dict[int, Record] = {}
    for gpu, shown in read_shown(annotations).by_gpu().items():
        try:
            found[gpu] = shown.record()
        except ValueError:
            continue
    return found


_decode: Any = msgspec.json.Decoder(NodeShown).decode
