"""Events for people about the health of nodes, and of jobs that begin again because of it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Forbidden, NotFound
from batuta.backends.kube.client.kinds import EVENT, NODE
from batuta.backends.kube.operator.writes import Doing
from batuta.core import event as ev
from batuta.core.health_record import WHOLE_NODE, Record, State, Target

_log = logging.getLogger(__name__)
_NODE_NAMESPACE: Final = "default"
"""What is in no namespace has its events here, as the API server wants it."""
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 200
_REASONS: Final = {
    State.HEALTHY: "Healthy",
    State.SUSPECT: "HealthSuspect",
    State.ILL: "Unhealthy",
    State.BURN_IN: "BurnIn",
    State.PROBATION: "Probation",
}
_WARNINGS: Final = frozenset({State.SUSPECT, State.ILL})


class HealthNews:
    """Tells each change of a record once: to the World, to the cluster, and to the log."""

    def __init__(
        self,
        ask: Callable[[str, Doing, float], bool],
        say: Callable[[ev.Event], None],
        known: Mapping[Target, Record],
    ) -> None:
        """`known`: what was told before, by whoever was here."""
        self._ask, self._say = ask, say
        self._told = {target: _said(record) for target, record in known.items()}

    def tell(self, records: Mapping[Target, Record], nodes: Mapping[str, objects.Node], now_s: float) -> None:
        """These are all records that there are now."""
        for target, record in records.items():
            said = _said(record)
            if said == self._told.get(target, _said(Record())):
                continue
            self._told[target] = said
            node = nodes.get(target.node)
            state = "alert" if record.held else record.state.value
            gpu = None if target.gpu == WHOLE_NODE else target.gpu
            self._say(ev.HealthChanged(now_s, target.node, gpu, state, record.reason))
            _log.warning("%s is %s: %s", target, state, record.reason)
            if node is not None:
                self._event(_about_node(node), _reason(record), f"{target}: {record.reason}", record, now_s)
        self._told = {target: said for target, said in self._told.items() if target in records}

    def restarts(self, pod: objects.Pod, reason: str, now_s: float) -> None:
        """A job begins again, which its owner shall know: the event is about what owns one of its pods."""
        owner = next((one for one in pod.metadata.owner_references if one.controller), None)
        if owner is None:
            return
        about = {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "name": owner.name,
            "namespace": pod.metadata.namespace,
            "uid": owner.uid,
        }
        self._event(about, "RestartedByHealth", f"it begins again: {reason}", None, now_s)

    def _event(
        self, about: Mapping[str, str], reason: str, note: str, record: Record | None, now_s: float
    ) -> None:
        is_bad = record is None or record.state in _WARNINGS
        event = _event_of(about, reason, note, now_s, "Warning" if is_bad else "Normal")
        self._ask(f"health//event/{event['metadata']['name']}", partial(_create, event), now_s)


def _said(record: Record) -> tuple[State, bool, str]:
    return record.state, record.held, record.reason


def _reason(record: Record) -> str:
    return "HealthGuardRail" if record.held else _REASONS[record.state]


def _about_node(node: objects.Node) -> dict[str, str]:
    return {
        "apiVersion": NODE.api_version,
        "kind": NODE.name,
        "name": node.metadata.name,
        "uid": node.metadata.uid,
    }


def _event_of(about: Mapping[str, str], reason: str, note: str, now_s: float, kind: str) -> dict[str, Any]:
    when = datetime.fromtimestamp(now_s, UTC)
    said = hashlib.sha256(f"{about['uid']} {reason} {note} {int(now_s // 60)}".encode()).hexdigest()[:16]
    namespace = about.get("namespace") or _NODE_NAMESPACE
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": f"{about['name'][:_LONGEST_NAME]}.{said}", "namespace": namespace},
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.MANAGED_BY,
        "reportingInstance": names.SCHEDULER,
        "action": reason,
        "reason": reason,
        "type": kind,
        "note": note[:_LONGEST_NOTE],
        "regarding": dict(about),
    }


async def _create(event: dict[str, Any], api: Api) -> None:
    try:
        await api.create(EVENT, event, event["metadata"]["namespace"])
    except (AlreadyExists, NotFound, Forbidden):
        # It was told already, or its namespace is going: it stands in the log as well.
        return
