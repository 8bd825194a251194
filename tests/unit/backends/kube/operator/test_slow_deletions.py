"""Pods that were deleted hold what they have until their containers end; who comes next waits for that."""

from typing import Any

from tests.support.kube.nodes import NodeShape, node
from tests.support.kube.offline import Operator, Pods
from tests.support.kube.pods import make_pod

NIC = "example.com/nic"
"""A resource of which the World knows nothing: the binder alone counts it."""


def with_nic(name: str) -> dict[str, Any]:
    pod = make_pod(name)
    pod["spec"]["containers"][0]["resources"]["limits"][NIC] = "1"
    return pod


def step(operator: Operator, times: int = 1) -> None:
    for _ in range(times):
        operator.step()
        operator.carry_out_all()


def test_a_pod_starts_as_soon_as_the_one_before_it_is_gone() -> None:
    """Given a node with a free GPU and one NIC, whose user was deleted and still runs, the next pod waits for
    it, although the job that it was of is over and forgotten; it does not have to avoid the node.
    """
    pods = Pods(node("n", 0, NodeShape(gpus=2, capacity={NIC: "1"})))
    operator = Operator(pods)
    pods.add(with_nic("first"))
    step(operator, 3)
    pods.set_phase("first", "Running")
    step(operator)
    pods.begin_deletion("first")
    step(operator, 2)
    pods.add(with_nic("second"))
    step(operator, 4)
    assert set(pods.bound()) == {"first"}
    pods.vanish("first")
    step(operator, 2)
    assert set(pods.bound()) == {"second"}
