"""Gangs of which a part is bound, and nobody remembers why: operator and journal are lost."""

import time
from collections.abc import Iterator

import pytest

from batuta.backends.kube import names
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import OperatorProcess, grant
from tests.support.kube.pods import Manifest, Pods, make_gang, make_pod


@pytest.fixture
def node(broken: ControlPlane, pods: Pods) -> Iterator[str]:
    """A node with ten GPUs."""
    (name,) = broken.add_nodes(1, NodeShape(gpus=10), pods.namespace)
    yield name
    broken.delete_nodes([name])


def leave_bound(pods: Pods, node: str, pod: Manifest, gpus: str) -> None:
    """As an operator has bound it that is gone now."""
    pod["metadata"]["annotations"][names.GPUS] = gpus
    pods.create(pod)
    pods.cluster.bind(pods.namespace, pod["metadata"]["name"], node)


def end(pods: Pods, *names: str) -> None:
    """As if these had run to their end."""
    pods.wait_for_phase("Running", *names)
    for name in names:
        pods.cluster.api.patch(f"{pods.path}/{name}/status", {"status": {"phase": "Succeeded"}})


def test_gangs_that_are_bound_in_part_are_made_whole_first_and_one_after_the_other(broken, pods, node, tmp_path):
    """Given two such gangs and a pod that came before them, the older is whole, then the other, then the pod.

    What becomes free piece by piece is kept for the gang, though the pod would fit into the first pieces.
    """
    pods.create(make_pod("pod", gpus=4))
    for name, gpus in (("old", "0,1"), ("young", "2,3")):
        first, *others = make_gang(name, 4, gpus=2)
        leave_bound(pods, node, first, gpus)
        pods.create(*others)
    old, young = ([f"{name}-{index}" for index in range(4)] for name in ("old", "young"))
    with OperatorProcess(broken, tmp_path, kubeconfig=grant(broken)) as operator:
        pods.wait_for(*old)
        assert pods.bound().keys() == {*old, "young-0"}
        end(pods, *old[:2])
        time.sleep(1.0)  # nothing happens, which cannot be waited for
        assert pods.bound().keys() == {*old, "young-0"}
        end(pods, old[2])
        pods.wait_for(*young)
        assert "pod" not in pods.bound()
        end(pods, old[3], young[0])
        pods.wait_for("pod")
        operator.assert_calm()


def test_what_is_left_of_a_gang_starts_though_the_others_have_ended_meanwhile(broken, pods, node, tmp_path):
    """Given a gang whose first member ran to its end alone, the other two start together."""
    first, *others = make_gang("gang", 3, gpus=2)
    leave_bound(pods, node, first, "0,1")
    pods.create(*others)
    broken.api.patch(f"{pods.path}/gang-0/status", {"status": {"phase": "Succeeded"}})
    with OperatorProcess(broken, tmp_path, kubeconfig=grant(broken)):
        pods.wait_for("gang-1", "gang-2")
