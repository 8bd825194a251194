"""What every registered policy promises, whatever it decides by."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.arrays import Partitions
from batuta.core.policy import Policy, PolicyTraits, as_parted, as_tiered, as_typed
from batuta.core.view import PoolView, TypedView
from batuta.policies.registry import DEFAULT_POLICY, load_policy, policy_names
from batuta.spec.snapshot import SnapshotJob
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


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_declares_what_it_has_and_has_what_it_declares(name: str) -> None:
    policy = load_policy(name)
    declared = {method for method, can in methods_of(policy.traits).items() if can}
    assert declared == {method for method in methods_of(policy.traits) if hasattr(policy, method)}


def methods_of(traits: PolicyTraits) -> dict[str, bool]:
    return {"tiers": traits.tiered, "allocate_types": traits.typed, "allocate_parts": traits.parted}


TIERED = [name for name in policy_names() if load_policy(name).traits.tiered]


@pytest.mark.parametrize("name", TIERED)
@given(pool=pools(most=10), now_s=st.floats(0, 1e6))
def test_tiers_stay_in_range(name: str, pool: Pool, now_s: float) -> None:
    policy, (capacity, jobs) = as_tiered(load_policy(name)), pool
    assert policy is not None
    tiers = policy.tiers(make_view(capacity, jobs, now_s))
    assert tiers.shape == (len(jobs),)
    assert set(tiers.tolist()) <= {0, 1}


GENEROUS = [name for name in policy_names() if load_policy(name).traits.generous]


@pytest.mark.parametrize("name", GENEROUS)
@given(pool=pools(most=10), spare=st.integers(0, 3))
def test_a_generous_policy_gives_everybody_the_most_when_it_can(name: str, pool: Pool, spare: int) -> None:
    """`allocate` relies on it and does not ask: the answer is known."""
    jobs = pool[1]
    capacity = sum(job.max for job in jobs) + spare
    assert run(load_policy(name), capacity, jobs) == {job.id: job.max for job in jobs}


TYPED = [name for name in policy_names() if load_policy(name).traits.typed]
MIN_FIRST = [name for name in policy_names() if load_policy(name).traits.min_first]
"""Policies that may be a server's default: under none of them a job grows while one waits that would fit."""


@pytest.mark.parametrize("name", MIN_FIRST)
@given(pool=pools(most=12), data=st.data())
def test_whoever_fits_at_min_runs_before_any_job_grows(name: str, pool: Pool, data: st.DataObject) -> None:
    capacity, drawn = pool
    sizes = [data.draw(st.sampled_from([0, *legal_sizes(job)])) for job in drawn]
    jobs = [replace(job, gpus=gpus) for job, gpus in zip(drawn, sizes, strict=True)]
    result = run(load_policy(name), capacity, jobs)
    room = capacity - sum(job.min for job in jobs if result[job.id])
    assert [job.id for job in jobs if not result[job.id] and job.min <= room] == []


@pytest.mark.parametrize("name", sorted({*MIN_FIRST} & {*TYPED}))
@given(view=typed_pools())
def test_whoever_fits_at_min_runs_before_any_job_grows_on_several_types(name: str, view: TypedView) -> None:
    policy = as_typed(load_policy(name))
    assert policy is not None
    gpus, kinds = policy.allocate_types(view)
    low = view.jobs.min
    room = view.capacity - np.bincount(kinds, np.where(gpus > 0, low, 0), len(view.types))
    may = (view.speed > 0) & (low[:, None] <= view.most) & (low[:, None] <= room)
    assert np.flatnonzero((gpus == 0) & may.any(axis=1)).tolist() == []


def test_a_server_begins_with_a_policy_that_serves_everybody_first() -> None:
    assert DEFAULT_POLICY in MIN_FIRST


PARTED = [name for name in policy_names() if load_policy(name).traits.parted]


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
    policy = as_parted(load_policy(name))
    assert policy is not None
    capacity, lengths = ([*column] for column in zip(*((most, len(jobs)) for most, jobs in several), strict=True))
    parts = Partitions(np.array(lengths), np.array(capacity))
    at_once = policy.allocate_parts(one_view(several), parts)
    alone = [policy.allocate(make_view(most, jobs)).tolist() for most, jobs in several]
    assert at_once.tolist() == [gpus for own in alone for gpus in own]


@pytest.mark.parametrize("name", TYPED)
@given(view=typed_pools())
def test_sizes_are_legal_within_every_type_and_the_same_each_time(name: str, view: TypedView) -> None:
    policy = as_typed(load_policy(name))
    assert policy is not None
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
