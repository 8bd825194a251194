"""A pod that says itself which node and GPUs it has: it counts with what it requests, and gains nothing."""

from typing import Any

import pytest

from batuta.backends.kube import names
from tests.support.kube.nodes import NodeShape, node
from tests.support.kube.offline import Operator, Pods
from tests.support.kube.pods import make_gang, make_pod

SIX = [f"honest-{number}" for number in range(6)]


def claiming(name: str, gpus: str, **metadata: Any) -> dict[str, Any]:
    """A pod of one GPU that its tenant created on a node, with these GPUs in its annotation."""
    pod = make_pod(name, gpus=1, **metadata)
    pod["metadata"].setdefault("annotations", {})[names.GPUS] = gpus
    pod["spec"]["nodeName"] = "node-0"
    return pod


def run(operator: Operator, steps: int = 12) -> None:
    for _ in range(steps):
        operator.step()
        operator.carry_out_all()


def gpus_of(pods: Pods, *among: str) -> list[str]:
    return sorted(pods.by_name[name].metadata.annotations[names.GPUS] for name in among)


@pytest.mark.parametrize("is_first", [True, False], ids=["found at the start", "created later"])
@pytest.mark.parametrize(
    "claims",
    [("0,1,2,3", "4,5,6,7"), ("0", "0"), ("900", "901"), ("0,1,2,3,4,5,6,7", "7"), ("0", "1"), ("x", "1" * 4_301)],
    ids=["more than requested", "the same", "none of the node", "all", "as requested", "nonsense"],
)
def test_two_pods_of_one_gpu_take_two_gpus_whatever_they_claim(is_first, claims):
    pods = Pods(node("node-0", shape=NodeShape(gpus=8)))
    operator = Operator(pods)
    for number, claim in enumerate(claims):
        pods.add(claiming(f"liar-{number}", claim))
    if is_first:
        operator = Operator(pods)
    run(operator, 4)
    for name in (*SIX, "one-too-many"):
        pods.add(make_pod(name))
    run(operator)
    assert set(SIX) <= pods.bound().keys()
    assert "one-too-many" not in pods.bound()
    assert len(set(gpus_of(pods, *SIX))) == 6


def test_an_annotation_that_is_changed_later_frees_and_takes_nothing():
    """A tenant lets its pod of one GPU claim all others, then none that the node has."""
    pods = Pods(node("node-0", shape=NodeShape(gpus=8)))
    operator = Operator(pods)
    pods.add(make_pod("liar"))
    run(operator)
    for claim in ("0,1,2,3,4,5,6,7", "900", ""):
        pods.annotate("liar", {names.GPUS: claim})
        run(operator, 3)
    for number in range(8):
        pods.add(make_pod(f"honest-{number}"))
    run(operator)
    assert len(pods.bound()) == 8  # the one that was there, and seven


def test_a_gang_that_its_tenant_bound_itself_takes_what_it_requests():
    pods = Pods(node("node-0", shape=NodeShape(gpus=8)))
    operator = Operator(pods)
    for member in make_gang("liars", 2):
        member["spec"]["nodeName"] = "node-0"
        member["metadata"]["annotations"] |= {names.GPUS: "0,1,2,3,4,5,6,7", names.GANG_SIZE: "8"}
        pods.add(member)
    run(operator, 4)
    for name in SIX:
        pods.add(make_pod(name))
    run(operator)
    assert set(SIX) <= pods.bound().keys()


def test_a_share_counts_with_what_it_requests_on_the_card_that_it_names():
    shape = NodeShape(gpus=2, capacity={names.SHARE_MEMORY: "640", names.SHARE_COMPUTE: "200"})
    pods = Pods(node("node-0", shape=shape))
    operator = Operator(pods)
    share = claiming("liar", "1")
    share["spec"]["containers"][0]["resources"] = {"requests": {names.SHARE_COMPUTE: "10"}}
    pods.add(share)
    run(operator)
    pods.add(make_pod("honest-0"))
    pods.add(make_pod("honest-1"))
    run(operator)
    assert gpus_of(pods, *(pods.bound().keys() - {"liar"})) == ["0"]


def test_pods_of_another_scheduler_count_by_their_requests():
    pods = Pods(node("node-0", shape=NodeShape(gpus=8)))
    foreign = claiming("foreign", "0,1,2,3,4,5,6,7")
    foreign["spec"]["schedulerName"] = "default-scheduler"
    pods.add(foreign)
    operator = Operator(pods)
    for number in range(8):
        pods.add(make_pod(f"honest-{number}"))
    run(operator)
    assert len(pods.bound()) == 8
