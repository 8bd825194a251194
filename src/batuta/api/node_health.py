"""What is known of the health of nodes and GPUs, as the API shows it: the port, and the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from batuta.core.cluster import NodeName
from batuta.core.health_record import WHOLE_NODE, Alert, Cordon, Record, State, Target
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


def view_health(record: Record | None) -> dict[str, Any] | None:
    """A record as people see it; None where there is nothing to say."""
    if record is None or (record.state is State.HEALTHY and not record.reason):
        return None
    return {
        "state": record.state.value,
        "reason": record.reason,
        "since_s": record.since_s,
        "who": record.who,
        "remedy": "" if record.remedy is Action.IGNORE else record.remedy.value,
        "held": record.held,
        "until_s": record.ends_s if record.state is State.PROBATION else None,
        "flaps": record.flaps,
        "incidents": len(record.incidents),
    }


def view_alerts(alerts: Sequence[Alert]) -> list[dict[str, Any]]:
    return [
        {
            "pool": alert.pool,
            "node": alert.target.node,
            "gpu": None if alert.target.gpu == WHOLE_NODE else alert.target.gpu,
            "reason": alert.reason,
        }
        for alert in alerts
    ]


def with_health(node: dict[str, Any], seen: HealthSeen) -> dict[str, Any]:
    """A node as views.py shows it, with what is known of its health."""
    name = node["name"]
    own, cordon = seen.records.get(Target(name)), seen.cordons.get(name, Cordon())
    state = node["state"]
    # On a cluster, health closes a node as a cordon does; where no human did, it is health's.
    is_closed = state in {"cordoned", "draining"} and name not in seen.cordons
    if own is not None and own.is_out and (state == "ready" or is_closed):
        state = "unhealthy"
    gpus = [
        {**gpu, "health": view_health(seen.records.get(Target(name, gpu["index"])))} for gpu in node["gpus"]
    ]
    return {
        **node,
        "state": state,
        "cordoned_by": cordon.who,
        "cordoned_s": cordon.since_s or None,
        "health": view_health(own),
        "gpus": gpus,
    }
