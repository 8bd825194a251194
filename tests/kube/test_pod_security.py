"""Every pod of the chart under Pod Security "restricted", as a real API server judges it: the exceptions are named."""

import json
import re
from collections.abc import Iterator

import pytest

from batuta.backends.kube.health.burn_in import Attempt, BurnInOptions, burn_in_pod
from batuta.backends.kube.install.chart import manifests
from batuta.core.cluster import NodeName
from batuta.core.health_record import WHOLE_NODE, Target
from tests.support.chart import VARIANTS, Json, release_of
from tests.support.kube.api import ApiError
from tests.support.kube.control_plane import ControlPlane

RESTRICTED = "pod-security-restricted"
WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "Job", "CronJob")
OPERATOR, AGENT, PLUGIN, COLLECTOR = "operator", "agent", "device-plugin", "log-collector"

ROOT = {"runAsNonRoot != true", "runAsUser=0"}
FOLDERS = {"restricted volume types"}
PROCESSES = {"host namespaces"}
CAPABILITY = {"unrestricted capabilities"}
PRIVILEGED = {"privileged", "allowPrivilegeEscalation != false", "unrestricted capabilities"}

EXCEPTIONS: dict[str, set[str]] = {
    # It sees the processes on GPUs, and the kubelet's socket, which is root's, tells whose they are.
    AGENT: PROCESSES | FOLDERS | ROOT,
    # It registers at the kubelet's socket, and containers mount what it writes on the node.
    PLUGIN: FOLDERS | ROOT,
    # The node's log files are root's.
    COLLECTOR: FOLDERS | ROOT,
}
FURTHER: dict[str, dict[str, set[str]]] = {
    "agents with everything": {AGENT: CAPABILITY},  # diskCounters: SYS_PTRACE
    "healing": {AGENT: PRIVILEGED},  # kernelLog /dev/kmsg: no device of the host is in a container otherwise
    "logs for a Loki": {COLLECTOR: CAPABILITY},  # kernelLog journal: SYS_CHROOT, to run the node's journalctl
    # MPS and the kernel's limits are set for all processes of the node.
    "shared GPUs, by the driver": {PLUGIN: PRIVILEGED | {"host namespaces", "seccompProfile"}},
}
"""What a set of values adds to that."""


@pytest.fixture(scope="module")
def restricted(cluster: ControlPlane) -> Iterator[ControlPlane]:
    cluster.new_namespace(RESTRICTED)
    cluster.kubectl("label", "namespace", RESTRICTED, "pod-security.kubernetes.io/enforce=restricted")
    yield cluster
    cluster.delete_namespace(RESTRICTED)


def workloads(values: Json) -> dict[str, Json]:
    """The pods of all workloads of a release, by their component."""
    found: dict[str, Json] = {}
    for one in manifests(release_of(values, namespace=RESTRICTED)):
        if one["kind"] in WORKLOADS:
            template = one["spec"]["template"]
            component = template["metadata"]["labels"]["app.kubernetes.io/component"]
            assert component not in found
            found[component] = {"apiVersion": "v1", "kind": "Pod", **template}
    return found


def violations(cluster: ControlPlane, pod: Json) -> set[str]:
    """What the API server says that a pod violates; empty if it takes the pod."""
    spec = pod["spec"] | {"serviceAccountName": "default"}
    # RuntimeClasses and priority classes are the cluster's, and looked up before anything is judged.
    spec = {key: value for key, value in spec.items() if key not in ("runtimeClassName", "priorityClassName")}
    metadata = pod["metadata"] | {"name": "judged", "namespace": RESTRICTED}
    try:
        cluster.api.create(
            f"/api/v1/namespaces/{RESTRICTED}/pods?dryRun=All", pod | {"metadata": metadata, "spec": spec}
        )
    except ApiError as refusal:
        told = re.search(r'violates PodSecurity "restricted:latest": (.*)', json.loads(refusal.text)["message"])
        if told is None:
            raise
        # Each is a few words, and in brackets which fields of which containers.
        without_fields = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", told[1])
        return {words.strip() for words in without_fields.split(",")}
    return set()


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_pods_but_the_named_exceptions_are_restricted(restricted: ControlPlane, variant: str):
    further = FURTHER.get(variant, {})
    for component, pod in workloads(VARIANTS[variant]).items():
        expected = EXCEPTIONS.get(component, set()) | further.get(component, set())
        assert violations(restricted, pod) == expected, component


def test_all_parts_of_the_chart_are_judged():
    """A part that is added later is in a set of values, and so restricted or named above."""
    judged = {component for values in VARIANTS.values() for component in workloads(values)}
    assert judged == {OPERATOR, *EXCEPTIONS}


@pytest.mark.parametrize("gpu", [WHOLE_NODE, 3])
def test_burn_ins_are_restricted_because_they_run_beside_the_operator(restricted: ControlPlane, gpu: int):
    options = BurnInOptions("batuta/operator", runtime_class="nvidia", namespace=RESTRICTED)
    pod = burn_in_pod(options, Attempt(Target(NodeName("n1"), gpu), 1.0), "nvidia.com/gpu", 8)
    assert violations(restricted, pod) == set()
