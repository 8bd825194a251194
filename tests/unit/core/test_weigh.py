"""The arithmetic of changes, with numbers that can be checked by hand."""

import pytest

from batuta.core.weigh import Costs, Worth, worth_of_change

PLAIN = Costs(charge=2.0, horizon_restarts=20.0, least_horizon_s=600.0)


@pytest.mark.parametrize(
    ("before", "after", "remaining_s", "restart_s", "lost_s", "gain_s", "cost_s"),
    [
        # 600 s at one unit more; twice 10 s at speed 2.
        (1.0, 2.0, 1e6, 10.0, 0.0, 600.0, 40.0),
        # A slow restart has 20 times its own length to pay: 2000 s.
        (1.0, 2.0, 1e6, 100.0, 0.0, 2000.0, 400.0),
        # It will be over in 50 s and a restart: no more can be gained.
        (1.0, 2.0, 100.0, 10.0, 0.0, 60.0, 40.0),
        # Work since the last checkpoint is a cost like any other.
        (1.0, 2.0, 1e6, 10.0, 90.0, 600.0, 130.0),
        # A shrink gains nothing and costs its restart at the speed that it had.
        (4.0, 2.0, 1e6, 10.0, 0.0, -1200.0, 80.0),
        # A stop has no end of its own in sight.
        (1.0, 0.0, 100.0, 10.0, 0.0, -600.0, 20.0),
        (1.0, 2.0, 1e6, 0.0, 0.0, 600.0, 0.0),
        (1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_gain_and_cost(
    before: float,
    after: float,
    remaining_s: float,
    restart_s: float,
    lost_s: float,
    gain_s: float,
    cost_s: float,
) -> None:
    worth = worth_of_change(before, after, remaining_s, restart_s, lost_s, PLAIN)
    assert (worth.gain_s, worth.cost_s) == pytest.approx((gain_s, cost_s))
    assert worth.pays == (gain_s > cost_s)


def test_what_cannot_be_computed_gains_nothing() -> None:
    worth = worth_of_change(1.0, float("inf"), 1e6, 0.0, 0.0, PLAIN)
    assert worth.gain_s == 0.0
    assert not worth.pays


def test_a_change_that_comes_out_even_does_not_pay() -> None:
    assert not Worth(5.0, 5.0).pays
