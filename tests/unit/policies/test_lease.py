"""Leases: who has just got its GPUs keeps them for a while."""

from dataclasses import replace

import pytest

from batuta.policies.order import leased
from tests.support.views import make_view


def running(name: str, gpus: int, since_s: float, **changes: object) -> dict[str, object]:
    return {"id": name, "max": 4, "gpus": gpus, "last_start_s": since_s, **changes}


def test_a_lease_ends() -> None:
    view = make_view(8, [running("a", 2, 100.0), running("b", 2, 699.0), {"id": "c"}], 1000.0)
    assert leased(view, 600.0).tolist() == [0, 2, 0]


def test_a_resize_begins_a_new_one() -> None:
    view = make_view(8, [running("a", 2, 100.0, last_resize_s=900.0)], 1000.0)
    assert leased(view, 600.0).tolist() == [2]


def test_a_slow_restart_makes_it_longer() -> None:
    view = make_view(8, [running("a", 2, 100.0, restart_s=100.0)], 1000.0)
    assert leased(view, 600.0).tolist() == [2]


@pytest.mark.parametrize(("capacity", "kept"), [(3, [2, 0]), (4, [2, 2]), (1, [0, 0])])
def test_leases_end_early_where_gpus_were_lost(capacity: int, kept: list[int]) -> None:
    view = make_view(capacity, [running("a", 2, 900.0), running("b", 2, 900.0)], 1000.0)
    assert leased(view, 600.0).tolist() == kept


def test_a_size_that_is_not_legal_any_more_is_not_kept() -> None:
    view = make_view(8, [running("a", 3, 900.0, sizes=(1, 2, 4))], 1000.0)
    assert leased(view, 600.0).tolist() == [0]
    view = replace(view, gpus=view.gpus + 1)
    assert leased(view, 600.0).tolist() == [4]
