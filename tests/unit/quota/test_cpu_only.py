"""CPU-only jobs in the light of quota: they count in CPU, memory and pods, and in nothing else."""

import pytest

from batuta.core.cluster import Node
from batuta.core.quota import ALL_GPUS, MILLI, ClusterQueue, FlavorQuota, Limits, ResourceGroup, Strategy
from batuta.quota.workload import demand
from tests.support.quota_stories import Cluster
from tests.support.quotas import GPU, gpus, quota_of
from tests.support.worlds import make_job

GIB = 1 << 30


def with_cpus(cpus: int, strategy: Strategy = Strategy.BEST_EFFORT_FIFO) -> Cluster:
    """Queue `a` with two GPUs and so many CPUs, on a node that has far more of both."""
    limits = (Limits(2 * MILLI), Limits(cpus * MILLI))
    groups = (ResourceGroup((GPU, "cpu"), (FlavorQuota("gpu", limits),)),)
    quota = quota_of(ClusterQueue("a", "", groups, strategy))
    return Cluster(quota, [Node("n0", 8, cpus_milli=64_000)])


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        (GPU, 0),
        (ALL_GPUS, 0),
        ("cpu", 6 * MILLI),
        ("memory", 3 * 4 * GIB * MILLI),
        ("pods", 3 * MILLI),
    ],
)
def test_it_takes_its_replicas_and_what_each_of_them_needs(resource: str, amount: int) -> None:
    job = make_job("j", 3, gpus_per_replica=0, cpus_milli_per_gpu=2000, memory_mib_per_gpu=4096)
    assert demand(job, resource, 3) == amount


def test_it_uses_the_cpu_quota_of_its_queue_and_waits_when_that_is_used_up() -> None:
    cluster = with_cpus(4)
    cluster.submit("runs", "a", 3, gpus_per_replica=0, cpus_milli_per_gpu=1000)
    cluster.rest()
    cluster.submit("j", "a", 2, gpus_per_replica=0, cpus_milli_per_gpu=1000)
    cluster.rest()
    assert cluster.why("j") == "QUOTA_SHORT_OF_CPUS"
    assert cluster.sentence("j") == "needs 2 CPUs, its queue has 1 of 4 left, its cohort lends 0 more"
    cluster.ends("runs")
    cluster.rest()
    assert cluster.why("j") == "FULL_SIZE"


@pytest.mark.parametrize("strategy", list(Strategy))
def test_where_quota_is_in_gpus_alone_it_waits_for_none(strategy: Strategy) -> None:
    """Not even behind a job that waits for GPUs, in a queue in which nobody overtakes."""
    cluster = Cluster(quota_of(ClusterQueue("a", "", gpus(2), strategy)), [Node("n0", 8)])
    cluster.submit("runs", "a", 2)
    cluster.submit("waits", "a", 1)
    cluster.rest()
    assert cluster.why("waits") == "QUOTA_EXHAUSTED"
    cluster.submit("j", "a", 2, gpus_per_replica=0)
    cluster.rest()
    assert cluster.why("j") == "FULL_SIZE"
    assert cluster.why("waits") == "QUOTA_EXHAUSTED"


def test_jobs_with_gpus_have_their_gpu_quota_beside_it() -> None:
    cluster = with_cpus(8)
    cluster.submit("cpu", "a", 4, gpus_per_replica=0, cpus_milli_per_gpu=1000)
    cluster.submit("train", "a", 2, cpus_milli_per_gpu=1000)
    cluster.rest()
    assert [cluster.why(job) for job in ("cpu", "train")] == ["FULL_SIZE"] * 2
