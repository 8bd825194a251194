"""The chart's admission policies on a real API server: tenants cannot write what is Batuta's, and Batuta can."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batuta.backends.kube import names
from batuta.backends.kube.install.chart import manifests
from tests.support.chart import policies_of, release_of
from tests.support.kube.api import Api, ApiError, Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant, prepare, refused
from tests.support.kube.pods import make_pod
from tests.support.kube.unified import Jobs

TENANT = "tenant"
AGENT = f"{RELEASE}-agent"
REPORT: Json = {"metadata": {"annotations": {names.UTILISATION: "{}"}}}


@pytest.fixture
def guarded(cluster: ControlPlane, namespace: str) -> Iterator[str]:
    """A namespace in which the policies hold, and a tenant who may do everything in it."""
    prepare(cluster)
    policies = policies_of({"fullnameOverride": RELEASE, "namespaces": [namespace]}, NAMESPACE)
    rights: Json = {"kind": "RoleBinding", "apiVersion": "rbac.authorization.k8s.io/v1"}
    rights |= {"metadata": {"name": "tenant", "namespace": namespace}}
    rights |= {"subjects": [{"kind": "User", "name": TENANT}]}
    rights |= {"roleRef": {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}}
    cluster.apply([*policies, rights])
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with cluster.api_as(TENANT) as tenant:
        wait_until(lambda: _refusal(tenant, pods, claiming("probe")), "the policies to hold", 60)
    yield namespace
    for one in policies:
        cluster.kubectl("delete", one["kind"], one["metadata"]["name"])


@pytest.fixture
def tenant(cluster: ControlPlane, guarded: str) -> Iterator[Api]:
    with cluster.api_as(TENANT) as api:
        yield api


def claiming(name: str) -> Json:
    return make_pod(name, annotations={names.GPUS: "0,1"})


def _refusal(api: Api, path: str, body: Json) -> str:
    """Why the API server refuses to create an object; empty if it does not. Nothing is created."""
    try:
        api.create(f"{path}?dryRun=All", body)
    except ApiError as error:
        return error.text
    return ""


def job(name: str, **template: Any) -> Json:
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    spec = {"suspend": True, "template": {"metadata": template, "spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def test_a_tenant_cannot_create_what_only_the_operator_writes(tenant: Api, guarded: str):
    pods, jobs = f"/api/v1/namespaces/{guarded}/pods", f"/apis/batch/v1/namespaces/{guarded}/jobs"
    placed = make_pod("placed", gpus=0)
    placed["spec"]["nodeName"] = "node-0"
    with_gpus = make_pod("with-gpus")
    with_gpus["spec"] |= {"nodeName": "node-0", "schedulerName": "default-scheduler"}
    member = make_pod("member", labels={names.JOB_NAME: "job-of-another"})
    assert "batuta.dev/gpus" in _refusal(tenant, pods, claiming("liar"))
    assert "without nodeName" in _refusal(tenant, pods, placed)
    assert "without nodeName" in _refusal(tenant, pods, with_gpus)
    assert "batuta.dev/job-name" in _refusal(tenant, pods, member)
    assert "batuta.dev/job-name" in _refusal(tenant, jobs, job("a", labels={names.JOB_NAME: "job-of-another"}))
    assert "template of a job" in _refusal(tenant, jobs, job("b", annotations={names.GPUS: "0"}))


def test_a_tenant_can_do_all_else(tenant: Api, guarded: str):
    pods, jobs = f"/api/v1/namespaces/{guarded}/pods", f"/apis/batch/v1/namespaces/{guarded}/jobs"
    gang = make_pod(
        "gang", labels={names.GANG_NAME: "g"}, annotations={names.GANG_SIZE: "2", names.SHARE_LIMITS: "soft"}
    )
    no_gpus = make_pod("no-gpus", gpus=0)
    no_gpus["spec"] |= {"nodeName": "node-0", "schedulerName": "default-scheduler"}
    for path, body in ((pods, make_pod("plain")), (pods, gang), (pods, no_gpus), (jobs, job("plain"))):
        assert _refusal(tenant, path, body) == ""


def test_a_tenant_cannot_change_what_the_operator_wrote(tenant: Api, guarded: str, cluster: ControlPlane, add_nodes):
    pods = f"/api/v1/namespaces/{guarded}/pods"
    tenant.create(pods, make_pod("pod"))
    ours = [{"annotations": {name: "{}"}} for name in (names.GPUS, names.POD_USAGE, names.POD_JOB)]
    for change in (*ours, {"labels": {names.REPLICA_INDEX: "0"}}):
        with pytest.raises(ApiError, match="written by the operator of Batuta only"):
            tenant.patch(f"{pods}/pod", {"metadata": change})
    tenant.patch(f"{pods}/pod", {"metadata": {"annotations": {"mine": "1"}}})
    (node,) = add_nodes(1)
    binding = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": node}}
    with pytest.raises(ApiError, match="written by the operator of Batuta only"):
        tenant.create(f"{pods}/pod/binding", binding | {"metadata": {"name": "pod", "annotations": {names.GPUS: "7"}}})


@pytest.mark.parametrize("kind", ["TorchElastic", "Job"])
def test_the_operator_works_under_its_policies(cluster, guarded, tenant, add_nodes, tmp_path, kind):
    """A job of a tenant gets its pods, made by the operator or by a controller, and they are bound to GPUs."""
    add_nodes(1, NodeShape(gpus=4))
    kubeconfig = grant(cluster, namespaces=[guarded])
    mark = cluster.requests.mark()
    jobs = Jobs(cluster, guarded)
    with OperatorProcess(cluster, tmp_path, kubeconfig=kubeconfig, namespaces=[guarded]):
        jobs.submit("train", kind, replicas=2).runs_with(2)
        tenant.create(f"/api/v1/namespaces/{guarded}/pods", make_pod("lone"))
        lone = wait_until(lambda: _gpus_of(cluster, guarded, "lone"), "a pod to have GPUs")
        assert lone in {"0", "1", "2", "3"}
    assert refused(cluster, mark) == []


def _gpus_of(cluster: ControlPlane, namespace: str, pod: str) -> str:
    return cluster.pod(namespace, pod)["metadata"].get("annotations", {}).get(names.GPUS, "")


@pytest.fixture
def agent_on(cluster: ControlPlane) -> Iterator[Callable[[str], str]]:
    """The token of an agent on a node, with the chart's rights: it is bound to its pod, and says where that is."""
    release = release_of({"fullnameOverride": RELEASE, "agent": {"enabled": True}}, namespace=NAMESPACE)
    wanted = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    rights = [one for one in manifests(release) if one["metadata"]["name"] == AGENT and one["kind"] in wanted]
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def token(node: str) -> str:
        prepare(cluster)
        cluster.apply(rights)
        pod = make_pod("agent", gpus=0)
        pod["spec"] |= {"serviceAccountName": AGENT, "nodeName": node, "schedulerName": "default-scheduler"}
        made = cluster.api.create(pods, pod)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "agent", "uid": made["metadata"]["uid"]}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{AGENT}/token"
        found = cluster.api.create(path, asked)["status"]["token"]
        its_node = f"/api/v1/nodes/{node}"
        wait_until(lambda: _patched(cluster, found, its_node, REPORT) == "", "the agent to have its rights")
        return found

    yield token
    cluster.api.delete(f"{pods}/agent", gracePeriodSeconds=0)


