"""How long the jobs of a replay are."""

import pytest

from batuta.backends.sim.goodput.backend import JobLengths
from batuta.spec.problem import InputError


def test_usually_all_of_their_epochs() -> None:
    assert JobLengths().draw([1, 50, 90]) == [1, 50, 90]
    assert JobLengths.parse("1") == JobLengths()


def test_shares_are_drawn_with_a_seed_and_never_below_one_epoch() -> None:
    lengths = JobLengths.parse("0.2-1", seed=3)
    drawn = lengths.draw([100] * 200)
    assert drawn == lengths.draw([100] * 200) != JobLengths.parse("0.2-1", seed=4).draw([100] * 200)
    assert 20 <= min(drawn) < 30
    assert 90 < max(drawn) <= 100
    assert lengths.draw([1, 2]) == [1, pytest.approx(1, abs=1)]


@pytest.mark.parametrize("text", ["", "0-1", "2", "1-0.5", "much", "0.5-nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no shares"):
        JobLengths.parse(text)
