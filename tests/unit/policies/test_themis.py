"""Themis: who is treated worst comes first."""

from dataclasses import replace

import numpy as np

from batuta.policies.themis import Themis
from tests.support.views import make_view


def allocate(capacity: int, jobs: list[dict[str, object]], done_s: list[float], now_s: float) -> dict[str, int]:
    view = replace(make_view(capacity, jobs, now_s), done_s=np.array(done_s))
    return dict(zip(view.ids, Themis().allocate(view).tolist(), strict=True))


def rigid(name: str, submit_s: float, remaining_s: float) -> dict[str, object]:
    return {"id": name, "submit_s": submit_s, "size": 1, "remaining_s": remaining_s}


def test_who_has_waited_goes_before_who_was_served() -> None:
    jobs = [rigid("served", 0.0, 500.0), rigid("waited", 0.0, 1000.0)]
    assert allocate(1, jobs, [500.0, 0.0], 500.0) == {"served": 0, "waited": 1}


def test_an_hour_of_waiting_hurts_a_short_job_more() -> None:
    jobs = [rigid("long", 0.0, 100_000.0), rigid("short", 0.0, 100.0)]
    assert allocate(1, jobs, [0.0, 0.0], 3600.0) == {"long": 0, "short": 1}


def test_what_is_left_goes_to_the_worst_off_first() -> None:
    jobs: list[dict[str, object]] = [{"id": name, "submit_s": 0.0, "max": 8, "remaining_s": 1000.0} for name in "abcde"]
    given = allocate(11, jobs, [9000.0, 9000.0, 9000.0, 9000.0, 0.0], 3000.0)
    assert given == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 7}


def test_equal_jobs_have_equal_sizes() -> None:
    jobs: list[dict[str, object]] = [{"id": name, "submit_s": 0.0, "max": 8} for name in "abcd"]
    view = make_view(8, jobs, 0.0)
    assert sorted(Themis(fairness=0.0).allocate(view).tolist()) == [2, 2, 2, 2]
