"""A cluster with quota on which anything may happen: it comes to rest, limits hold, nobody stops in vain."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.plan import Preempt, Resize, Start
from batuta.core.quota import ClusterQueue, Limits, Preemption, Quota, Reclaim, StopPolicy, Within
from batuta.core.reason import Reason
from batuta.quota.simulator import QuotaSimulator
from batuta.quota.workload import PodSet
from tests.support.examples import examples
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of
from tests.support.random_quota import changed, quotas

STEPS = 12
MAKE_ROOM = (Reason.PUSHED_ASIDE, Reason.RECLAIMED, Reason.SHARED_OUT)
SIZES: tuple[dict[str, Any], ...] = (
    {"size": 1},
    {"size": 3},
    {"size": 2, "min": 1, "max": 8},
    {"size": 2, "min": 2, "max": 16},
    {"size": 4, "min": 2, "max": 8, "sizes": (2, 4, 8)},
    {"size": 4, "min": 2, "max": 6, "gpus_per_replica": 2},
    {"size": 8, "min": 8, "max": 8},
)


class Story:
    """A cluster of three nodes, and what happens on it."""

    def __init__(self, quota: Quota, policy: str) -> None:
        self.cluster = Cluster(quota, (8, 4, 4), policy)
        self.quota, self.count = quota, 0

    def step(self, data: st.DataObject) -> None:
        cluster, names = self.cluster, self.cluster.world.jobs.ids
        kinds = ["submit"] * 5 + ["quota", "lose", "return", "time"] + (["end"] * 3 if names else [])
        match data.draw(st.sampled_from(kinds)):
            case "submit":
                self.count += 1
                queue = data.draw(st.sampled_from([one.name for one in self.quota.cluster_queues]))
                wishes = dict(data.draw(st.sampled_from(SIZES)))
                wishes["priority"] = data.draw(st.integers(0, 2))
                wishes["restart_s"] = data.draw(st.sampled_from((0.0, 60.0)))
                cluster.submit(f"j{self.count}", queue, wishes.pop("size"), **wishes)
            case "end":
                cluster.ends(data.draw(st.sampled_from(names)))
            case "quota":
                self.quota = data.draw(changed(self.quota))
                cluster.quota_is(self.quota)
            case "lose":
                cluster.loses(data.draw(st.sampled_from(("n0", "n1", "n2"))))
            case "return":
                for node in cluster.world.nodes.nodes:
                    cluster.happens(ev.NodeReturned(cluster.now_s, node.name))
            case "time":
                cluster.passes(data.draw(st.sampled_from((1.0, 700.0))))

    def rests(self) -> None:
        """Cycles until nothing changes; who is preempted makes room for somebody at once."""
        for _ in range(20):
            done = self.cluster.cycle()
            commands = self.cluster.last.commands
            stopped = [one.job for one in commands if isinstance(one, Preempt) and one.reason in MAKE_ROOM]
            served = [one.job for one in commands if isinstance(one, Start | Resize)]
            assert served or not stopped, f"{stopped} stopped for nobody"
            if not done:
                return
        raise AssertionError("it does not come to rest")


@settings(max_examples=examples(50))
@given(st.data())
def test_it_comes_to_rest_whatever_happens_and_nobody_stops_in_vain(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(("elastic-fifo", "elastic-srjf", "fifo")))
    story = Story(data.draw(quotas(cpu=False)), policy)
    for _ in range(STEPS):
        story.step(data)
        story.rests()


# ------------------------------------------------------------------------------------------ weights converge

TAKES_BACK = Preemption(Within.LOWER_PRIORITY, Reclaim.ANY)
weights = st.sampled_from((0.5, 1.0, 2.0, 3.0))


@settings(max_examples=examples(30))
@given(weights, weights, st.integers(0, 3), st.integers(0, 3), st.integers(4, 24))
def test_what_two_queues_borrow_is_as_their_weights(
    one: float, other: float, first: int, second: int, idle: int
) -> None:
    """Within one GPU of the exact proportion, whoever came first."""

    def queue(name: str, nominal: int, weight: float) -> ClusterQueue:
        return ClusterQueue(name, "all", gpus(nominal), preemption=TAKES_BACK, weight=weight)

    quota = quota_of(queue("a", first, one), queue("b", second, other), queue("idle", idle, 1.0))
    cluster = Cluster(quota, (16, 16))
    cluster.submit("A", "a", 1, max=64)
    cluster.rest()
    cluster.submit("B", "b", 1, max=64)
    cluster.rest()
    sizes = cluster.sizes
    assert sum(sizes.values()) == first + second + idle
    borrowed = {"A": sizes["A"] - first, "B": sizes["B"] - second}
    exact = idle * one / (one + other)
    assert abs(borrowed["A"] - exact) <= 1 or min(borrowed.values()) <= 1, (sizes, exact)


# ------------------------------------------------------------------------- the cluster and the trial agree

ASKED = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(-1, 1)), max_size=14)


@settings(max_examples=examples(60))
@given(quotas(cpu=False, fair=False), ASKED)
def test_rigid_jobs_of_queues_that_lend_nothing_get_what_the_trial_gives(
    quota: Quota, asked: list[tuple[int, int, int]]
) -> None:
    """With room for all in the cluster, and all there at once, quota alone decides: in both alike."""
    alone = tuple(replace(queue, cohort="") for queue in quota.cluster_queues)
    quota = replace(quota, cohorts=(), cluster_queues=tuple(map(_without_limits, alone)))
    held = tuple(replace(queue, stop=StopPolicy.HOLD) for queue in quota.cluster_queues)
    trial = QuotaSimulator(replace(quota, cluster_queues=held))
    cluster = Cluster(quota, (64,))
    for k, (number, size, priority) in enumerate(asked):
        queue = quota.cluster_queues[number % len(quota.cluster_queues)].name
        cluster.submit(f"j{k}", queue, size, priority=priority)
        trial.submit(f"j{k}", queue, (PodSet((("nvidia.com/gpu", size * 1000),)),), priority)
    cluster.cycle()
    assert set(cluster.sizes) == set(trial.change(quota).admitted)


def _without_limits(queue: ClusterQueue) -> ClusterQueue:
    """A queue without a cohort has no limits to others."""
    groups = tuple(
        replace(
            group,
            flavors=tuple(
                replace(one, limits=tuple(Limits(limit.nominal) for limit in one.limits)) for one in group.flavors
            ),
        )
        for group in queue.groups
    )
    return replace(queue, groups=groups)
