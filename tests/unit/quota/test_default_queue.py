"""Jobs that name no queue may use what quotas leave of the cluster, and no more."""

import pytest

from batuta.core.cluster import Node
from batuta.core.quota import ClusterQueue, Cohort, Flavor, LocalQueue, Quota, rest_of, tell_rest
from batuta.quota.usage import measure
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of, short


def left(cluster: Cluster) -> dict[str, int]:
    """By GPU type: what quotas leave."""
    return {one.gpu_type: one.left for one in rest_of(cluster.world.effective_quota)}


def test_given_quota_for_all_gpus_a_job_that_names_no_queue_waits_beside_idle_ones() -> None:
    cluster = Cluster(short(("vision", {"*": 4}), ("speech", {"*": 4})), (8,))
    cluster.submit("j", "default", 1)
    assert cluster.rest() == []
    assert cluster.why("j") == "EXCEEDS_REST"
    cluster.submit("own", "vision", 4)
    assert cluster.rest() != []


def test_an_elastic_job_that_names_no_queue_grows_into_what_quotas_leave_and_no_further() -> None:
    cluster = Cluster(short(("vision", {"*": 5})), (8,))
    cluster.submit("j", "default", 1, max=8)
    cluster.rest()
    assert cluster.sizes == {"j": 3}


def test_given_less_than_before_jobs_that_name_no_queue_shrink_and_then_stop() -> None:
    cluster = Cluster(Quota(), (8,))
    cluster.submit("j", "default", 2, min=2, max=8)
    cluster.rest()
    assert cluster.sizes == {"j": 8}
    cluster.quota_is(short(("vision", {"*": 5})))
    cluster.cycle(checked=False)
    cluster.rest()
    assert cluster.sizes == {"j": 3}
    cluster.quota_is(short(("vision", {"*": 8})))
    cluster.cycle(checked=False)
    cluster.rest()
    assert cluster.sizes == {}


def test_a_default_queue_that_is_given_quota_has_that() -> None:
    cluster = Cluster(short(("vision", {"*": 6}), ("default", {"*": 2})), (8,))
    cluster.submit("j", "default", 1, max=8)
    cluster.rest()
    assert cluster.sizes == {"j": 2}
    assert rest_of(cluster.world.effective_quota) == ()


def test_queues_without_a_limit_take_nothing_from_it() -> None:
    cluster = Cluster(short(("night", {}), held=["night"]), (8,))
    cluster.submit("j", "default", 8)
    cluster.rest()
    assert cluster.sizes == {"j": 8}


TYPES = (Node("a0", 8, "H100"), Node("a1", 8, "H100"), Node("b0", 4, "T4"))


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        pytest.param(short(("a", {"H100": 10})), {"H100": 6, "T4": 4}, id="by type"),
        pytest.param(short(("a", {"H100": 10}), ("b", {"H100": 20})), {"H100": 0, "T4": 4}, id="too much"),
        pytest.param(short(("a", {"*": 18})), {"H100": 0, "T4": 2}, id="of all types"),
        pytest.param(short(("a", {"H100": 16, "*": 18})), {"H100": 0, "T4": 2}, id="a type, and all types"),
        pytest.param(
            quota_of(Cohort("c", groups=gpus(3, flavor="t4")), ClusterQueue("a", "c", gpus(4, flavor="t4"))),
            {"H100": 16, "T4": 0},
            id="of a cohort",
        ),
    ],
)
def test_what_is_left_is_counted_by_gpu_type(quota: Quota, expected: dict[str, int]) -> None:
    flavors = {one.name: one for one in quota.flavors}
    if "t4" in flavors:
        quota = quota_of(*quota.cohorts, *quota.cluster_queues, Flavor("t4", (("batuta.dev/gpu-type", "T4"),)))
    assert left(Cluster(quota, TYPES)) == expected


def test_nodes_that_come_and_go_change_what_is_left() -> None:
    cluster = Cluster(short(("a", {"*": 8})), (8, 8))
    assert left(cluster) == {"gpu": 8}
    cluster.loses("n1")
    assert left(cluster) == {"gpu": 0}
    assert "none of the 8 GPUs" in tell_rest(cluster.world.effective_quota)


def test_while_nothing_changes_it_is_the_very_same_quota() -> None:
    cluster = Cluster(short(("a", {"*": 4})), (8, 8))
    before = cluster.world.effective_quota
    cluster.loses("n1")
    assert cluster.world.effective_quota != before
    holds = cluster.world.effective_quota
    cluster.loses("n1")
    assert cluster.world.effective_quota is holds


def test_on_kubernetes_it_is_for_every_namespace_that_has_no_local_queue_of_that_name() -> None:
    quota = quota_of(
        ClusterQueue("team", groups=gpus(8)), LocalQueue("default", "team", "lab"), LocalQueue("a", "team")
    )
    cluster = Cluster(quota, (8,))
    cluster.submit("theirs", "default", 2, namespace="lab")
    cluster.submit("other", "default", 2, namespace="elsewhere")
    cluster.rest()
    assert cluster.sizes == {"theirs": 2}
    assert cluster.why("other") == "EXCEEDS_REST"


def test_what_it_uses_is_counted_like_that_of_any_queue() -> None:
    cluster = Cluster(short(("a", {"*": 4})), (8,))
    use = measure(cluster.world.effective_quota, ())
    [own] = [one for one in use.queues if one.queue.name == "default"]
    assert [(fr.flavor_resource.flavor, fr.limits.nominal) for fr in own.flavors] == [("gpu", 4000)]
