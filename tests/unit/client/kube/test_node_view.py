"""Nodes of a cluster with their GPUs, and who has them."""

import json
from typing import Any

from batuta.apitypes.resources import HealthShown, Share
from batuta.backends.kube import names, objects
from batuta.client.kube.views import node_views

GPU = "nvidia.com/gpu"


def node(name: str = "node-0", gpus: int = 4, **spec: Any) -> objects.Node:
    status = objects.NodeStatus(
        allocatable={"cpu": "8", GPU: str(gpus)}, conditions=[objects.Condition(type="Ready", status="True")]
    )
    return objects.Node(metadata=objects.Meta(name=name), spec=objects.NodeSpec(**spec), status=status)


def pod(name: str, requests: dict[str, str], gpus: str = "", job: str = "", phase: str = "Running") -> objects.Pod:
    meta = objects.Meta(
        name=name,
        namespace="team-a",
        annotations={names.GPUS: gpus} if gpus else {},
        labels={names.JOB_NAME: job} if job else {},
    )
    container = objects.Container(name="main", resources=objects.Resources(requests=requests))
    return objects.Pod(
        metadata=meta,
        spec=objects.PodSpec(node_name="node-0", containers=[container]),
        status=objects.PodStatus(phase=phase),
    )


def who(*pods: objects.Pod) -> list[list[str]]:
    (seen,) = node_views([node()], pods)
    return [[tenant.id for tenant in gpu.jobs] for gpu in seen.gpus]


def test_gpus_that_were_given_by_number_are_told_by_number():
    assert who(pod("train-0", {GPU: "2"}, "1,3", "train")) == [[], ["team-a/train"], [], ["team-a/train"]]


def test_pods_of_other_schedulers_get_what_is_left():
    held = who(pod("other", {GPU: "2"}), pod("train-0", {GPU: "1"}, "0", "train"))
    assert held == [["team-a/train"], ["team-a/other"], ["team-a/other"], []]


def test_pods_that_are_over_or_use_no_gpu_hold_none():
    assert who(pod("done", {GPU: "2"}, "0,1", phase="Succeeded"), pod("web", {"cpu": "1"})) == [
        [],
        [],
        [],
        [],
    ]


def test_several_may_share_a_gpu():
    asked = {names.SHARE_MEMORY: "4", names.SHARE_COMPUTE: "50"}
    (seen,) = node_views([node()], [pod("a", asked, "2", "a"), pod("b", asked, "2", "b")])
    assert [(one.id, one.share) for one in seen.gpus[2].jobs] == [
        ("team-a/a", Share(1024, 50)),
        ("team-a/b", Share(1024, 50)),
    ]


def test_a_node_that_takes_no_pods_is_cordoned_and_one_without_gpus_is_left_out():
    views = node_views([node("b", unschedulable=True), node("a"), node("cpu", gpus=0)], [])
    assert [(view.name, view.state) for view in views] == [("a", "ready"), ("b", "cordoned")]


def test_a_node_that_is_ill_says_why_since_when_and_by_whose_word():
    """Given what the operator wrote on a node, its state, its GPUs and who cordoned it are told."""
    ill = {"state": "ill", "reason": "Xid 79: gone", "since_s": 5.0, "who": "health", "remedy": "reboot"}
    part = {"state": "probation", "reason": "Xid 48: memory", "since_s": 6.0, "who": "health", "until_s": 9.0}
    shown = {"taint": "Xid-79", "node": ill, "gpus": {"2": part}}
    found = node(taints=[objects.Taint(key=names.UNHEALTHY, value="Xid-79", effect="NoSchedule")])
    found.metadata.annotations = {
        names.HEALTH: json.dumps(shown),
        names.ILL_GPUS: json.dumps({"2": "memory"}),
    }
    (seen,) = node_views([found], [])
    assert (seen.state, seen.cordoned_by) == ("unhealthy", "")
    assert seen.health == HealthShown("ill", "Xid 79: gone", 5.0, "health", "reboot")
    assert [gpu.healthy for gpu in seen.gpus] == [True, True, False, True]
    assert seen.gpus[2].health == HealthShown("probation", "Xid 48: memory", 6.0, "health", until_s=9.0)
    found.spec.unschedulable = True
    (seen,) = node_views([found], [])
    assert (seen.state, seen.cordoned_by, seen.cordoned_s) == ("cordoned", "kubectl cordon", None)
    told = {"key": "node.kubernetes.io/unschedulable", "time_added": "2026-01-02T03:04:05Z"}
    found.spec.taints = [*found.spec.taints, objects.Taint(effect="NoSchedule", **told)]
    (seen,) = node_views([found], [])
    assert seen.cordoned_s == 1767323045.0


def test_words_about_health_that_cannot_be_read_say_nothing():
    found = node()
    found.metadata.annotations = {names.HEALTH: "{", names.ILL_GPUS: "[1]"}
    (seen,) = node_views([found], [])
    assert (seen.state, seen.health) == ("ready", None)
    assert all(gpu.healthy for gpu in seen.gpus)
