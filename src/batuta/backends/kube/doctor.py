"""What `batuta doctor` checks in a cluster: the control plane, the nodes, the jobs and their pods.

Everything is fetched at once into a `ClusterSnapshot`; the checks work on it without further requests.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import read_time, read_whole
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.kinds import NODE, POD, Kind, Stored
from batuta.backends.kube.client.leader_election import LEASE, Lease
from batuta.backends.kube.kueue.kinds import WORKLOAD, KueueObject
from batuta.backends.kube.objects import Batch, Meta, Node, Pod, has_condition, read_usage
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.engine.soundness import Finding, error, named, note, ok, warning

DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment", Batch)
DAEMON_SET: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", Batch)
OURS: Final = "app.kubernetes.io/part-of=batuta"
COMPONENT: Final = "app.kubernetes.io/component"
VERSION: Final = "app.kubernetes.io/version"
_NODE_LEASES: Final = "kube-node-lease"
_PAGE: Final = 500
_INSTALL = "batuta install --apply"
_LEASE_S = 15
SILENT_AFTER_S = 60.0  # a kubelet renews its Lease every 10 s
STALE_AFTER_S = 120.0  # an agent reports every 30 s, and after 90 s the binder does not believe it any more
_PRESSURES = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "processes"}
STUCK_AFTER_S = 900.0  # images take minutes to come
HALF_AFTER_S = 360.0  # a gang of which some have a place and some have not: its reservations are freed after 300 s
GONE_AFTER_S = 300.0  # pods of a job that is over, or that are told to end, have this long
_LIVE = ("Pending", "Running")
_OVER = ("SUCCEEDED", "FAILED", "FAILED_SETUP", "CANCELLED")
_MOST = 10
_T = TypeVar("_T", bound=Stored)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster at one moment. None where the user may not look; empty where there is nothing."""

    asked_s: float
    answered_s: float  # when its time was asked for and told, by our own clock
    server_s: float | None  # its time then, to the second
    deployments: Sequence[Batch] | None = ()
    daemon_sets: Sequence[Batch] | None = ()
    leases: Sequence[Lease] | None = ()  # of the operators' namespaces
    node_leases: Sequence[Lease] | None = ()
    nodes: Sequence[Node] | None = ()
    pods: Sequence[Pod] | None = ()  # of Batuta's jobs
    jobs: Sequence[UnifiedJob] | None = ()
    has_definition: bool = True
    workloads: Sequence[KueueObject] | None = ()  # Kueue's, where the cluster has them
    refused: tuple[str, ...] = field(default=())  # kinds that the user may not list

    @property
    def now_s(self) -> float:
        """By the clock that wrote all times in it."""
        return self.answered_s if self.server_s is None else self.server_s


async def take_snapshot(api: Api, namespace: str = "") -> ClusterSnapshot:
    """Everything; jobs and their pods of one namespace, or of all. Raises ApiError without an answer."""
    asked_s = time.time()
    await api.transport.request("version", "GET", "/version")
    answered_s, server_s = time.time(), None
    with suppress(ValueError, TypeError):
        server_s = parsedate_to_datetime(api.transport.date).timestamp()
    lister = _Lister(api)
    deployments = await lister.all(DEPLOYMENT, labels=OURS)
    homes = {one.metadata.namespace for one in deployments or ()}
    leases = [await lister.all(LEASE, home) for home in sorted(homes)]
    jobs = await lister.all(UNIFIED_JOB, namespace)
    return ClusterSnapshot(
        asked_s,
        answered_s,
        server_s,
        deployments,
        await lister.all(DAEMON_SET, labels=OURS),
        None if None in leases else [lease for listed in leases for lease in listed or ()],
        await lister.all(LEASE, _NODE_LEASES),
        await lister.all(NODE),
        await lister.all(POD, namespace, labels=names.JOB_NAME),
        jobs,
        str(UNIFIED_JOB) not in lister.missing,
        await _workloads(api, lister, namespace),
        tuple(lister.refused),
    )


async def _workloads(api: Api, lister: _Lister, namespace: str) -> Sequence[KueueObject] | None:
    served = await api.discover(WORKLOAD.group)
    version = served.version_of(WORKLOAD.plural)
    if not version:
        return ()
    kind = Kind(WORKLOAD.group, version, WORKLOAD.plural, WORKLOAD.name, WORKLOAD.type)
    return await lister.all(kind, namespace)


