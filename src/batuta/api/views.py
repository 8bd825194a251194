"""Jobs, nodes and queues as people see them: rows of a picture become plain dicts, as models.py has them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from batuta.api.parts import NodeFacts
from batuta.api.picture import Picture
from batuta.core.cluster import Placement
from batuta.core.expected import ExpectedWork, SizeChoice
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import JobTable
from batuta.core.plan import Decision
from batuta.core.progress import Progress
from batuta.core.wish import Wish
from batuta.core.world import PastJob

Shown: TypeAlias = dict[str, Any]

_WISHES = tuple({Wish.EVICT: "run", Wish.TRY: "run"}.get(wish, wish.name.lower()) for wish in Wish)
_WISH, _RESTARTS = JobTable.I["wish"], JobTable.I["restarts"]
_FIRST, _REMAINING, _RATE, _ANCHOR = (
    JobTable.F[name] for name in ("first_start_s", "remaining_s", "rate", "anchor_s")
)
_ANY = "any"
_REMEMBERED = 5_000
_over: dict[JobId, tuple[PastJob, Shown]] = {}


def view_job(picture: Picture, job: JobId, now_s: float) -> Shown | None:
    """A job, alive or over; None when it is not known."""
    row = picture.rows.get(job)
    if row is not None:
        return view_living(picture, row, now_s)
    past = picture.past_by_id.get(job)
    return None if past is None else view_past(past)


def view_living(picture: Picture, row: int, now_s: float) -> Shown:
    still = picture.shown.get(row)
    if still is None:
        # Only three things change with time alone; the rest is worked out once for a picture.
        still = picture.shown[row] = _view_still(picture, row)
    started_s, submitted_s = still["started_s"], still["submitted_s"]
    return {
        **still,
        "eta_s": _eta_s(picture, row, now_s),
        "duration_s": None if started_s is None else max(0.0, now_s - started_s),
        "waited_s": max(0.0, (now_s if started_s is None else started_s) - submitted_s),
    }


def _view_still(picture: Picture, row: int) -> Shown:
    job, placement = picture.jobs[row], picture.placements[row]
    wish, restarts = picture.ints[(_WISH, _RESTARTS), row].tolist()
    return {
        **_request(job, picture.states[row], _WISHES[wish]),
        "gpus": _gpus(job, placement, _type_of(picture, job, placement)),
        "placement": _placement(placement),
        "progress": view_progress(picture.progress.get(job.id)),
        "submitted_s": job.submit_s,
        "started_s": _known(float(picture.floats[_FIRST, row])),
        "ended_s": None,
        "restarts": restarts,
        "exit_code": None,
        "detail": "",
        "reason": view_decision(picture.decision_on(job.id)),
    }


def view_past(past: PastJob) -> Shown:
    """A job that is over never changes, so it is worked out once as long as it is looked at."""
    shown = _over.get(past.job.id)
    if shown is None or shown[0] is not past:
        if len(_over) >= _REMEMBERED:
            _over.clear()
        shown = _over[past.job.id] = (past, _view_past(past))
    return shown[1]


def _view_past(past: PastJob) -> Shown:
    job = past.job
    started_s = _known(past.first_start_s)
    return {
        **_request(job, past.state, "cancel" if past.state is JobState.CANCELLED else "run"),
        "gpus": _gpus(job, None, _accepted(job)),
        "placement": [],
        "progress": view_progress(past.progress),
        "eta_s": None,
        "submitted_s": job.submit_s,
        "started_s": started_s,
        "ended_s": past.end_s,
        "duration_s": None if started_s is None else max(0.0, past.end_s - started_s),
        "waited_s": max(0.0, (past.end_s if started_s is None else started_s) - job.submit_s),
        "restarts": past.restarts,
        "exit_code": past.exit_code,
        "detail": past.detail,
        "reason": None,
    }


def view_unborn(job: Job) -> Shown:
    """What a submit would make."""
    return _view_past(PastJob(job, JobState.PENDING, math.nan, job.submit_s, 0.0, 0)) | {"ended_s": None}


def view_decision(decision: Decision | None) -> Shown | None:
    if decision is None:
        return None
    return {"code": decision.reason.name, "sentence": str(decision), "evidence": dict(decision.evidence)}


def view_progress(progress: Progress | None) -> Shown | None:
    if progress is None:
        return None
    return {name: getattr(progress, name) for name in Progress.__slots__}


def _request(job: Job, state: JobState, wish: str) -> Shown:
    return {
        "id": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "kind": job.kind.value,
        "priority": job.priority,
        "state": state.value,
        "wish": wish,
        "expected": _expected(job.expected),
        "size_choice": _size_choice(job.size_choice),
    }


def _expected(expected: ExpectedWork | None) -> Shown | None:
    if expected is None:
        return None
    return {
        "p10_s": expected.p10_s,
        "p50_s": expected.p50_s,
        "p90_s": expected.p90_s,
        "source": expected.source,
        "jobs": expected.jobs,
    }


def _size_choice(choice: SizeChoice | None) -> Shown | None:
    if choice is None:
        return None
    return {
        "gpus": choice.gpus,
        "best_gpus": choice.best_gpus,
        "speed_share": choice.speed_share,
        "jobs": choice.jobs,
        "sentence": choice.sentence,
    }


def _gpus(job: Job, placement: Placement | None, gpu_type: str) -> Shown:
    share = job.share
    return {
        "now": 0 if placement is None else placement.size,
        "wanted": job.size,
        "min": job.min,
        "max": job.max,
        "per_node": job.gpus_per_replica,
        "type": gpu_type,
        "share": None if share is None else view_share(share.memory_mib, share.compute_percent),
    }


def view_share(memory_mib: int, compute_percent: int) -> Shown:
    return {"memory_mib": memory_mib, "compute_percent": compute_percent}


def _type_of(picture: Picture, job: Job, placement: Placement | None) -> str:
    return _accepted(job) if placement is None else picture.node_types[placement.spans[0].node]


def _accepted(job: Job) -> str:
    return " or ".join(name for name, _ in job.gpu_types) or _ANY


def _placement(placement: Placement | None) -> list[Shown]:
    by_node: dict[str, list[int]] = defaultdict(list)
    for node, gpus in () if placement is None else placement.spans:
        by_node[node] += gpus
    return [{"node": node, "gpus": gpus} for node, gpus in by_node.items()]


def _eta_s(picture: Picture, row: int, now_s: float) -> float | None:
    """Seconds left as was foretold lately, or else as the job says at its present speed; None: unknown."""
    foretold_s = picture.foretold().get(picture.jobs[row].id)
    if foretold_s is not None:
        return max(0.0, foretold_s - now_s)
    progress = picture.progress.get(picture.jobs[row].id)
    if progress is None or progress.fraction is None or picture.states[row] is not JobState.RUNNING:
        return None
    remaining_s, rate, anchor_s = picture.floats[(_REMAINING, _RATE, _ANCHOR), row].tolist()
    return _known(max(0.0, remaining_s / rate - max(0.0, now_s - anchor_s))) if rate > 0 else None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------------------------------------------- nodes


def view_nodes(picture: Picture, facts: NodeFacts) -> list[Shown]:
    tenants = _tenants(picture)
    leaving = {picture.jobs[row].id for row in np.flatnonzero(picture.ints[_WISH]).tolist()}
    return [_view_node(picture, i, tenants, leaving, facts) for i in range(len(picture.nodes))]


def view_node(picture: Picture, name: str, facts: NodeFacts) -> Shown | None:
    return next((node for node in view_nodes(picture, facts) if node["name"] == name), None)


def _tenants(picture: Picture) -> Mapping[str, Mapping[int, list[Shown]]]:
    """By node and GPU: the jobs that are on it."""
    found: dict[str, dict[int, list[Shown]]] = defaultdict(lambda: defaultdict(list))
    for job, placement in zip(picture.jobs, picture.placements, strict=True):
        if placement is None:
            continue
        share = None if job.share is None else view_share(job.share.memory_mib, job.share.compute_percent)
        for node, gpus in placement.spans:
            for gpu in gpus:
                found[node][gpu].append({"id": job.id, "share": share})
    return found


def _view_node(
    picture: Picture,
    i: int,
    tenants: Mapping[str, Mapping[int, list[Shown]]],
    leaving: set[JobId],
    facts: NodeFacts,
) -> Shown:
    node = picture.nodes[i]
    own = tenants.get(node.name, {})
    utilisation = facts.utilisation(node.name)
    state = "ready"
    if picture.lost >> i & 1:
        state = "lost"
    elif picture.cordoned >> i & 1:
        drains = any(job["id"] in leaving for jobs in own.values() for job in jobs)
        state = "draining" if drains else "cordoned"
    return {
        "name": node.name,
        "state": state,
        "gpu_type": node.gpu_type,
        "gpu_memory_mib": node.gpu_memory_mib,
        "rack": node.rack,
        "labels": dict(node.labels),
        "address": facts.address(node.name),
        "gpus": [
            {
                "index": gpu,
                "healthy": bool(picture.healthy[i] >> gpu & 1),
                "jobs": own.get(gpu, []),
                "utilisation": utilisation.get(gpu),
            }
            for gpu in range(node.gpus)
        ],
    }


def count_gpus(picture: Picture) -> Shown:
    """All GPUs; those that work and have a job, or none; those of cordoned nodes that have none, which are
    not for the asking; those that do not work, or whose node is lost.
    """
    total = sum(node.gpus for node in picture.nodes)
    healthy = sum(mask.bit_count() for mask in picture.healthy)
    idle = [(mask & own).bit_count() for mask, own in zip(picture.free, picture.healthy, strict=True)]
    closed = sum(count for i, count in enumerate(idle) if picture.cordoned >> i & 1)
    return {
        "total": total,
        "used": healthy - sum(idle),
        "free": sum(idle) - closed,
        "cordoned": closed,
        "unhealthy": total - healthy,
    }
