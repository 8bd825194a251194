"""What is known of the health of nodes and GPUs, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.core.health_record import WHOLE_NODE, Alert, Cordon, Record, State, Target
from batuta.core.health_rules import Action
from batuta.engine.health.seen import HealthSeen


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