@dataclass(slots=True)
class _Lister:
    """Lists what there is, and notes what may not be seen or is not known here."""

    api: Api
    refused: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    async def all(self, kind: Kind[_T], namespace: str = "", labels: str = "") -> Sequence[_T] | None:
        try:
            return (await self.api.list(kind, namespace, labels=labels, page=_PAGE)).items
        except Forbidden:
            if str(kind) not in self.refused:
                self.refused.append(str(kind))
            return None
        except NotFound:
            self.missing.append(str(kind))
            return ()


def check_control_plane(snapshot: ClusterSnapshot, version: str) -> Iterator[Finding]:
    """Definitions, operators, who leads, agents. `version` is the client's."""
    if not snapshot.has_definition:
        yield error("definitions", "this cluster does not know UnifiedJobs", _INSTALL)
    elif snapshot.jobs is not None:
        yield ok("definitions", "UnifiedJobs are known")
    if snapshot.deployments is None:
        return  # the rights that are missing are told once, for all
    operators = [one for one in snapshot.deployments if one.metadata.labels.get(COMPONENT) == "operator"]
    if not operators:
        yield error("operator", "none is installed: nothing is scheduled", _INSTALL)
    for one in operators:
        yield _operator(one)
        yield _version(one, version)
        yield from _lease(snapshot, one)
    for one in snapshot.daemon_sets or ():
        yield _daemons(one)
    daemons = {one.metadata.labels.get(COMPONENT) for one in snapshot.daemon_sets or ()}
    if operators and snapshot.daemon_sets is not None and "agent" not in daemons:
        yield note("agent", "none: how busy GPUs are is not known", "set agent.enabled in the chart's values")


def _operator(one: Batch) -> Finding:
    name, home = one.metadata.name, one.metadata.namespace
    wanted, ready = int(one.spec.get("replicas", 1)), int(one.status.get("readyReplicas", 0))
    look = f"kubectl -n {home} describe deployment {name}; kubectl -n {home} logs deployment/{name}"
    if wanted == 0:
        return warning("operator", f"{home}/{name} is parked with 0 replicas", "raise replicas in the values")
    if ready == 0:
        return error("operator", f"{home}/{name}: none of {wanted} is ready", look)
    if ready < wanted:
        return warning("operator", f"{home}/{name}: {ready} of {wanted} are ready", look)
    return ok("operator", f"{home}/{name}: {ready} of {wanted} ready")


def _version(one: Batch, version: str) -> Finding:
    theirs = one.metadata.labels.get(VERSION, "")
    if not theirs or theirs == version:
        return ok("version", f"{version}, as the operator's" if theirs else "the operator does not tell its own")
    return warning(
        "version",
        f"this is {version}, the operator's is {theirs}",
        f"pip install batuta=={theirs}, or install this version there",
    )


def _lease(snapshot: ClusterSnapshot, one: Batch) -> Iterator[Finding]:
    """The Lease has the name of the Deployment. One that is not renewed means that no operator schedules."""
    if snapshot.leases is None:
        return
    name, home = one.metadata.name, one.metadata.namespace
    where = f"kubectl -n {home} get lease {name} -o yaml"
    found = [lease for lease in snapshot.leases if (lease.metadata.namespace, lease.metadata.name) == (home, name)]
    if not found or not found[0].spec.holder_identity:
        yield error("leader", f"{home}/{name}: no operator leads", f"see why its pods do not: {where}")
        return
    spec = found[0].spec
    age_s = snapshot.now_s - (read_time(spec.renew_time) or 0.0)
    lasts_s = spec.lease_duration_seconds or _LEASE_S
    if age_s > lasts_s + 1:  # times of the API server are told to the second
        yield error(
            "leader",
            f"the Lease of {spec.holder_identity} lasts {lasts_s} s and was renewed {age_s:.0f} s ago",
            f"another takes over once a replica runs: {where}",
        )
    elif age_s < -lasts_s:
        yield warning("leader", f"the clock of {spec.holder_identity} is {-age_s:.0f} s ahead", "synchronise it (NTP)")
    else:
        yield ok("leader", f"{spec.holder_identity}, renewed {max(0.0, age_s):.0f} s ago")


def _daemons(one: Batch) -> Finding:
    """An agent or a device plugin: one on each node that should have it."""
    check = one.metadata.labels.get(COMPONENT, "") or one.metadata.name
    wanted, ready = (int(one.status.get(key, 0)) for key in ("desiredNumberScheduled", "numberReady"))
    name = f"{one.metadata.namespace}/{one.metadata.name}"
    if wanted == 0:
        return warning(check, f"{name} matches no node", "see nodeSelector in its values")
    if ready < wanted:
        fix = f"kubectl -n {one.metadata.namespace} describe daemonset {one.metadata.name}"
        return warning(check, f"{name}: {ready} of {wanted} are ready", fix)
    return ok(check, f"{name}: on {ready} nodes")