def test_an_agent_changes_its_own_node_and_no_other(cluster: ControlPlane, guarded: str, add_nodes, agent_on):
    own, other = add_nodes(2)
    token = agent_on(own)
    assert "not bound to this node" in _patched(cluster, token, f"/api/v1/nodes/{other}", REPORT)
    written = (names.UTILISATION, names.PODS_USAGE, names.HEALTH_NOTES, names.HEALTH_FIGURES, names.CARDS)
    for text in ("1", "2", None):
        body = {"metadata": {"annotations": dict.fromkeys(written, text)}}
        assert _patched(cluster, token, f"/api/v1/nodes/{own}", body) == ""
    of_others: list[Json] = [
        {"metadata": {"annotations": {name: "1"}}} for name in (names.MENDED, names.HEALTH_SEEN, "a")
    ]
    for more in (*of_others, {"metadata": {"labels": {"a": "b"}}}, {"spec": {"unschedulable": True}}):
        assert "and nothing else" in _patched(cluster, token, f"/api/v1/nodes/{own}", more)


def test_an_agent_changes_no_pod_even_without_the_policies(
    cluster: ControlPlane, namespace: str, add_nodes: Any, agent_on: Callable[[str], str]
):
    (own,) = add_nodes(1)
    token = agent_on(own)
    path = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.create(path, make_pod("here", gpus=0))
    cluster.bind(namespace, "here", own)
    usage = {"metadata": {"annotations": {names.POD_USAGE: "{}"}}}
    for pod in (f"{path}/here", f"{path}/here/status", f"/api/v1/namespaces/{NAMESPACE}/pods/agent"):
        assert "cannot patch resource" in _patched(cluster, token, pod, usage)


def _patched(cluster: ControlPlane, token: str, path: str, body: Json) -> str:
    """Patches as the owner of a token; why that is refused, or nothing."""
    request = urllib.request.Request(cluster.access.url + path, json.dumps(body).encode(), method="PATCH")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/merge-patch+json")
    try:
        urllib.request.urlopen(request, context=ssl.create_default_context(cafile=str(cluster.access.ca))).close()
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def test_policies_can_be_switched_off():
    assert policies_of({"admissionPolicy": {"enabled": False}}, NAMESPACE) == []
