"""Fast array code gives, job by job, what the plain loops give: on small pools of every shape, many times."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from batuta.policies.registry import load_policy
from batuta.spec.snapshot import SnapshotJob
from tests.support.examples import examples
from tests.support.reference_policies import REFERENCE, speed
from tests.support.views import make_job, pools, run

Pool = tuple[int, list[SnapshotJob]]


@given(pool=pools())
@settings(max_examples=examples(500))
def test_equal_on_any_pool(pool: Pool) -> None:
    capacity, jobs = pool
    for name in set(REFERENCE) - {"ffdl"}:
        assert run(load_policy(name), capacity, jobs) == REFERENCE[name](capacity, jobs), name


@given(pool=pools(exact=True))
@settings(max_examples=examples(300))
def test_ffdl_equal_where_sums_do_not_round(pool: Pool) -> None:
    """The rule for equal totals can only be compared where equal totals are equal."""
    capacity, jobs = pool
    assert run(load_policy("ffdl"), capacity, jobs) == REFERENCE["ffdl"](capacity, jobs)


@given(pool=pools())
@settings(max_examples=examples(300))
def test_ffdl_total_equal_on_any_pool(pool: Pool) -> None:
    capacity, jobs = pool
    ours, plain = run(load_policy("ffdl"), capacity, jobs), REFERENCE["ffdl"](capacity, jobs)
    assert sum(speed(job, ours[job.id]) for job in jobs) == pytest.approx(
        sum(speed(job, plain[job.id]) for job in jobs), rel=1e-12
    )


@pytest.mark.parametrize("name", sorted(REFERENCE))
@pytest.mark.parametrize("seed", range(20))
def test_equal_on_larger_pools(name: str, seed: int) -> None:
    """Sixty jobs with realistic curves: long chains of leaders, many rounds, many ties."""
    capacity, jobs = _realistic_pool(seed)
    ours, plain = run(load_policy(name), capacity, jobs), REFERENCE[name](capacity, jobs)
    if name == "ffdl":
        assert sum(speed(job, ours[job.id]) for job in jobs) == pytest.approx(
            sum(speed(job, plain[job.id]) for job in jobs), rel=1e-12
        )
    else:
        assert ours == plain


@pytest.mark.parametrize("name", ["optimus-replay", "elastic-tiresias"])
@pytest.mark.parametrize("seed", range(4))
def test_equal_where_hundreds_want_a_few_gpus(name: str, seed: int) -> None:
    """All run and few can grow; many gain the same by their first step, and some only by their second."""
    random = np.random.default_rng(seed)
    jobs = [
        make_job(
            id=f"j{k:03}",
            submit_s=float(k),
            min=1,
            size=1,
            max=4,
            tier=int(random.integers(0, 2)),
            remaining_s=float(random.choice([60.0, 600.0, 6000.0])),
            speed=[0.0, 1.0, *(1.0 + random.choice([0.0, 0.5, 0.9, 1.0], 3).cumsum())],
        )
        for k in range(400)
    ]
    capacity = 400 + int(random.integers(5, 120))
    assert run(load_policy(name), capacity, jobs) == REFERENCE[name](capacity, jobs)


def _realistic_pool(seed: int) -> tuple[int, list[SnapshotJob]]:
    """Curves from a few models, some linear, some noisy; sizes regular in half of the pools."""
    random = np.random.default_rng(seed)
    jobs = []
    for k in range(60):
        low = int(random.choice([1, 1, 1, 2, 4]))
        high = low * int(random.choice([1, 2, 4, 8]))
        exponent = float(random.choice([0.5, 0.7, 0.9, 1.0]))
        noise = random.uniform(0.9, 1.1, high) if random.random() < 0.3 else np.ones(high)
        given: dict[str, Any] = {"sizes": None}
        if seed % 2 and random.random() < 0.5:
            given["sizes"] = [low * 2**i for i in range(8) if low * 2**i <= high]
        jobs.append(
            make_job(
                id=f"j{k:02}",
                submit_s=float(random.integers(0, 40)),
                min=low,
                size=low if random.random() < 0.5 else high,
                max=high,
                tier=int(random.integers(0, 2)),
                first_start_s=float(random.integers(0, 9)) if random.random() < 0.5 else None,
                remaining_s=float(random.lognormal(7, 1.5)),
                speed=[0.0, *(np.arange(1, high + 1) ** exponent * noise)],
                **given,
            )
        )
    return int(random.choice([40, 100, 160, 300])), jobs
