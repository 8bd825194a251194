"""One option for each job: the best total there is, within the GPUs of every type."""

from itertools import product
from random import Random

import numpy as np
import pytest

from batuta.core.arrays import FloatArray, IntArray
from batuta.policies import type_choice as module
from batuta.policies.type_choice import TypeOptions, best_choice


def draw(seed: int, jobs: int, types: int, most: int) -> tuple[TypeOptions, FloatArray, IntArray]:
    """A few jobs with a few options each, and GPUs of a few types that do not suffice for all."""
    random = Random(seed)
    row, kind, gpus, gain = [], [], [], []
    for job in range(jobs):
        for own in range(types):
            for size in sorted(random.sample(range(1, most + 1), random.randint(0, 3))):
                row.append(job)
                kind.append(own)
                gpus.append(size)
                gain.append(random.choice([-1.0, 0.0, float(size), random.uniform(0.1, 3.0) * size**0.7]))
    options = TypeOptions(
        np.array(row, dtype=np.int64),
        np.array(kind, dtype=np.int64),
        np.array(gpus, dtype=np.int64),
        gain_of(gain),
    )
    capacity = np.array([random.randint(0, 2 * most) for _ in range(types)], dtype=np.int64)
    return options, gain_of(gain), capacity


def gain_of(values: list[float]) -> FloatArray:
    return np.array(values, dtype=np.float64)


def best_by_trying(options: TypeOptions, gain: FloatArray, capacity: IntArray, jobs: int) -> float:
    by_job = [[-1, *np.flatnonzero(options.row == job).tolist()] for job in range(jobs)]
    best = 0.0
    for chosen in product(*by_job):
        taken = [place for place in chosen if place >= 0]
        used = np.bincount(options.kind[taken], options.gpus[taken], len(capacity)) if taken else 0
        if np.all(used <= capacity):
            best = max(best, float(gain[taken].sum()) if taken else 0.0)
    return best


def total_of(options: TypeOptions, gain: FloatArray, capacity: IntArray, jobs: int) -> float:
    """The total gain of the answer, after a look at whether it is allowed."""
    gpus, kinds = best_choice(options, gain, capacity, jobs)
    assert (np.bincount(kinds, gpus, len(capacity)) <= capacity).all()
    total = 0.0
    for job in np.flatnonzero(gpus).tolist():
        same = (options.row == job) & (options.kind == kinds[job]) & (options.gpus == gpus[job])
        (place,) = np.flatnonzero(same).tolist()
        total += float(gain[place])
    return total


@pytest.mark.parametrize("types", [1, 2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_better(seed: int, types: int) -> None:
    options, gain, capacity = draw(seed, 4, types, 5)
    best = best_by_trying(options, gain, capacity, 4)
    assert total_of(options, gain, capacity, 4) == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("types", [2, 3])
def test_with_too_many_options_prices_come_close(types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, close = 0.0, 0.0
    for seed in range(10):
        options, gain, capacity = draw(seed, 60, types, 8)
        exact += total_of(options, gain, capacity, 60)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_EXACT_CELLS", 0)
            close += total_of(options, gain, capacity, 60)
    assert 0.98 * exact <= close <= exact + 1e-9


def test_nobody_gets_what_would_lose() -> None:
    options, gain, capacity = draw(1, 5, 2, 5)
    gpus, _ = best_choice(options, -np.abs(gain), capacity, 5)
    assert not gpus.any()
