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


def test_weights_of_the_configuration_reach_the_binder():
    config = OperatorConfig(placement=Placement(weights={"utilisation": 7.5}))
    weights = {one.plugin.name: one.weight for one in binder_profile(config).plugins}
    assert weights["utilisation"] == 7.5
    assert weights.keys() == {one.plugin.name for one in binder_profile(OperatorConfig()).plugins}


def test_a_plugin_that_nobody_has_is_named():
    with pytest.raises(InputError, match=r"placement\.weights.*charm"):
        binder_profile(OperatorConfig(placement=Placement(weights={"charm": 1.0})))
