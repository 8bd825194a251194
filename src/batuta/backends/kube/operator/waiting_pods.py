"""What people see of pods that wait: the condition that kube-scheduler writes, and an event with numbers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api, Patch
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import EVENT, POD

UNSCHEDULABLE: Final = "Unschedulable"
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 220


def shows(pod: objects.Pod, message: str) -> bool:
    """Whether the pod says already why it waits."""
    return any(
        one.type == "PodScheduled" and one.status == "False" and one.message == message
        for one in pod.status.conditions
    )


async def tell(pod: objects.Pod, message: str, now_s: float, api: Api) -> None:
    """Writes on a pod why it waits, and an event beside it."""
    meta = pod.metadata
    when = datetime.fromtimestamp(now_s, UTC)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": UNSCHEDULABLE,
        "message": message,
        "lastTransitionTime": when.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    try:
        await api.patch(
            POD,
            meta.name,
            {"status": {"conditions": [condition]}},
            meta.namespace,
            how=Patch.STRATEGIC,
            subresource="status",
        )
    except NotFound:
        return
    await api.create(EVENT, _event(meta, message, when), meta.namespace)


def _event_name(meta: objects.Meta, when: datetime) -> str:
    """A name that no other event has: names may not end with a dot, so the server cannot make one up."""
    return f"{meta.name[:_LONGEST_NAME]}.{meta.uid[:8]}{int(when.timestamp() * 1e6):x}"


def _event(meta: objects.Meta, message: str, when: datetime) -> dict[str, Any]:
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": _event_name(meta, when), "namespace": meta.namespace},
        "eventTime": when.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": names.SCHEDULER,
        "reportingInstance": names.SCHEDULER,
        "action": "Scheduling",
        "reason": "FailedScheduling",
        "type": "Warning",
        "note": message[:_LONGEST_NOTE],
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        },
    }
