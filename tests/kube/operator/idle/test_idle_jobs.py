"""Jobs that leave their GPUs idle, from what an agent writes to what becomes of them. None is killed."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import NAMESPACE, RELEASE, OperatorProcess, grant, prepare, refused
from tests.support.kube.unified import Jobs, Submitted

AFTER = "batuta.dev/idle-after"
ACTION = "batuta.dev/idle-action"


def queue(name: str, action: str) -> str:
    return (
        "apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\n"
        f"metadata: {{name: {name}, annotations: {{{AFTER}: 2s, {ACTION}: {action}}}}}\n"
        "spec:\n  namespaceSelector: {}\n  resourceGroups:\n"
        "  - coveredResources: [gpu]\n    flavors:\n    - name: gpus\n"
        "      resources: [{name: gpu, nominalQuota: 8}]\n"
    )


def local(name: str, namespace: str) -> str:
    return (
        "apiVersion: kueue.x-k8s.io/v1beta1\nkind: LocalQueue\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{clusterQueue: {name}}}\n"
    )


FLAVOR = "apiVersion: kueue.x-k8s.io/v1beta1\nkind: ResourceFlavor\nmetadata: {name: gpus}\n"
ACTIONS = ("report", "shrink", "park")


@pytest.fixture
def idle_jobs(cluster: ControlPlane, namespace: str, tmp_path: Any) -> Iterator[Jobs]:
    """A namespace with a queue for each thing that may be done about idle jobs."""
    prepare(cluster)
    docs = [FLAVOR, *(queue(one, one) for one in ACTIONS), *(local(one, namespace) for one in ACTIONS)]
    meta = {"name": f"{RELEASE}-queues", "namespace": NAMESPACE}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"q.yaml": "---\n".join(docs)}})
    mark = cluster.requests.mark()
    with OperatorProcess(cluster, tmp_path, kubeconfig=grant(cluster)):
        yield Jobs(cluster, namespace)
    assert refused(cluster, mark) == []
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{RELEASE}-queues")


def saying_idle(cluster: ControlPlane, node: str) -> Callable[[], None]:
    """The node's agent, which finds that nobody uses its GPUs."""

    def say() -> None:
        gpus = [{"index": gpu, "utilisation": 0.0} for gpu in range(8)]
        text = json.dumps({"time": time.time(), "gpus": gpus})
        cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {names.UTILISATION: text}}})

    return say


def test_idle_jobs_are_told_of_shrunk_or_parked_as_their_queue_says(
    cluster: ControlPlane, idle_jobs: Jobs, add_nodes: AddNodes
) -> None:
    (node,) = add_nodes(1, NodeShape(gpus=8))
    jobs: dict[str, Submitted] = {
        one: idle_jobs.submit(one, "TorchElastic", replicas=(1, 2), queueName=one) for one in ACTIONS
    }
    for job in jobs.values():
        job.runs_with(2)
    say = saying_idle(cluster, node)

    def seen(job: Submitted, reason: str) -> Callable[[], bool]:
        def look() -> bool:
            say()
            return job.status.get("reason") == reason

        return look

    wait_until(seen(jobs["report"], "Idle"), "the idle job to be told of", 60.0, 0.3)
    wait_until(seen(jobs["park"], "ParkedIdle"), "the idle job to be parked", 60.0, 0.3)
    jobs["shrink"].runs_with(1)
    # who is only told of keeps what it has, and nobody has failed
    assert len(jobs["report"].running()) == 2
    for job in jobs.values():
        assert (job.status["failures"], job.condition("Failed")["status"]) == (0, "False")
    # the one that is parked says so in its spec: it goes on when somebody resumes it
    wait_until(lambda: jobs["park"].get()["spec"].get("suspend"), "it to be suspended")
    assert jobs["park"].running() == {}
    jobs["park"].patch({"spec": {"suspend": False}})
    jobs["park"].reaches("RUNNING")


def test_of_two_that_share_a_card_the_one_is_idle_that_does_nothing(
    cluster: ControlPlane, idle_jobs: Jobs, add_nodes: AddNodes
) -> None:
    """Given a card that is busy, when its agent says by whom, then the other one is told of."""
    shares = {names.SHARE_MEMORY: "160", names.SHARE_COMPUTE: "100"}
    (node,) = add_nodes(1, NodeShape(gpus=0, capacity=shares))
    sharing = {"gpuMemory": "4Gi", "gpuCompute": 30}
    works, sleeps = (
        idle_jobs.submit(name, "Pods", sharing=sharing, queueName="report") for name in ("works", "sleeps")
    )
    for job in (works, sleeps):
        job.runs_with(1)

    def say() -> bool:
        now_s = time.time()
        said = []
        for job, mean in ((works, 0.6), (sleeps, 0.0)):
            (uid,) = job.running().values()
            usage = {"gpus": [0], "utilisation": {"mean": mean}}
            said.append({"job": {"name": job.name}, "pods": {uid: usage}})
        texts = {
            names.UTILISATION: {"time": now_s, "gpus": [{"index": 0, "utilisation": 0.6}]},
            names.PODS_USAGE: {"time": now_s, "jobs": said},
        }
        body = {"metadata": {"annotations": {name: json.dumps(text) for name, text in texts.items()}}}
        cluster.api.patch(f"/api/v1/nodes/{node}", body)
        return sleeps.status.get("reason") == "Idle"

    wait_until(say, "the idle sharer to be told of", 60.0, 0.5)
    assert works.status.get("reason") != "Idle"
