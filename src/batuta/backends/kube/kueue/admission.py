"""What Kueue has decided on a Workload, and what that leaves to the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batuta.backends.kube.kueue.condition import find, is_true
from batuta.backends.kube.kueue.kinds import Setting
from batuta.backends.kube.kueue.workload import MAIN
from batuta.core import fit
from batuta.core.job import Job

RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
REQUEUED: Final = "Requeued"


@dataclass(frozen=True, slots=True)
class Admitted:
    """So many replicas, in these flavors."""

    replicas: int
    flavors: tuple[str, ...] = ()


def admitted(workload: Setting) -> Admitted | None:
    """What Kueue gives; None while it has not decided, and when it wants it back."""
    status = workload.status
    if not is_true(status, ADMITTED) or workload.spec.get("active") is False:
        return None
    if is_true(status, EVICTED) or is_true(status, FINISHED):
        return None
    assigned = _assigned(status)
    count = assigned.get("count")
    if not isinstance(count, int):
        return None
    flavors = assigned.get("flavors")
    named = flavors.values() if isinstance(flavors, Mapping) else ()
    return Admitted(count, tuple(sorted({str(one) for one in named})))


def _assigned(status: Mapping[str, Any]) -> Mapping[str, Any]:
    admission = status.get("admission")
    listed = admission.get("podSetAssignments") if isinstance(admission, Mapping) else None
    found = (one for one in listed or () if isinstance(one, Mapping) and one.get("name") == MAIN)
    return next(found, {})


def why_not(workload: Setting | None) -> tuple[str, str]:
    """Why a job is not admitted, as Kueue says it: a word and a sentence."""
    if workload is None:
        return "WaitingForKueue", "its Workload is being made"
    status = workload.status
    for kind, meant in ((EVICTED, "True"), (RESERVED, "False"), (ADMITTED, "False")):
        said = find(status, kind)
        if said.get("status") == meant:
            return str(said.get("reason") or "Pending"), f"Kueue: {said.get('message') or 'it waits'}"
    return "WaitingForKueue", "Kueue has not looked at its Workload yet"


def has_reservation(workload: Setting) -> bool:
    return is_true(workload.status, RESERVED)


def within(job: Job, given: Admitted, flavors: Iterable[Mapping[str, Any]]) -> Job | None:
    """The job with what was given to it: its size, the nodes of its flavors. None if that is too little."""
    most = given.replicas * job.gpus_per_replica
    sizes = None if job.sizes is None else tuple(size for size in job.sizes if size <= most)
    top = min(job.max, most) if sizes is None else max(sizes, default=0)
    if top < job.min:
        return None
    size = min(job.size, top) if sizes is None else max(one for one in sizes if one <= max(job.size, job.min))
    labels, tolerated = dict(job.node_labels), list(job.tolerations)
    for flavor in flavors:
        labels |= {str(key): str(value) for key, value in (flavor.get("nodeLabels") or {}).items()}
        tolerated += [toleration(one) for one in flavor.get("tolerations") or ()]
    return replace(
        job,
        max=top,
        size=size,
        sizes=sizes,
        node_labels=tuple(labels.items()),
        tolerations=tuple(dict.fromkeys(tolerated)),
    )


def toleration(one: Mapping[str, Any]) -> str:
    """As the World writes it."""
    key = str(one.get("key") or fit.EVERYTHING)
    said = key if one.get("operator") == "Exists" else f"{key}={one.get('value') or ''}"
    return f"{said}:{one['effect']}" if one.get("effect") else said
