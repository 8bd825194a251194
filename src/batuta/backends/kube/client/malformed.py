"""Objects that do not look as their kind should: left out, and named in the log once each."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from batuta.backends.kube.client.kinds import Kind, Stored
from batuta.backends.kube.objects import Meta

T = TypeVar("T", bound=Stored)
_log = logging.getLogger(__name__)
_MOST_REMEMBERED = 10_000


class _Named(msgspec.Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)


class Malformed:
    """Decodes objects one by one, and leaves out those that it cannot."""

    def __init__(self) -> None:
        self.count = 0
        """How many were left out, in all."""
        self._told: set[tuple[str, str]] = set()

    def keep_good(self, kind: Kind[T], raws: Iterable[msgspec.Raw]) -> list[T]:
        return [found for raw in raws if (found := self.decode(kind, raw)) is not None]

    def decode(self, kind: Kind[T], raw: msgspec.Raw) -> T | None:
        try:
            return kind.decode(raw)
        except msgspec.MsgspecError as error:
            self._tell(kind, raw, error)
            return None

    def _tell(self, kind: Kind[T], raw: msgspec.Raw, error: Exception) -> None:
        self.count += 1
        who = self.name_of(raw)
        if (str(kind), who) not in self._told and len(self._told) < _MOST_REMEMBERED:
            self._told.add((str(kind), who))
            _log.warning("%s %s is malformed and left out: %s", kind, who, error)

    @staticmethod
    def name_of(raw: msgspec.Raw) -> str:
        """`namespace/name` of an object that may have little else."""
        try:
            metadata = msgspec.json.decode(raw, type=_Named).metadata
        except msgspec.MsgspecError:
            return "without a readable name"
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
