"""Kubernetes Events about the health of nodes, and about jobs that restart because of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from batuta.backends.kube import objects
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.operator.events import build_event, create_event
from batuta.backends.kube.operator.workqueue import WriteFn
from batuta.core import event as ev
from batuta.core.health_record import WHOLE_NODE, Record, State, Target

_log = logging.getLogger(__name__)
_REASONS: Final = {
    State.HEALTHY: "Healthy",
    State.SUSPECT: "HealthSuspect",
    State.ILL: "Unhealthy",
    State.BURN_IN: "BurnIn",
    State.PROBATION: "Probation",
}
_WARNINGS: Final = frozenset({State.SUSPECT, State.ILL})


class HealthEventRecorder:
    """Tells each change of a record once: to the World, to the cluster, and to the log."""

    def __init__(
        self,
        ask: Callable[[str, WriteFn, float], bool],
        say: Callable[[ev.Event], None],
        known: Mapping[Target, Record],
    ) -> None:
        """`known`: what an earlier operator reported."""
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
        kind = "Warning" if is_bad else "Normal"
        event = build_event(about, reason, note, now_s, kind, said=f"{reason} {note}")
        self._ask(f"health//event/{event['metadata']['name']}", partial(create_event, event), now_s)


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
