"""Pool views for tests, from dicts in the shape of `batuta allocate`; what is left out gets a plain value."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from batuta.core.arrays import frozen
from batuta.core.policy import Policy
from batuta.core.view import PoolView, TypedView
from batuta.spec.snapshot import SnapshotJob, build_view


def make_job(**given: Any) -> SnapshotJob:
    """A job of a snapshot; only an id is needed. `size` alone makes it rigid; speed is linear by default."""
    job = dict(given)
    size = job.setdefault("size", job.get("min", 1))
    low = job.setdefault("min", size)
    high = job.setdefault("max", max(size, low))
    job.setdefault("submit_s", 0.0)
    job.setdefault("remaining_s", 3600.0)
    job["speed"] = tuple(map(float, job.get("speed") or range(high + 1)))
    if job.get("sizes") is not None:
        job["sizes"] = tuple(job["sizes"])
    for key in ("first_start_s", "last_start_s", "last_stop_s", "last_resize_s"):
        if job.get(key) is None:
            job[key] = math.nan
    return SnapshotJob(**job)


def make_view(capacity: int, jobs: Iterable[Mapping[str, Any] | SnapshotJob], now_s: float = 0.0) -> PoolView:
    made = [job if isinstance(job, SnapshotJob) else make_job(**job) for job in jobs]
    return build_view(capacity, made, now_s)


def run(policy: Policy, capacity: int, jobs: Iterable[Mapping[str, Any] | SnapshotJob]) -> dict[str, int]:
    """The allocation by job id."""
    view = make_view(capacity, jobs)
    return dict(zip(view.ids, policy.allocate(view).tolist(), strict=True))


def in_order(jobs: Sequence[SnapshotJob]) -> list[SnapshotJob]:
    return sorted(jobs, key=lambda job: (job.submit_s, job.id))


def draw_curve(random: Random, largest: int, exact: bool) -> tuple[float, ...]:
    """Linear, flattening, flat or any curve; `exact` ones are multiples of 1/8, whose sums do not round."""
    kind = random.choice(["linear", "flattening", "any", "any", "flat"])
    if kind == "linear":
        return tuple(map(float, range(largest + 1)))
    if kind == "flat":
        return (0.0, *[1.0] * largest)
    eighths = [random.randint(0, 40) / 8 for _ in range(largest)]
    if kind == "any":
        return (0.0, *eighths)
    if exact:
        return (0.0, *accumulate(sorted(eighths, reverse=True)))
    exponent = random.uniform(0.3, 1.0)
    return (0.0, *(n**exponent for n in range(1, largest + 1)))


# Made once: to make strategies for every draw takes longer than to draw from them.
STEPS, FIRST_SIZES, FURTHER_SIZES = st.sampled_from([1, 1, 1, 2, 4]), st.integers(1, 3), st.integers(0, 5)
SEEDS, GPUS = st.integers(0, 2**16), st.integers(0, 40)
GPUS_BY_TYPE = st.lists(st.integers(0, 16), min_size=2, max_size=3)


@cache
@st.composite
def snapshot_jobs(draw: st.DrawFn, number: int, *, exact: bool = False) -> SnapshotJob:
    """A sound job of any shape. Few distinct times, so that ties are common."""
    step = draw(STEPS)
    low = step * draw(FIRST_SIZES)
    high = low + step * draw(FURTHER_SIZES)
    # What is left needs no shrinking, and one draw instead of thirty makes the tests three times as fast.
    random = Random(draw(SEEDS))
    legal = list(range(low, high + 1, step))
    sizes = None
    if random.random() < 0.3:
        legal = sorted({low, high, *random.choices(legal, k=random.randint(0, 4))})
        sizes = tuple(legal)
    return make_job(
        id=f"j{number:02}",
        submit_s=float(random.randint(0, 3)),
        first_start_s=random.choice([None, 10.0, 20.0, 30.0]),
        tier=random.randint(0, 1),
        size=random.choice(legal),
        min=low,
        max=high,
        sizes=sizes,
        gpus_per_replica=step,
        remaining_s=float(random.choice([0, 1, 60, 3600, random.randint(0, 10**6)])),
        speed=draw_curve(random, high + random.randint(0, 1), exact),
        gpus=random.choice([0, low]),
        service_gpu_s=random.choice([0.0, 3600.0, 3601.0]),
        last_start_s=random.choice([None, 10.0]),
        last_stop_s=random.choice([None, 20.0]),
    )


@st.composite
def pools(draw: st.DrawFn, *, most: int = 14, exact: bool = False) -> tuple[int, list[SnapshotJob]]:
    """A capacity and jobs; they are not in the order of their submission."""
    jobs = [draw(snapshot_jobs(k, exact=exact)) for k in range(draw(st.integers(0, most)))]
    return draw(GPUS), jobs


def make_typed(
    capacity: Sequence[int], view: PoolView, speed: Sequence[Sequence[float]], node_gpus: int = 4
) -> TypedView:
    """The jobs of a view with so many GPUs of each type, and their relative speeds; 0 for a type they refuse.

    Who has GPUs has them of the first type that it accepts.
    """
    rows = len(view)
    speeds = np.array(speed, dtype=np.float64).reshape(rows, len(capacity))
    first = np.where((speeds > 0).any(axis=1), (speeds > 0).argmax(axis=1), -1)
    return TypedView(
        jobs=view,
        types=tuple(f"type{kind}" for kind in range(len(capacity))),
        capacity=frozen(np.array(capacity, dtype=np.int64)),
        speed=frozen(speeds),
        most=frozen(np.where(speeds > 0, view.max[:, None], 0)),
        gpu_type=frozen(np.where(view.gpus > 0, first, -1)),
        node_gpus=(node_gpus,) * len(capacity),
    )


@st.composite
def typed_pools(draw: st.DrawFn, *, most: int = 8) -> TypedView:
    """Jobs and two or three GPU types; some jobs refuse some of them."""
    jobs = [draw(snapshot_jobs(k)) for k in range(draw(st.integers(0, most)))]
    capacity = draw(GPUS_BY_TYPE)
    random = Random(draw(SEEDS))
    speeds = [[random.choice([0.0, 0.25, 1.0, 1.0, 3.0]) for _ in capacity] for _ in jobs]
    return make_typed(capacity, build_view(sum(capacity), jobs), speeds)