def check_nodes(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    """All of them; those without GPUs only where they do not answer."""
    if snapshot.nodes is None:
        return
    with_gpus = [node for node in snapshot.nodes if _gpus(node)]
    if not with_gpus:
        yield error("nodes", f"none of {len(snapshot.nodes)} nodes has GPUs to give", "see the GPU device plugin")
    silent = _silent(snapshot)
    if silent:
        told = [f"{name} ({age_s:.0f} s)" for name, age_s in silent.items()]
        yield error("heartbeats", f"{len(silent)} nodes do not answer: {named(told)}", "see their kubelets and network")
    elif snapshot.nodes:
        yield ok("heartbeats", f"all {len(snapshot.nodes)} nodes answer")
    yield from _pressed(snapshot.nodes)
    yield from _unready(snapshot.nodes, set(silent))
    yield from _agents(snapshot, with_gpus)
    if with_gpus and not silent:
        total = sum(_gpus(node) for node in with_gpus)
        yield ok("nodes", f"{len(with_gpus)} with {total} GPUs")


def _gpus(node: Node) -> int:
    for resource in names.GPU_RESOURCES:
        if count := read_whole(node.status.capacity.get(resource)):
            return count
    return 0


def _silent(snapshot: ClusterSnapshot) -> dict[str, float]:
    """Nodes that have not been heard of, and for how long."""
    found: dict[str, float] = {}
    known = {node.metadata.name for node in snapshot.nodes or ()}
    for lease in snapshot.node_leases or ():
        renewed_s = read_time(lease.spec.renew_time)
        if lease.metadata.name in known and renewed_s and snapshot.now_s - renewed_s > SILENT_AFTER_S:
            found[lease.metadata.name] = snapshot.now_s - renewed_s
    for node in snapshot.nodes or ():
        for condition in node.status.conditions:
            if condition.type == "Ready" and condition.status == "Unknown":
                since_s = read_time(condition.last_transition_time) or snapshot.now_s
                found.setdefault(node.metadata.name, snapshot.now_s - since_s)
    return found


def _pressed(nodes: Sequence[Node]) -> Iterator[Finding]:
    for kind, what in _PRESSURES.items():
        full = [
            node.metadata.name
            for node in nodes
            if any(one.type == kind and one.status == "True" for one in node.status.conditions)
        ]
        if full:
            yield warning(
                f"node {what}",
                f"{len(full)} nodes have too little: {named(full)}",
                "make room there: pods are evicted, and none starts" if what == "disk" else "see what uses it up",
            )


def _unready(nodes: Sequence[Node], silent: set[str]) -> Iterator[Finding]:
    unready = [
        f"{node.metadata.name} ({one.reason or one.message or one.status})"
        for node in nodes
        if node.metadata.name not in silent
        for one in node.status.conditions
        if one.type == "Ready" and one.status not in ("True", "Unknown")
    ]
    if unready:
        yield warning("nodes", f"{len(unready)} are not ready: {named(unready)}", "kubectl describe node NAME")
    ill = [
        f"{node.metadata.name} ({taint.value or 'unhealthy'})"
        for node in nodes
        for taint in node.spec.taints
        if taint.key == names.UNHEALTHY
    ]
    if ill:
        yield warning("node health", f"{len(ill)} are out of service: {named(ill)}", "batuta nodes")


def _agents(snapshot: ClusterSnapshot, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Agents that have reported once, and do so no longer."""
    stale, reporting = list[str](), 0
    for node in nodes:
        if not node.metadata.annotations.get(names.UTILISATION):
            continue
        reporting += 1
        report = read_usage(node)
        if report is None:
            stale.append(f"{node.metadata.name} (cannot be read)")
            continue
        age_s = snapshot.now_s - report.time
        if age_s > STALE_AFTER_S:
            stale.append(f"{node.metadata.name} ({age_s:.0f} s ago)")
        elif age_s < -STALE_AFTER_S:
            stale.append(f"{node.metadata.name} (its clock is {-age_s:.0f} s ahead)")
    if stale:
        fix = "see the agent there: kubectl get pods -A -o wide -l app.kubernetes.io/component=agent"
        yield warning("agent reports", f"{len(stale)} of {reporting} are old: {named(stale)}", fix)
    elif reporting:
        yield ok("agent reports", f"{reporting} nodes report")
        if reporting < len(nodes):
            fix = "see agent.nodeSelector and agent.tolerations in the chart's values"
            yield note("agent reports", f"{len(nodes) - reporting} nodes with GPUs have no agent", fix)


def check_jobs(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    if snapshot.pods is not None:
        yield from _first(list(_stuck(snapshot)), "stuck gangs", "none: every gang runs, or is about to")
    if snapshot.pods is not None and snapshot.jobs is not None:
        yield _leaked(snapshot)
        yield _orphans(snapshot)


def _first(found: list[Finding], check: str, well: str) -> Iterator[Finding]:
    yield from found[:_MOST]
    if len(found) > _MOST:
        yield warning(check, f"{len(found) - _MOST} more", "batuta queue")
    if not found:
        yield ok(check, well)


def _stuck(snapshot: ClusterSnapshot) -> Iterator[Finding]:
    gangs: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods or ():
        if pod.status.phase in _LIVE:
            gangs[_job_of(pod)].append(pod)
    for key, pods in sorted(gangs.items()):
        namespace, _, job = key.partition("/")
        look = f"batuta -n {namespace} explain {job}; kubectl -n {namespace} get pods -l {names.JOB_NAME}={job}"
        if leaving := _older(snapshot, pods, GONE_AFTER_S, lambda meta: meta.deletion_timestamp):
            yield warning("stuck gangs", f"{key}: pods do not end: {named(leaving)}", look)
        bound = [pod for pod in pods if pod.spec.node_name]
        waiting = [pod for pod in pods if not pod.spec.node_name]
        if bound and _older(snapshot, waiting, HALF_AFTER_S):
            yield warning(
                "stuck gangs", f"{key}: {len(bound)} of {len(pods)} pods have a place, and the others get none", look
            )
        if slow := _older(snapshot, [pod for pod in bound if pod.status.phase == "Pending"], STUCK_AFTER_S):
            yield warning("stuck gangs", f"{key}: {len(slow)} pods have a place and do not start", look)


def _older(
    snapshot: ClusterSnapshot,
    pods: Sequence[Pod],
    than_s: float,
    since: Callable[[Meta], str] = lambda meta: meta.creation_timestamp,
) -> list[str]:
    """Names of pods that were made, or told to end, longer ago than this."""
    times = ((pod.metadata.name, read_time(since(pod.metadata))) for pod in pods)
    return [name for name, since_s in times if since_s is not None and snapshot.now_s - since_s > than_s]


def _job_of(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.labels[names.JOB_NAME]}"


def _leaked(snapshot: ClusterSnapshot) -> Finding:
    """Quota that is held by jobs that are gone: their pods, and their Workloads in Kueue."""
    known = {uj.id for uj in snapshot.jobs or ()}
    uids = {uj.metadata.uid for uj in snapshot.jobs or ()}
    pods = [
        f"pod {pod.metadata.namespace}/{pod.metadata.name}"
        for pod in snapshot.pods or ()
        if pod.status.phase in _LIVE
        and _job_of(pod) not in known
        and any(owner.kind == names.KIND for owner in pod.metadata.owner_references)
    ]
    workloads = [
        f"workload {one.metadata.namespace}/{one.metadata.name}"
        for one in snapshot.workloads or ()
        if has_condition(one.status, "QuotaReserved")
        and any(owner.kind == names.KIND and owner.uid not in uids for owner in one.metadata.owner_references)
    ]
    if ghosts := [*pods, *workloads]:
        fix = "kubectl delete what is named here; see whether the cluster's garbage collector runs"
        return error("leaked quota", f"{len(ghosts)} belong to jobs that are gone: {named(ghosts)}", fix)
    return ok("leaked quota", "none: all quota in use belongs to jobs that are there")


def _orphans(snapshot: ClusterSnapshot) -> Finding:
    """Pods that keep their GPUs although their job is over."""
    over = {uj.id: read_time(uj.status.completion_time) for uj in snapshot.jobs or () if uj.status.state in _OVER}
    orphans = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in snapshot.pods or ()
        if pod.spec.node_name
        and pod.status.phase in _LIVE
        and (ended_s := over.get(_job_of(pod)))
        and snapshot.now_s - ended_s > GONE_AFTER_S
    ]
    if orphans:
        return error(
            "orphan reservations",
            f"{len(orphans)} pods hold their places for jobs that are over: {named(orphans)}",
            "kubectl delete pod NAME; see the operator's log for why it did not",
        )
    return ok("orphan reservations", "none: no pod outlives its job")
