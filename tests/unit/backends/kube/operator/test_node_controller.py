"""What the World is told of nodes, and what the configuration says of the binder."""

from dataclasses import replace

import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.binder import Cluster
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.node_controller import NodeController, Used
from batuta.backends.kube.operator.nodes import NodeReporter, read_node
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.backends.kube.operator_config import OperatorConfig, Placement
from batuta.bootstrap.operator_leader import binder_profile
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement as CorePlacement
from batuta.core.cluster import Span
from batuta.core.job import Job
from batuta.core.world import World
from batuta.spec.problem import InputError
from tests.support.invariants import check_invariants

GPU = "nvidia.com/gpu"
NODE = objects.Node(
    metadata=objects.Meta(name="n"),
    status=objects.NodeStatus(allocatable={GPU: "4", "cpu": "8", "memory": "16Gi"}),
)


@pytest.fixture
def said() -> list[ev.Event]:
    return []


def desk(said: list[ev.Event], told: dict[str, Used]) -> NodeController:
    observed = ObjectCache()
    site = ReconcileContext(
        Cluster(), WriteQueue(lambda asked: None), observed.owners(), said.append, lambda party: None
    )
    node = read_node(NODE, None, [GPU])
    assert node is not None
    made = NodeController(site, observed, NodeReporter({"n": (node, True, True)}), [GPU], told)
    made.node(Change(ChangeType.ADDED, NODE), 1.0)
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
    found.node(Change(ChangeType.MODIFIED, shut, NODE), 2.0)
    assert said == [ev.NodeCordoned(2.0, "n", cause="health")]
    found.node(Change(ChangeType.MODIFIED, NODE, shut), 3.0)
    assert said[1:] == [ev.NodeUncordoned(3.0, "n", cause="cluster")]


def test_gpus_that_are_out_of_service_fail_in_the_world_and_are_repaired(said):
    """Given GPUs that health has taken out, each change is told once; one that the node has not is none."""
    found = desk(said, {})
    ill = marked([], ill_gpus='{"1": "Xid 48", "9": "Xid 48"}')
    found.node(Change(ChangeType.MODIFIED, ill, NODE), 2.0)
    found.node(Change(ChangeType.MODIFIED, ill, ill), 3.0)
    assert said == [ev.GpuFailed(2.0, "n", 1)]
    found.node(Change(ChangeType.MODIFIED, NODE, ill), 4.0)
    assert said[1:] == [ev.GpuRepaired(4.0, "n", 1)]


CPU_NODE = objects.Node(
    metadata=objects.Meta(name="c", labels={"topology.kubernetes.io/rack": "r1"}),
    spec=objects.NodeSpec(
        taints=[
            objects.Taint(key="node-role.kubernetes.io/control-plane", effect="NoSchedule"),
            objects.Taint(key="quiet", value="1", effect="PreferNoSchedule"),
        ]
    ),
    status=objects.NodeStatus(allocatable={"cpu": "3500m", "memory": "16Gi", "pods": "110"}),
)


def test_a_node_without_gpus_is_in_the_world_with_its_cpu_memory_and_taints():
    """A control-plane node takes a CPU-only job only if the job tolerates its taint."""
    found = read_node(CPU_NODE, None, [GPU])
    assert found is not None
    assert (found.gpus, found.cpus_milli, found.memory_mib, found.rack) == (0, 3500, 16384, "r1")
    assert found.taints == ("node-role.kubernetes.io/control-plane=:NoSchedule",)
    world = World()
    apply(world, ev.NodeAdded(0.0, found))
    job = Job("j", 0.0, gpus_per_replica=0)
    assert not world.nodes.matching(job)
    tolerant = replace(job, tolerations=("node-role.kubernetes.io/control-plane",))
    assert world.nodes.matching(tolerant)


def test_a_node_that_has_not_said_what_it_has_is_not_in_the_world():
    """To the World, 0 CPUs would be CPUs that nobody counts."""
    assert read_node(objects.Node(metadata=objects.Meta(name="c")), None, [GPU]) is None


def test_what_pods_of_others_use_of_a_node_without_gpus_is_told(said):
    observed, cluster = ObjectCache(), Cluster()
    site = ReconcileContext(cluster, WriteQueue(lambda asked: None), observed.owners(), said.append, lambda party: None)
    made = NodeController(site, observed, NodeReporter({}), [GPU], {})
    made.node(Change(ChangeType.ADDED, CPU_NODE), 1.0)
    requests = objects.Resources(requests={"cpu": "500m", "memory": "1Gi"})
    container = objects.Container(name="main", resources=requests)
    cluster.pod_set(
        objects.Pod(
            metadata=objects.Meta(name="web", namespace="default"),
            spec=objects.PodSpec(node_name="c", containers=[container]),
        )
    )
    made.tell_others(lambda node: (), 2.0)
    assert said[-1] == ev.OthersUse(2.0, "c", (), 500, 1024)


def test_a_node_whose_gpus_go_keeps_its_jobs_without_gpus_and_gets_the_gpus_back():
    """Given a device plugin that stops, jobs with GPUs lose them, and CPU-only jobs go on."""
    with_gpus = read_node(NODE, None, [GPU])
    status = objects.NodeStatus(allocatable={GPU: "0", "cpu": "8", "memory": "16Gi"})
    without = read_node(objects.Node(metadata=NODE.metadata, status=status), None, [GPU])
    assert with_gpus is not None
    assert without is not None
    world = World()
    apply(world, ev.NodeAdded(0.0, with_gpus))
    for job, where in (
        (Job("gpu", 0.0), Span("n", (0,))),
        (Job("cpu", 0.0, gpus_per_replica=0), Span("n", ())),
    ):
        apply(world, ev.JobSubmitted(0.0, job))
        apply(world, ev.JobFound(0.0, job.id, CorePlacement((where,)), True))
    apply(world, ev.NodeChanged(1.0, without))
    check_invariants(world)
    held = [world.jobs.placements[world.jobs.row(job)] for job in ("gpu", "cpu")]
    assert held == [None, CorePlacement((Span("n", ()),))]
    apply(world, ev.NodeChanged(2.0, with_gpus))
    check_invariants(world)
    assert world.layout.total_free == 4


def test_weights_of_the_configuration_reach_the_binder():
    config = OperatorConfig(placement=Placement(weights={"utilisation": 7.5}))
    weights = {one.plugin.name: one.weight for one in binder_profile(config).plugins}
    assert weights["utilisation"] == 7.5
    assert weights.keys() == {one.plugin.name for one in binder_profile(OperatorConfig()).plugins}


def test_a_plugin_that_nobody_has_is_named():
    with pytest.raises(InputError, match=r"placement\.weights.*charm"):
        binder_profile(OperatorConfig(placement=Placement(weights={"charm": 1.0})))
