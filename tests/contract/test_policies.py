"""What every registered policy promises, whatever it decides by."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.parts import Parts
from batuta.core.policy import PartedPolicy, Policy, TieredPolicy, TypedPolicy
from batuta.core.typed_view import TypedView
from batuta.core.view import PoolView
from batuta.policies.registry import load_policy, policy_names
from batuta.spec.snapshot_job import SnapshotJob
from tests.support.reference_policies import legal_sizes
from tests.support.views import make_view, pools, run, typed_pools

Pool = tuple[int, list[SnapshotJob]]


@pytest.fixture(scope="module", params=policy_names())
def policy(request: pytest.FixtureRequest) -> Policy:
    return load_policy(request.param)


def test_says_its_name_and_is_a_value(policy: Policy) -> None:
    """Frozen dataclasses can be hashed, others cannot."""
    assert policy.name in policy_names()
    assert hash(policy) == hash(load_policy(policy.name))
    assert policy == load_policy(policy.name)


@pytest.mark.parametrize("capacity", [0, 1, 16])
def test_no_jobs(policy: Policy, capacity: int) -> None:
    assert policy.allocate(make_view(capacity, [])).tolist() == []


@given(pool=pools(most=5))
def test_no_gpus(policy: Policy, pool: Pool) -> None:
    assert set(run(policy, 0, pool[1]).values()) <= {0}


@given(pool=pools(most=10))
def test_gives_legal_sizes_within_the_capacity(policy: Policy, pool: Pool) -> None:
    capacity, jobs = pool
    gpus = policy.allocate(make_view(capacity, jobs))
    assert gpus.dtype == np.int64
    assert gpus.shape == (len(jobs),)
    result = run(policy, capacity, jobs)
    assert sum(result.values()) <= capacity
    for job in jobs:
        assert result[job.id] in (0, *legal_sizes(job))


@given(pool=pools(most=10), data=st.data())
def test_order_of_input_does_not_matter(policy: Policy, pool: Pool, data: st.DataObject) -> None:
    capacity, jobs = pool
    assert run(policy, capacity, data.draw(st.permutations(jobs))) == run(policy, capacity, jobs)


@given(pool=pools(most=10))
def test_same_view_same_result_and_nothing_written(policy: Policy, pool: Pool) -> None:
    capacity, jobs = pool
    view, twin = make_view(capacity, jobs), make_view(capacity, jobs)
    first = policy.allocate(view)
    first_copy = first.copy()
    if first.size:
        first[0] += 1  # the result belongs to the caller
    assert policy.allocate(view).tolist() == first_copy.tolist()
    for column in fields(view):
        before, after = getattr(twin, column.name), getattr(view, column.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(twin.speed.flat, view.speed.flat)
    np.testing.assert_array_equal(twin.sizes.sets, view.sizes.sets)


TIERED = [name for name in policy_names() if isinstance(load_policy(name), TieredPolicy)]


@pytest.mark.parametrize("name", TIERED)
@given(pool=pools(most=10), now_s=st.floats(0, 1e6))
def test_tiers_stay_in_range(name: str, pool: Pool, now_s: float) -> None:
    policy, (capacity, jobs) = load_policy(name), pool
    assert isinstance(policy, TieredPolicy)
    tiers = policy.tiers(make_view(capacity, jobs, now_s))
    assert tiers.shape == (len(jobs),)
    assert set(tiers.tolist()) <= {0, 1}


GENEROUS = [name for name in policy_names() if getattr(load_policy(name), "generous", False)]


@pytest.mark.parametrize("name", GENEROUS)
@given(pool=pools(most=10), spare=st.integers(0, 3))
def test_a_generous_policy_gives_everybody_the_most_when_it_can(name: str, pool: Pool, spare: int) -> None:
    """`allocate` relies on it and does not ask: the answer is known."""
    jobs = pool[1]
    capacity = sum(job.max for job in jobs) + spare
    assert run(load_policy(name), capacity, jobs) == {job.id: job.max for job in jobs}


PARTED = [name for name in policy_names() if isinstance(load_policy(name), PartedPolicy)]


def one_view(pools: list[Pool]) -> PoolView:
    """The jobs of all pools, pool by pool: each pool's come later than those of the one before it."""
    jobs = [
        replace(job, id=f"{number}-{job.id}", submit_s=10.0 * number + job.submit_s)
        for number, (_, own) in enumerate(pools)
        for job in own
    ]
    return make_view(0, jobs)


@pytest.mark.parametrize("name", PARTED)
@given(several=st.lists(pools(most=8), min_size=1, max_size=5))
def test_many_small_pools_at_once_get_what_each_would_get_alone(name: str, several: list[Pool]) -> None:
    policy = load_policy(name)
    assert isinstance(policy, PartedPolicy)
    capacity, lengths = (
        [*column] for column in zip(*((most, len(jobs)) for most, jobs in several), strict=True)
    )
    parts = Parts(np.array(lengths), np.array(capacity))
    at_once = policy.allocate_parts(one_view(several), parts)
    alone = [policy.allocate(make_view(most, jobs)).tolist() for most, jobs in several]
    assert at_once.tolist() == [gpus for own in alone for gpus in own]


TYPED = [name for name in policy_names() if isinstance(load_policy(name), TypedPolicy)]


@pytest.mark.parametrize("name", TYPED)
@given(view=typed_pools())
def test_sizes_are_legal_within_every_type_and_the_same_each_time(name: str, view: TypedView) -> None:
    policy = load_policy(name)
    assert isinstance(policy, TypedPolicy)
    gpus, kinds = policy.allocate_types(view)
    assert gpus.dtype == kinds.dtype == np.int64
    assert gpus.shape == kinds.shape == (len(view),)
    for row in np.flatnonzero(gpus).tolist():
        assert view.speed[row, kinds[row]] > 0
        assert gpus[row] <= view.most[row, kinds[row]]
        assert gpus[row] in view.jobs.sizes.of(row)
    given_out = np.bincount(kinds, gpus, len(view.types))
    assert (given_out <= view.capacity).all()
    again = policy.allocate_types(view)
    assert (again.gpus.tolist(), again.gpu_type.tolist()) == (gpus.tolist(), kinds.tolist())
