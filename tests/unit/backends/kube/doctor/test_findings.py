"""What is told of a cluster that was looked at: one fault at a time, as the API server would show it."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.client.leader_election import Lease
from batuta.backends.kube.doctor import ClusterSnapshot
from batuta.backends.kube.kueue.kinds import KueueObject
from batuta.backends.kube.objects import Batch, Node, Pod
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.bootstrap.kube import findings_of
from batuta.engine.soundness import Finding, Severity

NOW_S = 1_800_000_000.0


def at(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW_S - seconds_ago, UTC).isoformat().replace("+00:00", "Z")


def labelled(name: str, component: str, **more: Any) -> Batch:
    labels = {
        "app.kubernetes.io/part-of": "batuta",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": "0.1.0",
    }
    meta = {"name": name, "namespace": "batuta-system", "labels": labels}
    return msgspec.convert({"metadata": meta} | more, Batch)


def deployment(replicas: int = 2, ready: int = 2) -> Batch:
    return labelled("batuta-operator", "operator", spec={"replicas": replicas}, status={"readyReplicas": ready})


def agents(wanted: int = 1, ready: int = 1) -> Batch:
    return labelled("batuta-agent", "agent", status={"desiredNumberScheduled": wanted, "numberReady": ready})


def lease(
    name: str = "batuta-operator",
    renewed_ago_s: float = 2.0,
    holder: str = "pod-a",
    home: str = "batuta-system",
) -> Lease:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at(renewed_ago_s)}
    return msgspec.convert({"metadata": {"name": name, "namespace": home}, "spec": spec}, Lease)


def node(name: str = "n1", gpus: int = 8, ready: str = "True", reported_ago_s: float = 10.0, **pressed: str) -> Node:
    conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": at(300), "reason": "Why"}]
    conditions += [{"type": kind, "status": status} for kind, status in pressed.items()]
    report = f'{{"time": {NOW_S - reported_ago_s}, "gpus": []}}'
    return msgspec.convert(
        {
            "metadata": {"name": name, "annotations": {names.UTILISATION: report}},
            "status": {"capacity": {"nvidia.com/gpu": str(gpus)}, "conditions": conditions},
        },
        Node,
    )


def job(name: str = "train", state: str = "RUNNING", ended_ago_s: float | None = None) -> UnifiedJob:
    status: dict[str, Any] = {"state": state}
    if ended_ago_s is not None:
        status["completionTime"] = at(ended_ago_s)
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return msgspec.convert({"metadata": meta, "spec": {"jobType": "Pod", "template": {}}, "status": status}, UnifiedJob)


def pod(
    name: str,
    of: str = "train",
    phase: str = "Running",
    where: str = "n1",
    made_ago_s: float = 3600.0,
    ends_ago_s: float | None = None,
) -> Pod:
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "team",
        "labels": {names.JOB_NAME: of},
        "creationTimestamp": at(made_ago_s),
        "ownerReferences": [{"kind": names.KIND, "name": of, "uid": f"uid-{of}"}],
    }
    if ends_ago_s is not None:
        meta["deletionTimestamp"] = at(ends_ago_s)
    return msgspec.convert({"metadata": meta, "spec": {"nodeName": where}, "status": {"phase": phase}}, Pod)


def snapshot(**changes: Any) -> ClusterSnapshot:
    """A cluster that is well, but for what is said."""
    well: dict[str, Any] = {
        "asked_s": NOW_S + 0.2,
        "answered_s": NOW_S + 0.3,
        "server_s": NOW_S,
        "deployments": [deployment()],
        "daemon_sets": [agents()],
        "leases": [lease()],
        "node_leases": [lease("n1", home="kube-node-lease")],
        "nodes": [node()],
        "pods": [pod("train-0"), pod("train-1")],
        "jobs": [job()],
    }
    return ClusterSnapshot(**(well | changes))


def asked(when_s: float) -> dict[str, float]:
    """By the clock of whoever asks."""
    return {"asked_s": when_s, "answered_s": when_s}


def told(**changes: Any) -> dict[str, list[Finding]]:
    """What is not well, by check."""
    found: dict[str, list[Finding]] = {}
    for finding in findings_of(snapshot(**changes), "0.1.0"):
        if finding.severity is not Severity.OK:
            found.setdefault(finding.check, []).append(finding)
    return found


def test_a_cluster_that_is_well():
    assert told() == {}


@pytest.mark.parametrize(
    ("changes", "check", "severity", "words"),
    [
        (asked(NOW_S + 90), "clock", "warning", "differs from this machine's by 89 s"),
        (asked(NOW_S - 90), "clock", "warning", "by 90 s"),
        ({"server_s": None}, "clock", "note", "does not tell"),
        (
            {"has_definition": False, "jobs": [], "pods": []},
            "definitions",
            "error",
            "does not know UnifiedJobs",
        ),
        ({"deployments": []}, "operator", "error", "none is installed"),
        ({"deployments": [deployment(2, 0)]}, "operator", "error", "none of 2 is ready"),
        ({"deployments": [deployment(2, 1)]}, "operator", "warning", "1 of 2 are ready"),
        ({"deployments": [deployment(0, 0)]}, "operator", "warning", "parked"),
        ({"leases": []}, "leader", "error", "no operator leads"),
        ({"leases": [lease(holder="")]}, "leader", "error", "no operator leads"),
        ({"leases": [lease(renewed_ago_s=100)]}, "leader", "error", "lasts 15 s and was renewed 100 s ago"),
        ({"leases": [lease(renewed_ago_s=-100)]}, "leader", "warning", "100 s ahead"),
        ({"daemon_sets": [agents(3, 1)]}, "agent", "warning", "1 of 3 are ready"),
        ({"daemon_sets": [agents(0, 0)]}, "agent", "warning", "matches no node"),
        ({"daemon_sets": []}, "agent", "note", "how busy GPUs are is not known"),
        ({"nodes": [node(gpus=0)]}, "nodes", "error", "none of 1 nodes has GPUs"),
        ({"nodes": [node(ready="Unknown")]}, "heartbeats", "error", "n1 (300 s)"),
        (
            {"node_leases": [lease("n1", 61, home="kube-node-lease")]},
            "heartbeats",
            "error",
            "1 nodes do not answer: n1 (61 s)",
        ),
        ({"nodes": [node(ready="False")]}, "nodes", "warning", "n1 (Why)"),
        ({"nodes": [node(DiskPressure="True")]}, "node disk", "warning", "1 nodes have too little: n1"),
        ({"nodes": [node(reported_ago_s=500)]}, "agent reports", "warning", "n1 (500 s ago)"),
        ({"nodes": [node(reported_ago_s=-500)]}, "agent reports", "warning", "500 s ahead"),
        (
            {"pods": [pod("train-0"), pod("train-1", where="", phase="Pending")]},
            "stuck gangs",
            "warning",
            "1 of 2 pods have a place",
        ),
        (
            {"pods": [pod("train-0", phase="Pending"), pod("train-1", phase="Pending")]},
            "stuck gangs",
            "warning",
            "2 pods have a place and do not start",
        ),
        ({"pods": [pod("train-0", ends_ago_s=1000)]}, "stuck gangs", "warning", "do not end: train-0"),
        ({"jobs": []}, "leaked quota", "error", "pod team/train-0, pod team/train-1"),
        ({"jobs": [job(state="FAILED", ended_ago_s=1000)]}, "orphan reservations", "error", "2 pods"),
        ({"refused": ("leases.coordination.k8s.io",)}, "rights", "note", "leases.coordination.k8s.io"),
    ],
)
def test_each_fault_is_told_with_its_fix(changes, check, severity, words):
    found = told(**changes)
    assert list(found) == [check]
    (finding,) = found[check]
    assert (finding.severity.value, words in finding.found) == (severity, True), finding
    assert finding.fix or severity == "note"


@pytest.mark.parametrize(
    "changes",
    [
        {"pods": [pod("train-0"), pod("train-1", where="", phase="Pending", made_ago_s=60)]},
        {"pods": [pod("train-0", phase="Pending", made_ago_s=60)]},
        {"pods": [pod("train-0", ends_ago_s=10)]},
        {"jobs": [job(state="SUCCEEDED", ended_ago_s=10)]},
        {"jobs": [job(state="SUCCEEDED", ended_ago_s=1000)], "pods": [pod("train-0", phase="Succeeded")]},
        {"jobs": [], "pods": [pod("train-0", phase="Failed")]},
        {"node_leases": [lease("gone", 1e6, home="kube-node-lease")]},
    ],
)
def test_what_takes_a_moment_is_no_fault(changes):
    assert told(**changes) == {}


def test_a_workload_of_a_job_that_is_gone_holds_quota():
    def workload(uid: str, reserved: str) -> KueueObject:
        owner = {"kind": names.KIND, "name": "train", "uid": uid}
        return msgspec.convert(
            {
                "metadata": {"name": f"w-{uid}", "namespace": "team", "ownerReferences": [owner]},
                "status": {"conditions": [{"type": "QuotaReserved", "status": reserved}]},
            },
            KueueObject,
        )

    found = told(workloads=[workload("uid-train", "True"), workload("other", "False"), workload("gone", "True")])
    (finding,) = found["leaked quota"]
    assert finding.found == "1 belong to jobs that are gone: workload team/w-gone"


def test_an_operator_of_another_version():
    findings = {one.check: one for one in findings_of(snapshot(), "0.2.0")}
    assert findings["version"].severity is Severity.WARNING
    assert "the operator's is 0.1.0" in findings["version"].found


def test_who_may_see_nothing_is_told_so_and_nothing_else():
    nothing = dict.fromkeys(
        ("deployments", "daemon_sets", "leases", "node_leases", "nodes", "pods", "jobs", "workloads")
    )
    found = told(**nothing, refused=("nodes", "pods"))
    assert list(found) == ["rights"]


def test_many_stuck_gangs_are_counted():
    pods = [pod(f"j{k}-0", of=f"j{k}", phase="Pending") for k in range(14)]
    found = told(pods=pods, jobs=[job(f"j{k}") for k in range(14)])["stuck gangs"]
    assert (len(found), found[-1].found) == (11, "4 more")
