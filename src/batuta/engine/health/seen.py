"""What is known of the health of nodes and GPUs at one moment, and who can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from batuta.core.cluster import NodeName
from batuta.core.health_record import Alert, Cordon, Record, Target
from batuta.core.health_rules import Action, Source


@dataclass(frozen=True, slots=True)
class HealthSeen:
    """How things are at one moment. Records are copies."""

    records: Mapping[Target, Record] = field(default_factory=dict)
    cordons: Mapping[NodeName, Cordon] = field(default_factory=dict)
    """Nodes that humans have cordoned."""
    alerts: Sequence[Alert] = ()
    found: Mapping[tuple[Source, Action], int] = field(default_factory=dict)
    """Findings since the start, by what was to be done about them."""


class NodeHealth(Protocol):
    """Who looks after the health of nodes. May be used from any thread."""

    def seen(self) -> HealthSeen: ...

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        """What was to be done is done. A ValueError says why there is nothing to be said."""
        ...

    def cordoned(self, node: NodeName, who: str) -> None:
        """A human has cordoned a node."""
        ...

    def uncordoned(self, node: NodeName, who: str) -> None:
        """A human has uncordoned a node: where no cordon was, that overrules health."""
        ...


class NoNodeHealth:
    """Knows of no illness."""

    def seen(self) -> HealthSeen:
        return HealthSeen()

    def mended(self, node: NodeName, gpu: int | None, who: str) -> None:
        raise ValueError("nobody looks after the health of nodes here")

    def cordoned(self, node: NodeName, who: str) -> None:
        pass

    def uncordoned(self, node: NodeName, who: str) -> None:
        pass
