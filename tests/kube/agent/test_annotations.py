"""An agent and an operator on a real cluster: what they write on a node and on its pods, and what they take back."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.agent.conftest import CONTAINER, WITHIN_S, AgentNode, MakeNodes, pod_annotations
from tests.support.gpu_work import end
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import OperatorProcess, grant, prepare, refused
from tests.support.kube.pods import make_pod


@pytest.fixture(autouse=True)
def operator(cluster: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """With the rights of the chart, which are enough."""
    prepare(cluster)
    mark = cluster.requests.mark()
    with OperatorProcess(cluster, tmp_path, kubeconfig=grant(cluster)):
        yield
    assert refused(cluster, mark) == []


def bound_pod(cluster: ControlPlane, namespace: str, node: AgentNode, name: str, job: str) -> str:
    """A pod of a job that runs on a node; its uid."""
    pod = make_pod(name, gpus=1)
    pod["metadata"].setdefault("labels", {})["batuta.dev/job-name"] = job
    pod["metadata"]["namespace"] = namespace
    pod["spec"]["schedulerName"] = "nobody"
    created = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    cluster.bind(namespace, name, node.name)
    return created["metadata"]["uid"]


def in_pod(uid: str) -> str:
    slice_ = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    return f"0::/kubepods.slice/kubepods-besteffort.slice/{slice_}/cri-containerd-{CONTAINER}.scope"


def usage_of(cluster: ControlPlane, namespace: str, pod: str) -> dict[str, Any]:
    return pod_annotations(cluster, namespace, pod).get("usage", {})


def test_pods_are_annotated_while_their_processes_live(cluster: ControlPlane, namespace: str, make_nodes: MakeNodes):
    # given a node with two pods, one of which works on a GPU, and a process of the host on the other GPU
    (node,) = make_nodes(1, gpus=2)
    uids = {name: bound_pod(cluster, namespace, node, name, "train") for name in ("train-0", "train-1")}
    process = node.work(0, control_groups=in_pod(uids["train-0"]), mib=2048)
    node.work(1, control_groups="0::/system.slice/x.service", mib=100)
    # when an agent looks
    agent = node.start_agent()
    # then the node says what its GPUs are and do
    wait_until(lambda: len([one for one in node.busy() if one]) == 2, "the node's annotation", WITHIN_S)
    devices = node.annotations()["devices"]
    assert [(one["index"], one["model"], one["memoryMib"]) for one in devices] == [
        (0, "A100", 40960),
        (1, "A100", 40960),
    ]
    # and the pod that works says so, and no other
    usage = wait_until(lambda: usage_of(cluster, namespace, "train-0"), "the pod's annotation", WITHIN_S)
    assert (usage["gpus"], usage["memoryMib"]) == ([0], 2048)
    job = pod_annotations(cluster, namespace, "train-0")["job"]
    assert (job["name"], job["pods"], job["gpus"]) == ("train", 1, 1)
    assert usage_of(cluster, namespace, "train-1") == {}
    # when the process ends, then the pod loses the annotations and keeps its others
    cluster.kubectl("annotate", "pod", "train-0", "-n", namespace, "example.com/mine=1", "batuta.dev/gpus=0")
    end(process)
    wait_until(lambda: not pod_annotations(cluster, namespace, "train-0"), "them to go", WITHIN_S)
    kept = cluster.pod(namespace, "train-0")["metadata"]["annotations"]
    assert (kept["example.com/mine"], kept["batuta.dev/gpus"]) == ("1", "0")
    # and an agent that is told to end does so
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(WITHIN_S) == 0


def test_what_an_agent_that_was_killed_left_behind_is_taken_back(
    cluster: ControlPlane, namespace: str, make_nodes: MakeNodes
):
    (node,) = make_nodes(1)
    process = node.work(0, control_groups=in_pod(bound_pod(cluster, namespace, node, "p", "job")))
    first = node.start_agent()
    wait_until(lambda: usage_of(cluster, namespace, "p"), "the annotation", WITHIN_S)
    # given an agent that died, and a process that ended while nobody looked
    end(first)
    end(process)
    assert usage_of(cluster, namespace, "p")
    # when the next agent starts, then the annotation goes
    node.start_agent()
    wait_until(lambda: not usage_of(cluster, namespace, "p"), "it to go", WITHIN_S)
