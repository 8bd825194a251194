"""Workloads come and go in random trees of quota, quota itself changes, and after each step promises hold."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.quota import ClusterQueue, FlavorResource, Quota, Reclaim, Strategy
from batuta.quota.simulator import QuotaSimulator, QuotaStatus
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import PodSet
from tests.support.examples import examples
from tests.support.random_quota import above_limits, changed, pod_sets, quotas

STEPS = 12
AT_THE_DOOR = ("Suspended", "Misconfigured")
"""Reasons of those who do not even stand in the queue."""


class Story:
    """A trial, and what a bystander remembers of it."""

    def __init__(self, quota: Quota) -> None:
        self.quota, self.trial = quota, QuotaSimulator(quota)
        self.works: dict[str, tuple[str, tuple[PodSet, ...], int, int]] = {}
        """By name: queue, pods, priority and age."""
        self.last = QuotaStatus({}, (), {})
        self.was_cut = False
        self.count = 0

    def submit(self, queue: str, pods: tuple[PodSet, ...], priority: int) -> QuotaStatus:
        self.count += 1
        name = f"w{self.count}"
        self.works[name] = (queue, pods, priority, self.count)
        return self.trial.submit(name, queue, pods, priority)

    def finish(self, name: str) -> QuotaStatus:
        del self.works[name]
        return self.trial.finish(name)

    def prioritize(self, name: str, priority: int) -> QuotaStatus:
        queue, pods, _, age = self.works[name]
        self.works[name] = (queue, pods, priority, age)
        return self.trial.patch(name, priority=priority)

    def change(self, quota: Quota) -> QuotaStatus:
        self.quota, self.was_cut = quota, True
        return self.trial.change(quota)

    def usage(self, standing: QuotaStatus, tree: QuotaTree) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for name, flavors in standing.admitted.items():
            queue, pods, _, _ = self.works[name]
            own = found.setdefault(queue, {})
            for resource, amount in pods[0].requests:
                if resource in flavors:
                    cell = tree.number(FlavorResource(flavors[resource], resource))
                    own[cell] = own.get(cell, 0) + amount * pods[0].count
        return found

    def order(self, name: str) -> tuple[int, int]:
        _, _, priority, age = self.works[name]
        return (-priority, age)


def step(data: st.DataObject, story: Story, changes: bool) -> QuotaStatus:
    """One thing happens, by chance."""
    names = sorted(story.works)
    kinds = ["submit"] * 4 + (["finish", "finish", "priority", "pause"] if names else [])
    kind = data.draw(st.sampled_from(kinds + (["quota"] * 2 if changes else [])))
    match kind:
        case "submit":
            queue = data.draw(st.sampled_from([queue.name for queue in story.quota.cluster_queues]))
            pods = data.draw(pod_sets(story.quota, queue))
            return story.submit(queue, pods, data.draw(st.integers(-1, 1)))
        case "finish":
            return story.finish(data.draw(st.sampled_from(names)))
        case "priority":
            return story.prioritize(data.draw(st.sampled_from(names)), data.draw(st.integers(-1, 1)))
        case "pause":
            name = data.draw(st.sampled_from(names))
            check(story, story.trial.patch(name, active=False))
            return story.trial.patch(name, active=True)
    return story.change(data.draw(changed(story.quota)))


def check(story: Story, now: QuotaStatus) -> None:
    before, story.last = story.last, now
    assert set(now.admitted) | set(now.pending) == set(story.works)
    assert not set(now.admitted) & set(now.pending)
    for name, waiting in now.pending.items():
        assert waiting.reason, f"{name} waits and is not told why"
        assert waiting.message, f"{name} waits and is not told why in words"
        assert waiting.reason != "WaitingForPreemptedWorkloads", f"{name} waits for those who have gone"
    new = set(now.admitted) - set(before.admitted)
    check_limits(story, now, new)
    check_strict(story, now, new)


def check_limits(story: Story, now: QuotaStatus, new: set[str]) -> None:
    tree = QuotaTree(story.quota)
    usage = story.usage(now, tree)
    if not story.was_cut:
        assert not above_limits(tree, usage)
    if not set(usage) <= set(tree.queues):
        # A queue that was removed lends until its last workload has ended; here nobody knows what.
        return
    for queue, amounts in usage.items():
        tree.queues[queue].add(amounts)
    for name in new:
        queue, pods, _, _ = story.works[name]
        for resource, amount in pods[0].requests:
            cell = tree.number(FlavorResource(now.admitted[name][resource], resource))
            assert not amount or tree.queues[queue].left(cell) >= 0, f"{name} got what was not there"


def check_strict(story: Story, now: QuotaStatus, new: set[str]) -> None:
    lost = {one.workload for one in now.preempted}
    for name in new:
        queue = story.works[name][0]
        if story.quota.queue_of[queue].strategy is Strategy.STRICT_FIFO:
            passed = [
                other
                for other, waiting in now.pending.items()
                if story.works[other][0] == queue and story.order(other) < story.order(name)
                if waiting.reason not in AT_THE_DOOR and other not in lost
            ]
            assert not passed, f"{name} overtook {passed}"


@settings(max_examples=examples(60))
@given(st.data())
def test_whatever_happens_limits_hold_nobody_overtakes_and_everybody_is_told_why(
    data: st.DataObject,
) -> None:
    story = Story(data.draw(quotas()))
    for _ in range(STEPS):
        check(story, step(data, story, changes=True))


@settings(max_examples=examples(40))
@given(st.data())
def test_after_a_step_there_is_nothing_left_to_do(data: st.DataObject) -> None:
    """Nobody is preempted for ever: looked at again, all stay where they are."""
    story = Story(data.draw(quotas()))
    for _ in range(STEPS):
        now = step(data, story, changes=True)
        check(story, now)
        again = story.trial.standing()
        assert not again.preempted
        assert again.admitted == now.admitted


@settings(max_examples=examples(60))
@given(st.data())
def test_a_lender_that_may_reclaim_from_any_has_its_own_quota_at_once(data: st.DataObject) -> None:
    """Of one flavor, since with two it may wait for the other one."""
    quota = data.draw(quotas(flavors=1))
    rules = {queue: replace(queue.preemption, reclaim=Reclaim.ANY) for queue in quota.cluster_queues}
    queues = tuple(replace(queue, preemption=rules[queue]) for queue in quota.cluster_queues)
    story = Story(replace(quota, cluster_queues=queues))
    for _ in range(STEPS):
        now = step(data, story, changes=False)
        check(story, now)
        tree = QuotaTree(story.quota)
        usage = story.usage(now, tree)
        for queue in story.quota.cluster_queues:
            line = sorted((name for name in now.pending if story.works[name][0] == queue.name), key=story.order)
            for name in line[:1] if queue.strategy is Strategy.STRICT_FIFO else line:
                wanted = _added(tree, usage.get(queue.name, {}), story.works[name][1], queue)
                limits = tree.queues[queue.name].limits
                within = all(amount <= limits[cell].nominal for cell, amount in wanted.items())
                assert not within, f"{name} waits for what belongs to {queue.name}"


def _added(tree: QuotaTree, usage: Mapping[int, int], pods: tuple[PodSet, ...], queue: ClusterQueue) -> dict[int, int]:
    flavor = queue.groups[0].flavors[0].flavor
    found = {}
    for resource, amount in pods[0].requests:
        cell = tree.number(FlavorResource(flavor, resource))
        found[cell] = usage.get(cell, 0) + amount * pods[0].count
    return found


@settings(max_examples=examples(40))
@given(quotas(), st.lists(st.tuples(st.integers(0, 99), st.integers(1, 3), st.integers(-1, 1)), max_size=12))
def test_the_same_story_ends_the_same_way(quota: Quota, story: list[tuple[int, int, int]]) -> None:
    trials = QuotaSimulator(quota), QuotaSimulator(quota)
    queues = [queue.name for queue in quota.cluster_queues]
    for k, (number, gpus, priority) in enumerate(story):
        pods = (PodSet((("nvidia.com/gpu", gpus * 1000),)),)
        one, other = (trial.submit(f"w{k}", queues[number % len(queues)], pods, priority) for trial in trials)
        assert one == other
