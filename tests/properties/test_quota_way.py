"""A claim that has no choice is answered without a search, and as a search would answer it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.quota import MILLI, Cell, Quota
from batuta.quota.claim import Claim, PodSet, Way
from batuta.quota.flavors import Mode
from batuta.quota.ledger import Ledger
from tests.support.examples import examples
from tests.support.random_quota import GPU, quotas


def filled(data: st.DataObject, quota: Quota) -> Ledger:
    """A ledger with claims that came one after the other and got what was left then."""
    ledger = Ledger(quota)
    for number in range(data.draw(st.integers(0, 7))):
        claim = drawn(data, ledger, number)
        found = ledger.fit(claim)
        if found is not None:
            ledger.admit(claim, found)
    return ledger


def drawn(data: st.DataObject, ledger: Ledger, number: int) -> Claim:
    queue = data.draw(st.sampled_from(sorted(ledger.tree.queues)))
    pods = PodSet(((GPU, data.draw(st.integers(1, 4)) * MILLI),))
    priority = data.draw(st.integers(-1, 1))
    return Claim(number, ledger.tree.queues[queue], (pods,), priority, (float(number), number))


@settings(max_examples=examples(120))
@given(st.data())
def test_with_one_way_only_the_answer_is_that_of_a_search(data: st.DataObject) -> None:
    quota = data.draw(quotas(cpu=False))
    ledger = filled(data, quota)
    searching = drawn(data, ledger, 100)
    group = quota.queue_of[searching.queue.name].groups[0]
    flavor = data.draw(st.sampled_from([one.flavor for one in group.flavors]))
    searching.only = frozenset({flavor})
    cell, (_, amount) = ledger.tree.cell_of[Cell(flavor, GPU)], searching.pod_sets[0].requests[0]
    knowing = Claim(
        100,
        searching.queue,
        searching.pod_sets,
        searching.priority,
        searching.place,
        only=searching.only,
        way=Way(GPU, flavor, cell, amount),
    )
    (found, victims), (known, same) = ledger.nominate(searching), ledger.nominate(knowing)
    assert [victim.claim.key for victim in same] == [victim.claim.key for victim in victims]
    assert (known.mode, known.level, known.usage) == (found.mode, found.level, found.usage)
    assert (known.short, known.flavors) == (found.short, found.flavors)
    assert known.refusal == found.refusal
    if found.mode is not Mode.FIT:
        # Who fits does not go on searching, whatever there would be.
        assert known.has_more == found.has_more
    fit, sure = ledger.fit(searching), ledger.fit(knowing)
    assert (fit is None) == (sure is None)
    if fit is not None and sure is not None:
        assert (sure.usage, sure.flavors, sure.level) == (fit.usage, fit.flavors, fit.level)
