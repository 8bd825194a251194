"""What the World is told of nodes, and what the configuration says of the binder."""

import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Cluster
from batuta.backends.kube.client.known import Change, Did
from batuta.backends.kube.operator.node_desk import NodeDesk, Used
from batuta.backends.kube.operator.nodes import NodeTeller, read_node
from batuta.backends.kube.operator.observed import Observed
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.operator.writes import Writes
from batuta.backends.kube.operator_config import OperatorConfig, Placement
from batuta.bootstrap.operator_leader import binder_profile
from batuta.core import event as ev
from batuta.spec.problem import InputError

GPU = "nvidia.com/gpu"
NODE = objects.Node(
    metadata=objects.Meta(name="n"),
    status=objects.NodeStatus(allocatable={GPU: "4", "cpu": "8", "memory": "16Gi"}),
)


@pytest.fixture
def said() -> list[ev.Event]:
    return []


def desk(said: list[ev.Event], told: dict[str, Used]) -> NodeDesk:
    observed = Observed()
    site = Site(Cluster(), Writes(lambda asked: None), observed.owners(), said.append, lambda party: None)
    node = read_node(NODE, None, [GPU])
    assert node is not None
    made = NodeDesk(site, observed, NodeTeller({"n": (node, True, True)}), [GPU], told)
    made.node(Change(Did.ADDED, NODE), 1.0)
    return made


def test_what_others_have_left_while_nobody_looked_is_free_again(said):
    """Given a World that was told of others, when a new operator finds nobody there, then it says so."""
    found = desk(said, {"n": Used((0, 1), 2000, 512)})
    found.tell_others(lambda node: (), 2.0)
    assert said == [ev.OthersUse(2.0, "n")]


def test_what_the_world_knows_is_not_told_again(said):
    found = desk(said, {"n": Used()})
    found.tell_others(lambda node: (), 2.0)
    assert said == []


def marked(taints: list[objects.Taint], **annotations: str) -> objects.Node:
    told = {f"batuta.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    meta = objects.Meta(name="n", annotations=told)
    return objects.Node(metadata=meta, spec=objects.NodeSpec(taints=taints), status=NODE.status)


def test_a_node_that_health_has_shut_is_closed_in_the_world_and_opened_again(said):
    """Given health's taint, the World is told of a cordon by health, and of its end, and of no taint."""
    found = desk(said, {})
    shut = marked([objects.Taint(key="batuta.dev/unhealthy", value="Xid-79", effect="NoSchedule")])
    found.node(Change(Did.MODIFIED, shut, NODE), 2.0)
    assert said == [ev.NodeCordoned(2.0, "n", cause="health")]
    found.node(Change(Did.MODIFIED, NODE, shut), 3.0)
    assert said[1:] == [ev.NodeUncordoned(3.0, "n", cause="cluster")]


def test_gpus_that_are_out_of_service_fail_in_the_world_and_are_repaired(said):
    """Given GPUs that health has taken out, each change is told once; one that the node has not is none."""
    found = desk(said, {})
    ill = marked([], ill_gpus='{"1": "Xid 48", "9": "Xid 48"}')
    found.node(Change(Did.MODIFIED, ill, NODE), 2.0)
    found.node(Change(Did.MODIFIED, ill, ill), 3.0)
    assert said == [ev.GpuFailed(2.0, "n", 1)]
    found.node(Change(Did.MODIFIED, NODE, ill), 4.0)
    assert said[1:] == [ev.GpuRepaired(4.0, "n", 1)]


def test_weights_of_the_configuration_reach_the_binder():
    config = OperatorConfig(placement=Placement(weights={"utilisation": 7.5}))
    weights = {one.plugin.name: one.weight for one in binder_profile(config).plugins}
    assert weights["utilisation"] == 7.5
    assert weights.keys() == {one.plugin.name for one in binder_profile(OperatorConfig()).plugins}


def test_a_plugin_that_nobody_has_is_named():
    with pytest.raises(InputError, match=r"placement\.weights.*charm"):
        binder_profile(OperatorConfig(placement=Placement(weights={"charm": 1.0})))
