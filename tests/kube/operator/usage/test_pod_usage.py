"""What agents tell of pods, and what the operator writes on them: under the chart's rights, beside forged reports."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube import names
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import USER, OperatorProcess, grant, prepare, refused
from tests.support.kube.pods import Pods, make_pod

WORKS = {"gpus": [0], "utilisation": {"mean": 0.5}, "memoryMib": 500}


class TwoNodes:
    """Two nodes with a pod of a tenant on each, and the agents of the nodes."""

    def __init__(self, cluster: ControlPlane, namespace: str, nodes: list[str]) -> None:
        self.cluster, self.pods, self.nodes = cluster, Pods(cluster, namespace), nodes
        for name, node in zip(("a", "b"), nodes, strict=True):
            pod = make_pod(name)
            pod["spec"]["schedulerName"] = "another"
            self.pods.create(pod)
            cluster.bind(namespace, name, node)
        self.pods.wait_for_phase("Running", "a", "b")
        self.uids = self.pods.uids()

    def report(self, node: int, told: Any = (), **pods: Any) -> None:
        """An agent tells of pods by their names, or anything."""
        jobs = [{"job": {"name": "train"}, "pods": {self.uids[name]: usage for name, usage in pods.items()}}]
        text = told if isinstance(told, str) else json.dumps({"time": time.time(), "jobs": jobs})
        body = {"metadata": {"annotations": {names.PODS_USAGE: text}}}
        self.cluster.api.patch(f"/api/v1/nodes/{self.nodes[node]}", body)

    def usage(self, pod: str) -> dict[str, Any]:
        found = self.pods.all()[pod]["metadata"].get("annotations", {})
        return {key: json.loads(found[key]) for key in (names.POD_USAGE, names.POD_JOB) if key in found}

    def mean(self, pod: str) -> float:
        return self.usage(pod)[names.POD_USAGE]["utilisation"]["mean"]

    def wait_for(self, look: Callable[[], bool], what: str) -> None:
        wait_until(look, what, 30)


@pytest.fixture
def two(cluster: ControlPlane, namespace: str, add_nodes: AddNodes) -> TwoNodes:
    prepare(cluster)
    return TwoNodes(cluster, namespace, add_nodes(2, NodeShape(gpus=2)))


def test_pods_say_what_their_agents_tell_and_what_is_forged_gains_nothing(
    cluster: ControlPlane, two: TwoNodes, tmp_path: Path
):
    mark = cluster.requests.mark()
    with OperatorProcess(cluster, tmp_path, kubeconfig=grant(cluster)) as operator:
        # given an agent that tells of the pod of another node too, and of one that there is not
        two.uids["none"] = "00000000-0000-0000-0000-000000000000"
        two.report(0, a=WORKS, b=WORKS, none=WORKS)
        two.wait_for(lambda: two.usage("a") != {}, "the annotations")
        usage = two.usage("a")
        assert (usage[names.POD_USAGE]["gpus"], usage[names.POD_JOB]) == ([0], {"name": "train"})
        # when another one tells what cannot be read
        for text in ("[" * 100_000, "x" * 200_000, '{"time":1e999}', '{"time":0,"jobs":[{"job":{},"pods":3}]}'):
            two.report(1, text)
            # then that costs the first one nothing
            mean = 0.9 if two.mean("a") == 0.5 else 0.5
            two.report(0, a=WORKS | {"utilisation": {"mean": mean}})
            two.wait_for(partial(lambda wanted: two.mean("a") == wanted, mean), "it to be heard")
        assert two.usage("b") == {}
        metrics = operator.metrics()
        assert not any(metrics[one] for one in metrics if one.startswith("batuta_quarantined_objects"))
        # and when the second one tells what is so, then it is believed
        two.report(1, b=WORKS)
        two.wait_for(lambda: two.usage("b") != {}, "the annotations")
        # when neither pod uses a GPU any more, then they say nothing
        two.report(0)
        two.report(1)
        two.wait_for(lambda: not two.usage("a") and not two.usage("b"), "the annotations to go")
    assert refused(cluster, mark) == []


def test_an_operator_that_starts_writes_on_no_pod_what_is_there(cluster: ControlPlane, two: TwoNodes, tmp_path: Path):
    account = grant(cluster)
    with OperatorProcess(cluster, tmp_path, kubeconfig=account) as operator:
        two.report(0, a=WORKS)
        two.report(1, b=WORKS)
        two.wait_for(lambda: bool(two.usage("a") and two.usage("b")), "the annotations")
        operator.kill()
        mark = cluster.requests.mark()
        operator.start()
        two.report(0, a=WORKS)
        two.report(1)
        two.wait_for(lambda: not two.usage("b"), "one to go")
    asked = cluster.requests.since(mark, USER)
    assert [one.name for one in asked if (one.verb, one.resource) == ("patch", "pods")] == ["b"]


def test_pods_of_namespaces_that_it_does_not_serve_get_none(
    cluster: ControlPlane, namespace: str, two: TwoNodes, tmp_path: Path
):
    served = cluster.new_namespace()
    pod = make_pod("c", gpus=0)
    pod["spec"]["schedulerName"] = "another"
    pods = Pods(cluster, served)
    pods.create(pod)
    cluster.bind(served, "c", two.nodes[0])
    two.uids |= pods.uids()
    account, mark = grant(cluster, namespaces=[served]), cluster.requests.mark()
    with OperatorProcess(cluster, tmp_path, kubeconfig=account, namespaces=[served]):
        two.report(0, a=WORKS, c=WORKS)
        two.wait_for(lambda: names.POD_USAGE in pods.all()["c"]["metadata"].get("annotations", {}), "the annotation")
        assert two.usage("a") == {}
    assert refused(cluster, mark) == []
    cluster.clear_namespace(served)
