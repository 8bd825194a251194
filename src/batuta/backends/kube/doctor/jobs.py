"""The jobs of a cluster and their pods: gangs that do not get on, and GPUs that are held for nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from batuta.backends.kube import names
from batuta.backends.kube.doctor.sight import Sight, seconds
from batuta.backends.kube.objects import Pod
from batuta.engine.finding import Finding, error, named, ok, warning

STUCK_AFTER_S = 900.0
"""Images take minutes to come."""
HALF_AFTER_S = 360.0
"""A gang of which some have a place and some have not: its reservations are freed after 300 s."""
GONE_AFTER_S = 300.0
"""Pods of a job that is over, or that are told to end, have this long."""
_LIVE = ("Pending", "Running")
_OVER = ("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED")
_MOST = 10


def check_jobs(sight: Sight) -> Iterator[Finding]:
    """All of them."""
    if sight.pods is not None:
        yield from _first(list(_stuck(sight)), "stuck gangs", "none: every gang runs, or is about to")
    if sight.jobs is None:
        return
    if sight.pods is not None:
        yield _leaked(sight)
        yield _orphans(sight)


def _first(found: list[Finding], check: str, well: str) -> Iterator[Finding]:
    yield from found[:_MOST]
    if len(found) > _MOST:
        yield warning(check, f"{len(found) - _MOST} more", "batuta queue")
    if not found:
        yield ok(check, well)


def _stuck(sight: Sight) -> Iterator[Finding]:
    gangs: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in sight.pods or ():
        if pod.status.phase in _LIVE:
            gangs[pod.metadata.namespace, pod.metadata.labels[names.JOB_NAME]].append(pod)
    for (namespace, job), pods in sorted(gangs.items()):
        look = (
            f"batuta -n {namespace} explain {job}; kubectl -n {namespace} get pods -l {names.JOB_NAME}={job}"
        )
        leaving = _older(sight, pods, "deletion", GONE_AFTER_S)
        if leaving:
            yield warning("stuck gangs", f"{namespace}/{job}: pods do not end: {named(leaving)}", look)
        bound = [pod for pod in pods if pod.spec.node_name]
        waiting = [pod for pod in pods if not pod.spec.node_name]
        if bound and _older(sight, waiting, "creation", HALF_AFTER_S):
            yield warning(
                "stuck gangs",
                f"{namespace}/{job}: {len(bound)} of {len(pods)} pods have a place, and the others get none",
                look,
            )
        slow = _older(
            sight, [pod for pod in bound if pod.status.phase == "Pending"], "creation", STUCK_AFTER_S
        )
        if slow:
            yield warning(
                "stuck gangs", f"{namespace}/{job}: {len(slow)} pods have a place and do not start", look
            )


def _older(sight: Sight, pods: Sequence[Pod], what: str, than_s: float) -> list[str]:
    """Names of pods that were made, or told to end, longer ago than this."""
    found = []
    for pod in pods:
        meta = pod.metadata
        since_s = seconds(meta.deletion_timestamp if what == "deletion" else meta.creation_timestamp)
        if since_s is not None and sight.now_s - since_s > than_s:
            found.append(meta.name)
    return found


def _leaked(sight: Sight) -> Finding:
    """Quota that is held by jobs that are gone: their pods, and their Workloads in Kueue."""
    known = {uj.id for uj in sight.jobs or ()}
    uids = {uj.metadata.uid for uj in sight.jobs or ()}
    pods = [
        f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        for pod in sight.pods or ()
        if pod.status.phase in _LIVE
        and f"{pod.metadata.namespace}/{pod.metadata.labels[names.JOB_NAME]}" not in known
        and any(owner.kind == names.KIND for owner in pod.metadata.owner_references)
    ]
    workloads = [
        f"workload {one.metadata.namespace}/{one.metadata.name}"
        for one in sight.workloads or ()
        if _is_reserved(one.status)
        and any(owner.kind == names.KIND and owner.uid not in uids for owner in one.metadata.owner_references)
    ]
    ghosts = [*pods, *workloads]
    if ghosts:
        fix = "kubectl delete what is named here; see whether the cluster's garbage collector runs"
        return error("leaked quota", f"{len(ghosts)} belong to jobs that are gone: {named(ghosts)}", fix)
    return ok("leaked quota", "none: all quota in use belongs to jobs that are there")


def _is_reserved(status: dict[str, object]) -> bool:
    conditions = status.get("conditions")
    return isinstance(conditions, list) and any(
        isinstance(one, dict) and one.get("type") == "QuotaReserved" and one.get("status") == "True"
        for one in conditions
    )


def _orphans(sight: Sight) -> Finding:
    """Pods that keep their GPUs although their job is over."""
    over = {uj.id: seconds(uj.status.completion_time) for uj in sight.jobs or () if uj.status.state in _OVER}
    orphans = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in sight.pods or ()
        if pod.spec.node_name
        and pod.status.phase in _LIVE
        and (ended_s := over.get(f"{pod.metadata.namespace}/{pod.metadata.labels[names.JOB_NAME]}"))
        and sight.now_s - ended_s > GONE_AFTER_S
    ]
    if orphans:
        return error(
            "orphan reservations",
            f"{len(orphans)} pods hold their places for jobs that are over: {named(orphans)}",
            "kubectl delete pod NAME; see the operator's log for why it did not",
        )
    return ok("orphan reservations", "none: no pod outlives its job")
