"""Quota in random trees of cohorts: the usage are right, limits hold, and no more have to go than must."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.quota import MILLI, Quota, Reclaim, Within
from batuta.quota.cycle import Outcome, run_cycle
from batuta.quota.flavors import Mode
from batuta.quota.snapshot import QuotaState
from batuta.quota.tree import Node, QuotaTree
from batuta.quota.workload import Workload
from tests.support.examples import examples
from tests.support.random_quota import above_limits, pod_sets, quotas, used

Amounts = dict[int, int]


@st.composite
def uses(draw: Any, tree: QuotaTree) -> dict[str, Amounts]:
    """What each queue uses, whether it may or not."""
    amounts = st.dictionaries(st.sampled_from(range(len(tree.frs))), st.integers(0, 6).map(lambda n: n * MILLI))
    return {name: draw(amounts) for name in tree.queues} if tree.frs else {}


def fill(tree: QuotaTree, by_queue: dict[str, Amounts]) -> None:
    for name, amounts in by_queue.items():
        tree.queues[name].add(amounts)


def books(tree: QuotaTree) -> dict[Node, Amounts]:
    nodes = (*tree.cohorts.values(), *tree.queues.values())
    return {node: {cell: n for cell, n in node.usage.items() if n} for node in nodes}


def without_zeros(counted: dict[Node, Amounts]) -> dict[Node, Amounts]:
    return {node: {cell: n for cell, n in own.items() if n} for node, own in counted.items()}


@settings(max_examples=examples(150))
@given(st.data())
def test_books_kept_one_by_one_are_those_of_a_count_from_scratch(data: st.DataObject) -> None:
    tree = QuotaTree(data.draw(quotas()))
    by_queue = data.draw(uses(tree))
    fill(tree, by_queue)
    assert books(tree) == without_zeros(used(tree, by_queue))
    gone = data.draw(st.sets(st.sampled_from(sorted(tree.queues))))
    for name in gone:
        tree.queues[name].remove(by_queue.pop(name, {}))
    assert books(tree) == without_zeros(used(tree, by_queue))


@settings(max_examples=examples(200))
@given(st.data())
def test_what_is_left_is_what_may_be_added_and_no_thousandth_more(data: st.DataObject) -> None:
    tree = QuotaTree(data.draw(quotas()))
    by_queue = data.draw(uses(tree))
    for name, amounts in list(by_queue.items()):
        # Take only what may be taken, so that nobody is above a limit.
        node = tree.queues[name]
        by_queue[name] = {cell: min(n, node.left(cell)) for cell, n in amounts.items() if node.left(cell) > 0}
        node.add(by_queue[name])
    assert not above_limits(tree, by_queue)
    for name, node in tree.queues.items():
        for cell in range(len(tree.frs)):
            left = node.left(cell)
            assert left >= 0
            for more, fits in ((left, True), (left + 1, False)):
                own = {**by_queue.get(name, {})}
                own[cell] = own.get(cell, 0) + more
                assert (not above_limits(tree, {**by_queue, name: own})) is fits


@settings(max_examples=examples(100))
@given(quotas())
def test_in_an_empty_tree_all_that_a_queue_could_ever_have_is_left(quota: Quota) -> None:
    tree = QuotaTree(quota)
    for node in tree.queues.values():
        for cell in range(len(tree.frs)):
            assert node.left(cell) == node.most(cell)


# ------------------------------------------------------------------------------------- workloads in a state


@dataclass
class Full:
    """A state with workloads that came one after the other and got what was left then."""

    quota: Quota
    state: QuotaState = field(init=False)
    booked: list[Workload] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = QuotaState(self.quota)

    def workload(self, data: st.DataObject, number: int) -> Workload:
        queue = data.draw(st.sampled_from(sorted(self.state.tree.queues)))
        own = data.draw(pod_sets(self.quota, queue))
        priority = data.draw(st.integers(-1, 1))
        return Workload(number, self.state.tree.queues[queue], own, priority, number)

    def fill(self, data: st.DataObject) -> None:
        for number in range(data.draw(st.integers(0, 7))):
            workload = self.workload(data, number)
            found, _ = self.state.nominate(workload)
            if found.mode is Mode.FIT:
                workload.flavors = tuple(found.flavors.items())
                self.state.book(workload, found.usage)
                self.booked.append(workload)

    def counted(self) -> dict[Node, Amounts]:
        by_queue: dict[str, Amounts] = {}
        for holders in self.state.admitted.values():
            for workload in holders.values():
                own = by_queue.setdefault(workload.queue.name, {})
                for cell, amount in workload.usage.items():
                    own[cell] = own.get(cell, 0) + amount
        return without_zeros(used(self.state.tree, by_queue))


@settings(max_examples=examples(250))
@given(st.data())
def test_those_pushed_aside_may_be_they_suffice_and_none_of_them_could_stay(data: st.DataObject) -> None:
    full = Full(data.draw(quotas()))
    full.fill(data)
    workload = full.workload(data, 100)
    before = full.counted()
    found, targets = full.state.nominate(workload)
    assert books(full.state.tree) == before, "looking changed the books"
    rules = full.quota.queue_of[workload.queue.name].preemption
    for target in targets:
        other = target.workload
        if other.queue is workload.queue:
            assert rules.within is not Within.NEVER
            assert other.priority <= workload.priority
        else:
            assert rules.reclaim is not Reclaim.NEVER
            assert rules.reclaim is Reclaim.ANY or other.priority < workload.priority
            assert other.queue.borrows
            assert other.queue.root is workload.queue.root
    gone = [target.workload for target in targets]
    if not gone:
        return
    with full.state.without(gone):
        assert workload.queue.fits(found.usage)
        borrows = any(workload.queue.borrows_with(cell, n) for cell, n in found.usage.items())
    for kept in gone:
        with full.state.without([one for one in gone if one is not kept]):
            fits = workload.queue.fits(found.usage)
            now_borrows = any(workload.queue.borrows_with(cell, n) for cell, n in found.usage.items())
        assert not fits or (now_borrows and not borrows), f"{kept.key} could have stayed"


@settings(max_examples=examples(150))
@given(st.data())
def test_a_cycle_books_what_it_admits_and_nothing_else(data: st.DataObject) -> None:
    full = Full(data.draw(quotas()))
    full.fill(data)
    heads = {workload.queue: workload for workload in (full.workload(data, 100 + k) for k in range(4))}
    entries = run_cycle(full.state, list(heads.values()))
    admitted = {entry.workload.key for entry in entries if entry.outcome is Outcome.ADMITTED}
    booked = {workload.key for holders in full.state.admitted.values() for workload in holders.values()}
    assert booked == {workload.key for workload in full.booked} | admitted
    assert books(full.state.tree) == full.counted()
    for entry in entries:
        if entry.outcome is Outcome.ADMITTED:
            assert all(entry.workload.queue.left(cell) >= 0 for cell in entry.workload.usage)
        else:
            assert entry.refusal.text or entry.refusal.fr is not None
