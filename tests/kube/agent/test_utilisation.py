"""Two nodes that look alike to Kubernetes: a pod goes to the one whose GPU is really less used."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from batuta.backends.kube import names
from batuta.backends.kube.binder import Binder, Cluster, Group, Member, default_profile
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.backends.kube.objects import Node, Pod
from tests.kube.agent.conftest import WITHIN_S, AgentNode, MakeNodes
from tests.support.gpu_work import end
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.operator_process import OperatorProcess, prepare
from tests.support.kube.pods import Pods, make_gang, make_pod
from tests.support.kube.unified import Jobs


async def read_all(kubeconfig: Path) -> tuple[Sequence[Node], Sequence[Pod]]:
    async with Api(await find_access(kubeconfig)) as api:
        return (await api.list(NODE)).items, (await api.list(POD)).items


def choice(cluster: ControlPlane, among: list[AgentNode], later_s: float = 0.0) -> str:
    """Where the binder would put a pod with one GPU, by what the API server has."""
    nodes, pods = asyncio.run(read_all(cluster.kubeconfig("reader", ["system:masters"])))
    seen = Cluster()
    for node in nodes:
        if node.metadata.name in {one.name for one in among}:
            seen.node_set(node)
    for pod in pods:
        seen.pod_set(pod)
    # As the API server completes it.
    whole = cluster.api.create("/api/v1/namespaces/default/pods?dryRun=All", make_pod("next", gpus=1))
    wanted = POD.decode(json.dumps(whole).encode())
    group = Group("next", (Member(wanted),))
    (binding,) = Binder(seen, default_profile()).schedule([group], time.time() + later_s).bindings
    return binding.node


def settled(node: AgentNode, low: float, high: float) -> None:
    wait_until(
        lambda: all(one is not None and low <= one <= high for one in node.busy() or [None]),
        f"a utilisation from {low} to {high}",
        WITHIN_S,
    )


def test_the_binder_prefers_the_gpu_that_is_really_idle(cluster: ControlPlane, make_nodes: MakeNodes):
    # given two nodes alike, of which nothing is known: the first is as good as the second
    first, second = make_nodes(2)
    nobody_knows = choice(cluster, [first, second])
    busy, idle = (first, second) if nobody_knows == first.name else (second, first)
    # when somebody whom Kubernetes does not know uses the GPU of the one that would be taken
    process = busy.work()
    for node in (busy, idle):
        node.start_agent()
    settled(busy, 0.5, 1.0)
    settled(idle, 0.0, 0.02)
    # then the other one is taken
    assert choice(cluster, [first, second]) == idle.name
    # but once the reports are old, nothing is known again
    assert choice(cluster, [first, second], later_s=100.0) == nobody_knows
    # and when the process has ended, both are idle again
    end(process)
    settled(busy, 0.0, 0.02)
    assert choice(cluster, [first, second]) == nobody_knows


def test_an_operator_sends_pods_to_the_gpu_that_is_really_idle(
    cluster: ControlPlane, namespace: str, make_nodes: MakeNodes, tmp_path: Path
):
    # given two nodes with agents, one of them busy, and an operator
    prepare(cluster)
    nodes = make_nodes(2)
    busy, idle = nodes
    busy.work()
    for node in nodes:
        node.start_agent()
    settled(busy, 0.5, 1.0)
    settled(idle, 0.0, 0.02)
    pods = Pods(cluster, namespace)
    with OperatorProcess(cluster, tmp_path):
        # when a gang comes whose pods are unlike, so that the binder alone places them
        leader, worker = make_gang("g", 2, gpus=1)
        del leader["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        pods.create(leader, worker)
        pods.wait_for("g-0", "g-1")
    # then the pod with a GPU is where the GPU is idle
    assert pods.gpus()["g-1"][0] == idle.name
    assert names.GPUS in pods.all()["g-1"]["metadata"]["annotations"]


def test_a_share_goes_to_the_card_that_is_really_idle(
    cluster: ControlPlane, namespace: str, make_nodes: MakeNodes, tmp_path: Path
):
    # given a node with two cards to share, the first of which is busy with what Kubernetes does not know
    prepare(cluster)
    (node,) = make_nodes(1, gpus=2, capacity={names.SHARE_MEMORY: "320", names.SHARE_COMPUTE: "200"})
    node.work(0)
    node.start_agent()
    wait_until(lambda: [round(one or 0) for one in node.busy()] == [1, 0], "the node's annotation", WITHIN_S)
    pods = Pods(cluster, namespace)
    with OperatorProcess(cluster, tmp_path):
        # when a pod comes that wants a share
        share = make_pod("share", gpus=0)
        wanted = {names.SHARE_MEMORY: "8", names.SHARE_COMPUTE: "30"}
        share["spec"]["containers"][0]["resources"]["limits"] = wanted
        pods.create(share)
        pods.wait_for("share")
    # then it gets the other card
    assert pods.gpus()["share"] == (node.name, "1")


def test_a_job_with_whole_gpus_goes_to_the_node_that_is_really_idle(
    cluster: ControlPlane, namespace: str, make_nodes: MakeNodes, tmp_path: Path
):
    # given two nodes alike; somebody whom Kubernetes does not know uses the one that would be taken
    prepare(cluster)
    first, second = sorted(make_nodes(2), key=lambda node: node.name)
    jobs = Jobs(cluster, namespace)
    process = first.work()
    for node in (first, second):
        node.start_agent()
    settled(first, 0.5, 1.0)
    settled(second, 0.0, 0.02)
    with OperatorProcess(cluster, tmp_path):
        # when a job comes, then it goes to the other one
        job = jobs.submit("whole")
        (place,) = wait_until(lambda: list(job.places().values()), "the job to be placed")
        assert place == (second.name, "0")
    end(process)


def test_a_report_that_is_old_says_nothing_to_the_world_either(
    cluster: ControlPlane, namespace: str, make_nodes: MakeNodes, tmp_path: Path
):
    # given two nodes alike, of which the first was busy long ago
    prepare(cluster)
    first = min(make_nodes(2), key=lambda node: node.name)
    report = {"time": time.time() - 100, "gpus": [{"index": 0, "utilisation": 0.9}]}
    body = {"metadata": {"annotations": {names.UTILISATION: json.dumps(report)}}}
    cluster.api.patch(f"/api/v1/nodes/{first.name}", body)
    with OperatorProcess(cluster, tmp_path):
        # when jobs come, then it is as good as the other one, and before it
        job = Jobs(cluster, namespace).submit("whole")
        (place,) = wait_until(lambda: list(job.places().values()), "the job to be placed")
        assert place == (first.name, "0")
