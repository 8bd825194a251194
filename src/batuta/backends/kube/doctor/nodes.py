"""The nodes of a cluster: which do not answer, have no room, or no agent that reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from batuta.backends.kube import names
from batuta.backends.kube.doctor.sight import Sight, seconds
from batuta.backends.kube.objects import Node
from batuta.engine.finding import Finding, error, named, note, ok, warning

SILENT_AFTER_S = 60.0
"""A kubelet renews its Lease every 10 s."""
STALE_AFTER_S = 120.0
"""An agent reports every 30 s, and after 90 s the binder does not believe it any more."""
_PRESSURES = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "processes"}


class _Report(msgspec.Struct):
    """The part of an agent's report that is looked at."""

    time: float = 0.0


def check_nodes(sight: Sight) -> Iterator[Finding]:
    """All of them; those without GPUs only where they do not answer."""
    if sight.nodes is None:
        return
    with_gpus = [node for node in sight.nodes if _gpus(node)]
    if not with_gpus:
        yield error(
            "nodes", f"none of {len(sight.nodes)} nodes has GPUs to give", "see the GPU device plugin"
        )
    silent = _silent(sight)
    if silent:
        told = [f"{name} ({age_s:.0f} s)" for name, age_s in silent.items()]
        yield error(
            "heartbeats",
            f"{len(silent)} nodes do not answer: {named(told)}",
            "see their kubelets and network",
        )
    elif sight.nodes:
        yield ok("heartbeats", f"all {len(sight.nodes)} nodes answer")
    yield from _pressed(sight.nodes)
    yield from _unready(sight.nodes, set(silent))
    yield from _agents(sight, with_gpus)
    if with_gpus and not silent:
        total = sum(_gpus(node) for node in with_gpus)
        yield ok("nodes", f"{len(with_gpus)} with {total} GPUs")


def _gpus(node: Node) -> int:
    for resource in names.GPU_RESOURCES:
        text = node.status.capacity.get(resource, "")
        if text.isdecimal() and int(text):
            return int(text)
    return 0


def _silent(sight: Sight) -> dict[str, float]:
    """Nodes that have not been heard of, and for how long."""
    found: dict[str, float] = {}
    known = {node.metadata.name for node in sight.nodes or ()}
    for lease in sight.node_leases or ():
        renewed_s = seconds(lease.spec.renew_time)
        if lease.metadata.name in known and renewed_s and sight.now_s - renewed_s > SILENT_AFTER_S:
            found[lease.metadata.name] = sight.now_s - renewed_s
    for node in sight.nodes or ():
        for condition in node.status.conditions:
            if condition.type == "Ready" and condition.status == "Unknown":
                since_s = seconds(condition.last_transition_time) or sight.now_s
                found.setdefault(node.metadata.name, sight.now_s - since_s)
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
                "make room there: pods are evicted, and none starts"
                if what == "disk"
                else "see what uses it up",
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
        yield warning(
            "nodes", f"{len(unready)} are not ready: {named(unready)}", "kubectl describe node NAME"
        )
    ill = [
        f"{node.metadata.name} ({taint.value or 'unhealthy'})"
        for node in nodes
        for taint in node.spec.taints
        if taint.key == names.UNHEALTHY
    ]
    if ill:
        yield warning("node health", f"{len(ill)} are out of service: {named(ill)}", "batuta nodes")


def _agents(sight: Sight, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Agents that have reported once, and do so no longer."""
    stale, reporting = list[str](), 0
    for node in nodes:
        text = node.metadata.annotations.get(names.UTILISATION, "")
        if not text:
            continue
        reporting += 1
        try:
            age_s = sight.now_s - msgspec.json.decode(text, type=_Report).time
        except msgspec.MsgspecError:
            stale.append(f"{node.metadata.name} (cannot be read)")
            continue
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
