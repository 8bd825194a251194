"""Warnings on the objects of administrators: what `kubectl describe` tells of a queue that cannot work."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Forbidden, NotFound
from batuta.backends.kube.client.kinds import EVENT, Kind
from batuta.backends.kube.operator.writes import Doing

_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 200
_MOST: Final = 50
"""Warnings at a time: a cluster of which everything is wrong is not flooded."""
_log = logging.getLogger(__name__)


class Fault(NamedTuple):
    """What is wrong with an object."""

    kind: Kind[Any]
    metadata: objects.Meta
    sentence: str


class Notices:
    """Tells each fault once, until it is another one."""

    def __init__(self, ask: Callable[[str, Doing, float], bool]) -> None:
        self._ask = ask
        self._told: dict[str, str] = {}
        """By uid: the sentence."""

    def tell(self, faults: Mapping[str, Fault], now_s: float) -> None:
        """These are all faults that there are now, by uid of the object."""
        self._told = {uid: said for uid, said in self._told.items() if uid in faults}
        new = [one for uid, one in faults.items() if self._told.get(uid) != one.sentence]
        for fault in new[:_MOST]:
            self._told[fault.metadata.uid] = fault.sentence
            _log.warning("%s %s: %s", fault.kind.name, fault.metadata.name, fault.sentence)
            event = event_of(fault, now_s)
            self._ask(f"kueue//event/{event['metadata']['name']}", partial(_create, event), now_s)


def event_of(fault: Fault, now_s: float) -> dict[str, Any]:
    """A warning. What is in no namespace has its events in `default`, as the API server wants it."""
    meta, when = fault.metadata, datetime.fromtimestamp(now_s, UTC)
    said = hashlib.sha256(f"{meta.uid} {fault.sentence} {int(now_s // 60)}".encode()).hexdigest()[:16]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{meta.name[:_LONGEST_NAME]}.{said}",
            "namespace": meta.namespace or "default",
        },
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.MANAGED_BY,
        "reportingInstance": names.SCHEDULER,
        "action": "ReadQuota",
        "reason": "Refused",
        "type": "Warning",
        "note": fault.sentence[:_LONGEST_NOTE],
        "regarding": {
            "apiVersion": fault.kind.api_version,
            "kind": fault.kind.name,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
    }


async def _create(event: dict[str, Any], api: Api) -> None:
    try:
        await api.create(EVENT, event, event["metadata"]["namespace"])
    except (AlreadyExists, NotFound, Forbidden):
        # It was told already, or its namespace is none of ours: it stands in the log as well.
        return
