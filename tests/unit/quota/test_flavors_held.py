"""Whose quota jobs use that had their GPUs before there was any."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.node_table import TYPE_LABEL
from batuta.core.quota import ClusterQueue, Flavor, FlavorQuota, Limits, Quota, ResourceGroup
from batuta.quota.usage import flavors_held
from tests.support.quotas import GPU, quota_of
from tests.support.worlds import make_job, make_world

GROUPS = (ResourceGroup((GPU,), (FlavorQuota("old", (Limits(8000),)), FlavorQuota("new", (Limits(8000),)))),)
QUOTA = quota_of(
    ClusterQueue("a", "", GROUPS),
    Flavor("old", ((TYPE_LABEL, "T4"),)),
    Flavor("new", ((TYPE_LABEL, "H100"),)),
)
NODES = (Node("n0", 4, "T4"), Node("n1", 4, "H100"))


def test_without_quota_there_is_nothing_to_use() -> None:
    world = make_world(NODES, {"1": "n1:01"}, [make_job("1", 2, queue="a")])
    assert flavors_held(world) == {}


def test_a_job_that_was_there_before_uses_the_flavor_of_its_nodes() -> None:
    jobs = [make_job("1", 2, queue="a"), make_job("2", 1, queue="a"), make_job("3", 1, queue="nowhere")]
    world = make_world(NODES, {"1": "n1:01", "2": "n0:0", "3": "n0:1"}, jobs)
    apply(world, ev.QuotaSet(1.0, QUOTA))
    assert flavors_held(world) == {"1": ((GPU, "new"),), "2": ((GPU, "old"),)}


def test_what_a_job_was_given_goes_before_what_its_nodes_say() -> None:
    world = make_world(NODES, {"1": "n1:01"}, [make_job("1", 2, queue="a")])
    apply(world, ev.QuotaSet(1.0, QUOTA))
    world.flavors["1"] = ((GPU, "old"),)
    assert flavors_held(world) == {"1": ((GPU, "old"),)}


def test_a_queue_that_is_gone_gives_nothing() -> None:
    world = make_world(NODES, {"1": "n1:01"}, [make_job("1", 2, queue="a")])
    apply(world, ev.QuotaSet(1.0, Quota(cluster_queues=(ClusterQueue("b", "", GROUPS),))))
    assert flavors_held(world) == {}
