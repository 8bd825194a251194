from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.plan import Decisions, no_decisions
from batuta.core.reason import Evidence, Reason
from batuta.store.codec import (
    pack_arrays,
    pack_decision_change,
    pack_decisions,
    unpack_arrays,
    unpack_decisions,
)
from batuta.store.errors import CodecError
from tests.support.deep import deep
from tests.unit.store.arbitrary_events import decisions, texts


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Decisions, Decisions]:
    """Decisions, and others a cycle later: some jobs have gone, some have come, the rest is in order."""
    names = draw(st.lists(texts, max_size=10, unique=True))
    roles = draw(st.lists(st.sampled_from(("both", "both", "both", "old", "new")), min_size=10, max_size=10))
    named = list(zip(names, roles, strict=False))
    before = tuple(name for name, role in named if role != "new")
    after = tuple(name for name, role in named if role != "old")
    return draw(decisions(before)), draw(decisions(after))


@given(decisions())
def test_decisions_come_back(value):
    assert deep(unpack_decisions(pack_decisions(value))) == deep(value)


@given(neighbours())
def test_a_change_makes_the_later_of_the_earlier(pair):
    before, after = pair
    block = pack_decision_change(before, after)
    assert block is not None
    assert deep(unpack_decisions(block, before)) == deep(after)


def test_rows_in_another_order_are_no_change():
    one, other = ((a, b) for a, b in (("a", "b"), ("b", "a")))
    assert pack_decision_change(make(one), make(other)) is None


def make(ids: tuple[str, ...], special: int = 0, seed: int = 1) -> Decisions:
    chance, n = np.random.default_rng(seed), len(ids)
    rows: dict[int, tuple[Reason, Evidence]] = {
        row: (Reason.CHANGE_DOES_NOT_PAY, (("wanted", 8), ("gain_s", chance.random()), ("cost_s", 30.0)))
        for row in range(special)
    }
    size = chance.integers(1, 9, n)
    return Decisions(ids, chance.integers(0, 9, n), None, size, size, size * 2, None, (16_000,), (3,), rows)


def test_ten_thousand_jobs_are_kilobytes_and_their_change_is_less():
    chance = Random(1)
    ids = tuple(f"{chance.randrange(16**8):08x}" for _ in range(10_000))
    before = make(ids, special=1000)
    gpus = before.gpus.copy()
    gpus[:5] += 1
    later = Decisions(
        (*ids[:7000], *ids[7001:], "new"),
        gpus,
        None,
        before.asked,
        before.low,
        before.high,
        None,
        (16_000,),
        (3,),
        {},
    )
    full, change = pack_decisions(before), pack_decision_change(before, before)
    assert len(full) < 120_000
    assert change is not None
    assert len(change) < 12_000
    assert deep(unpack_decisions(pack_decision_change(before, later) or b"", before)) == deep(later)


def test_no_decisions():
    assert deep(unpack_decisions(pack_decisions(no_decisions()))) == deep(no_decisions())


def test_integers_that_no_column_can_hold_are_floats():
    value = make(("a",))
    value.special[0] = (Reason.PREEMPTED, (("before", 2**70),))
    assert unpack_decisions(pack_decisions(value)).special[0] == (
        Reason.PREEMPTED,
        (("before", float(2**70)),),
    )


def test_damage_is_noticed():
    block = pack_decisions(make(("a", "b"), special=1))
    with pytest.raises(CodecError, match="damaged"):
        unpack_decisions(block[:-3])
    with pytest.raises(CodecError, match="damaged"):
        unpack_decisions(b"nonsense")
    change = pack_decision_change(make(("a",)), make(("a",)))
    assert change is not None
    with pytest.raises(CodecError, match="not there"):
        unpack_decisions(change)
    with pytest.raises(CodecError, match="damaged"):
        unpack_decisions(pack_decision_change(make(("a", "b", "c", "d")), make(("a",))) or b"", make(("a",)))


def test_a_reason_of_a_newer_version_is_named():
    header, arrays = unpack_arrays(pack_decisions(make(("a",), special=1)))
    header["special"][0][0] = "MOON_IS_FULL"
    with pytest.raises(CodecError, match=r"'MOON_IS_FULL'.*newer"):
        unpack_decisions(pack_arrays(header, arrays))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.lists(st.floats(), max_size=5))
def test_a_parcel_comes_back(whole, real):
    arrays = {"i": np.array(whole, dtype=np.int64), "f": np.array(real).reshape(1, -1), "b": np.array([True])}
    header, back = unpack_arrays(pack_arrays({"k": [1, "ü"]}, arrays))
    assert header == {"k": [1, "ü"]}
    assert deep(back) == deep(arrays)
    back["i"][:] = 0
