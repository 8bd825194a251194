"""Pods that were deleted hold what they have until their containers end; who comes next waits for that."""

from typing import Any

import msgspec

from batuta.backends.kube import objects
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


def second_after(ends_s: float) -> tuple[Pods, Operator]:
    """A node with a free GPU and one NIC, whose user was deleted and still runs; another wants the NIC."""
    pods = Pods(node("n", 0, NodeShape(gpus=2, capacity={NIC: "1"})))
    operator = Operator(pods, now_s=1000.0)
    pods.add(with_nic("first"))
    step(operator, 3)
    pods.set_phase("first", "Running")
    step(operator)
    pods.begin_deletion("first", ends_s)
    step(operator, 2)
    pods.add(with_nic("second"))
    step(operator, 4)
    assert set(pods.bound()) == {"first"}
    return pods, operator


def test_a_pod_starts_as_soon_as_the_one_before_it_is_gone() -> None:
    """Although the job that this was of is over and forgotten, the next one does not avoid the node."""
    pods, operator = second_after(ends_s=1010.0)
    pods.vanish("first")
    step(operator, 2)
    assert set(pods.bound()) == {"second"}


def test_a_pod_that_does_not_end_is_not_waited_for() -> None:
    """Given a pod that should have been gone for minutes, who wants its place looks elsewhere."""
    pods, operator = second_after(ends_s=700.0)
    pods.nodes.append(msgspec.convert(node("m", 1, NodeShape(gpus=2, capacity={NIC: "1"})), objects.Node))
    operator.see_node(pods.nodes[-1])
    step(operator, 8)
    assert pods.bound()["second"].spec.node_name == "m"
