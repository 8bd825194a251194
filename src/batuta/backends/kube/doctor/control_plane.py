"""The operator and what runs beside it: is it there, does it lead, are its agents."""

from __future__ import annotations

from collections.abc import Iterator

from batuta.backends.kube.doctor.sight import COMPONENT, VERSION, Sight, seconds
from batuta.backends.kube.objects import Batch
from batuta.engine.finding import Finding, error, note, ok, warning

_INSTALL = "batuta install --apply"
_LEASE_S = 15


def check_control_plane(sight: Sight, version: str) -> Iterator[Finding]:
    """Definitions, operators, who leads, agents. `version` is the client's."""
    if not sight.has_definition:
        yield error("definitions", "this cluster does not know UnifiedJobs", _INSTALL)
    elif sight.jobs is not None:
        yield ok("definitions", "UnifiedJobs are known")
    if sight.deployments is None:
        return  # the rights that are missing are told once, for all
    operators = [one for one in sight.deployments if one.metadata.labels.get(COMPONENT) == "operator"]
    if not operators:
        yield error("operator", "none is installed: nothing is scheduled", _INSTALL)
    for one in operators:
        yield _operator(one)
        yield _version(one, version)
        yield from _lease(sight, one)
    for one in sight.daemon_sets or ():
        yield _daemons(one)
    if operators and sight.daemon_sets is not None and not _has(sight, "agent"):
        yield note("agent", "none: how busy GPUs are is not known", "set agent.enabled in the chart's values")


def _has(sight: Sight, component: str) -> bool:
    return any(one.metadata.labels.get(COMPONENT) == component for one in sight.daemon_sets or ())


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
        return ok(
            "version", f"{version}, as the operator's" if theirs else "the operator does not tell its own"
        )
    return warning(
        "version",
        f"this is {version}, the operator's is {theirs}",
        f"pip install batuta=={theirs}, or install this version there",
    )


def _lease(sight: Sight, one: Batch) -> Iterator[Finding]:
    """The Lease has the name of the Deployment. One that nobody renews means that nobody decides."""
    if sight.leases is None:
        return
    name, home = one.metadata.name, one.metadata.namespace
    where = f"kubectl -n {home} get lease {name} -o yaml"
    found = [
        lease for lease in sight.leases if (lease.metadata.namespace, lease.metadata.name) == (home, name)
    ]
    if not found or not found[0].spec.holder_identity:
        yield error("leader", f"{home}/{name}: nobody leads", f"see why its pods do not: {where}")
        return
    spec = found[0].spec
    age_s = sight.now_s - (seconds(spec.renew_time) or 0.0)
    lasts_s = spec.lease_duration_seconds or _LEASE_S
    if age_s > lasts_s + 1:  # times of the API server are told to the second
        yield error(
            "leader",
            f"the Lease of {spec.holder_identity} lasts {lasts_s} s and was renewed {age_s:.0f} s ago",
            f"another takes over once a replica runs: {where}",
        )
    elif age_s < -lasts_s:
        yield warning(
            "leader", f"the clock of {spec.holder_identity} is {-age_s:.0f} s ahead", "synchronise it (NTP)"
        )
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
