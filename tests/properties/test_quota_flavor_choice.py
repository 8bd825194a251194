"""A workload that has no choice is answered without a search, and as a search would answer it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.quota import MILLI, FlavorResource, Quota
from batuta.quota.flavors import Mode
from batuta.quota.snapshot import QuotaState
from batuta.quota.workload import FlavorChoice, PodSet, Workload
from tests.support.examples import examples
from tests.support.random_quota import GPU, quotas


def filled(data: st.DataObject, quota: Quota) -> QuotaState:
    """A state with workloads that came one after the other and got what was left then."""
    state = QuotaState(quota)
    for number in range(data.draw(st.integers(0, 7))):
        workload = drawn(data, state, number)
        found = state.fit(workload)
        if found is not None:
            state.admit(workload, found)
    return state


def drawn(data: st.DataObject, state: QuotaState, number: int) -> Workload:
    queue = data.draw(st.sampled_from(sorted(state.tree.queues)))
    pods = PodSet(((GPU, data.draw(st.integers(1, 4)) * MILLI),))
    priority = data.draw(st.integers(-1, 1))
    return Workload(number, state.tree.queues[queue], (pods,), priority, number)


@settings(max_examples=examples(120))
@given(st.data())
def test_with_one_way_only_the_answer_is_that_of_a_search(data: st.DataObject) -> None:
    quota = data.draw(quotas(cpu=False))
    state = filled(data, quota)
    searching = drawn(data, state, 100)
    group = quota.queue_of[searching.queue.name].groups[0]
    flavor = data.draw(st.sampled_from([one.flavor for one in group.flavors]))
    searching.only = frozenset({flavor})
    cell, (_, amount) = state.tree.fr_number[FlavorResource(flavor, GPU)], searching.pod_sets[0].requests[0]
    knowing = Workload(
        100,
        searching.queue,
        searching.pod_sets,
        searching.priority,
        searching.place,
        only=searching.only,
        flavor_choice=FlavorChoice(GPU, flavor, cell, amount),
    )
    (found, targets), (known, same) = state.nominate(searching), state.nominate(knowing)
    assert [target.workload.key for target in same] == [target.workload.key for target in targets]
    assert (known.mode, known.level, known.usage) == (found.mode, found.level, found.usage)
    assert (known.short, known.flavors) == (found.short, found.flavors)
    assert known.refusal == found.refusal
    if found.mode is not Mode.FIT:
        # Who fits does not go on searching, whatever there would be.
        assert known.has_more == found.has_more
    fit, sure = state.fit(searching), state.fit(knowing)
    assert (fit is None) == (sure is None)
    if fit is not None and sure is not None:
        assert (sure.usage, sure.flavors, sure.level) == (fit.usage, fit.flavors, fit.level)
