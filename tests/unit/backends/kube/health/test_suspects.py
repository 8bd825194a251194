"""What is thought of a node by who watches jobs reaches the book, and only jobs of three namespaces take it out."""

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.health.controller import HealthController, HealthOptions
from batuta.backends.kube.health.state import StoredState
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.core.health_record import State, Target
from batuta.gpu.health.rules import read_rules

GPU = "nvidia.com/gpu"
WHY = "straggler: job j is held up by a straggler: rank 1 of 4"


def make_desk() -> HealthController:
    observed = ObjectCache()
    for name in ("n0", "n1", "n2", "n3"):
        node = {"metadata": {"name": name}, "status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "4"}}}
        observed.nodes[name] = msgspec.convert(node, objects.Node)
    site = ReconcileContext(
        Cluster(),
        WriteQueue(lambda posted: None),
        observed.owners(),
        lambda event: None,
        lambda party: None,
    )
    return HealthController(HealthOptions(read_rules(), "batuta-system"), StoredState(), site, observed, {}, (GPU,))


def test_a_node_that_holds_a_job_up_is_suspect():
    desk = make_desk()
    desk.suspect("n1", "team-a/j", WHY)
    desk.suspect("gone", "team-a/j", WHY)
    desk.drive(1000.0)
    records = desk.memory.book.records
    assert {target: record.state for target, record in records.items()} == {Target("n1"): State.SUSPECT}


def test_jobs_of_three_namespaces_take_it_out():
    desk = make_desk()
    for number in range(3):
        desk.suspect("n1", f"team-{number}/j", WHY)
    desk.drive(1000.0)
    assert Target("n1") in desk.memory.book.out
    assert "in jobs of 3 namespaces" in desk.memory.book.look(Target("n1")).reason


def test_jobs_of_one_tenant_take_it_from_no_one():
    desk = make_desk()
    for number in range(10):
        desk.suspect("n1", f"team-a/j{number}", WHY)
    desk.drive(1000.0)
    assert not desk.memory.book.out
