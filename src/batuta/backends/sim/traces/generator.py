"""Workloads from a seed, with the statistics of a real cluster.

Sizes, durations and the weekly rhythm are those of Philly: msr-fiddle/philly-traces (Jeon et al., ATC 2019, CC-BY-4.0)
as prepared in petuum/adaptdl, 82,247 jobs from 2017-09-04 to 2017-12-22. Counts are exact; the log-normal mixtures were
fitted to the logarithms of the durations by expectation maximisation, three parts for each class of sizes. Users follow
a Zipf law, since few users submit most jobs in every published trace; elastic jobs, which no public trace has, get a
size range, sometimes a list of legal sizes, and curves from three families. Every job has its own row of uniform
numbers, so a longer workload begins with the same demands as a shorter one.

Only `Generator.random` of PCG64 is used: its stream is fixed, whereas NumPy may change how it draws from
other distributions. What is written is rounded, so the last bit of a logarithm does not show.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from batuta.backends.sim.speed_models import LARGEST_JOB_GPUS, SpeedModel
from batuta.backends.sim.workload import SimJob, Workload
from batuta.core.curve import SpeedCurve
from batuta.core.job import Job
from batuta.spec.problem import InputError, Problem

HOUR_S = 3600.0
WEEK_HOURS = 168


@dataclass(frozen=True, slots=True)
class WeeklyRate:
    """Relative arrival rate by hour of the week, Monday 0:00 first; on average 1."""

    by_hour: tuple[float, ...]
    before: tuple[float, ...]  # expected arrivals before each hour at an average of one per hour; 169 values

    @staticmethod
    def of(by_weekday: Sequence[float], by_hour: Sequence[float]) -> WeeklyRate:
        """Weekday and hour taken as independent."""
        product = [day * hour for day in by_weekday for hour in by_hour]
        scale = len(product) / math.fsum(product)
        rates = tuple(rate * scale for rate in product)
        return WeeklyRate(rates, (0.0, *accumulate(rates)))

    def expected(self, hours: float) -> float:
        """Arrivals up to a moment (hours since the first Monday 0:00), at one per hour on average."""
        weeks, within = divmod(hours, WEEK_HOURS)
        hour = min(int(within), WEEK_HOURS - 1)
        return weeks * self.before[-1] + self.before[hour] + (within - hour) * self.by_hour[hour]

    def moment(self, expected: float) -> float:
        """The inverse of `expected`."""
        weeks, within = divmod(expected, self.before[-1])
        hour = min(bisect_right(self.before, within) - 1, WEEK_HOURS - 1)
        return weeks * WEEK_HOURS + hour + (within - self.before[hour]) / self.by_hour[hour]


FLAT = WeeklyRate.of([1.0] * 7, [1.0] * 24)


JOBS_BY_GPUS = (
    *((1, 76_627), (2, 1_818), (4, 1_870), (8, 1_643), (12, 7)),
    *((16, 199), (24, 7), (32, 67), (64, 6), (128, 3)),
)

JOBS_BY_HOUR = (
    *(4_367, 3_374, 3_835, 3_780, 2_400, 3_950, 5_732, 7_159, 3_802, 3_447, 3_510, 2_979),
    *(2_567, 2_415, 2_185, 2_224, 3_021, 2_289, 2_744, 2_496, 3_483, 3_142, 3_885, 3_461),
)
"""By the hour of the timestamp, 0–23, in the trace's own clock."""

JOBS_BY_WEEKDAY = (10_136, 12_528, 13_370, 15_114, 16_954, 7_157, 6_988)  # Monday first


class LogNormal(NamedTuple):
    """A part of a mixture."""

    weight: float
    median_s: float
    sigma: float


DURATIONS_FROM_GPUS = (
    (1, (LogNormal(0.187, 65, 0.17), LogNormal(0.214, 2_032, 0.51), LogNormal(0.599, 1_327, 1.96))),
    (2, (LogNormal(0.306, 18, 0.34), LogNormal(0.277, 150, 1.76), LogNormal(0.417, 57_906, 1.34))),
    (8, (LogNormal(0.368, 600, 1.84), LogNormal(0.192, 16_386, 0.74), LogNormal(0.440, 181_880, 0.86))),
)
"""The mixture of the last entry whose GPU count is not above the job's."""
_FROM = [gpus for gpus, _ in DURATIONS_FROM_GPUS]


def duration_mixture(gpus: int) -> tuple[LogNormal, ...]:
    return DURATIONS_FROM_GPUS[bisect_right(_FROM, gpus) - 1][1]


WEEKLY = WeeklyRate.of(JOBS_BY_WEEKDAY, JOBS_BY_HOUR)
_DRAWS = 10  # uniform numbers per job
_NORMAL = NormalDist()
_MOST_JOBS = 10_000_000
_ZIPF_EXPONENT = 1.2


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """What to generate. The arrival rate follows from `load` on `gpus`, unless `jobs_per_hour` is set."""

    jobs: int = 1000
    seed: int = 0
    name: str = "generated"
    gpus: int = 64  # GPUs of the cluster that `load` is meant for; no job asks for more
    load: float = 0.9  # GPU time asked for over GPU time there is, while jobs arrive
    jobs_per_hour: float | None = None
    weekly: bool = True  # follow the hours of the week; False: the same rate at all times
    start_hour: float = 0.0  # hours since Monday 0:00 at which the workload begins
    sizes: tuple[tuple[int, float], ...] = JOBS_BY_GPUS
    duration_scale: float = 1.0
    shortest_s: float = 10.0
    longest_s: float = 7 * 24 * HOUR_S
    users: int = 50
    elastic_fraction: float = 1.0  # share of jobs that can run with other than the size they ask for

    def problems(self) -> list[Problem]:
        """What is wrong with the options, all of it."""
        found = [
            f"{name.replace('_', ' ')} must be {what} {low}, found {value}"
            for name, what, low in _LIMITS
            if (value := getattr(self, name)) is not None
            and not (low < value < math.inf if what == "a number >" else low <= value < math.inf)
        ]
        if self.jobs > _MOST_JOBS:
            found.append(f"jobs must be at most {_MOST_JOBS:,}, found {self.jobs}")
        if not 0 < self.shortest_s <= self.longest_s < math.inf:
            found.append(f"durations must be within 0 < shortest ≤ longest, found {self.shortest_s}..{self.longest_s}")
        if self.elastic_fraction > 1:
            found.append(f"elastic fraction must be at most 1, found {self.elastic_fraction}")
        sound = all(1 <= size <= LARGEST_JOB_GPUS and 0 <= weight < math.inf for size, weight in self.sizes)
        if not sound or not any(weight > 0 and size <= max(self.gpus, 1) for size, weight in self.sizes):
            found.append(f"sizes need a GPU count ≥ 1 with a weight > 0 that fits {self.gpus} GPUs")
        return [Problem(message) for message in found]


_LIMITS = (
    *((name, "at least", 1) for name in ("jobs", "gpus", "users")),
    *((name, "at least", 0) for name in ("seed", "start_hour", "elastic_fraction")),
    *((name, "a number >", 0) for name in ("load", "jobs_per_hour", "duration_scale")),
)
"""Fields, and the least that each may be."""


def generate(options: GeneratorOptions) -> Workload:
    """The workload of these options; equal options give equal workloads on every machine."""
    problems = options.problems()
    if problems:
        raise InputError(problems)
    rows = np.random.Generator(np.random.PCG64(options.seed)).random((options.jobs, _DRAWS)).tolist()
    users = _Choice([(rank, rank**-_ZIPF_EXPONENT) for rank in range(1, options.users + 1)])
    demands = _demands(options, rows)
    submits = _submits(options, demands, [row[0] for row in rows])
    width = max(4, len(str(options.jobs)))
    jobs = tuple(
        _sim_job(options, f"job-{index + 1:0{width}d}", submit_s, demand, users.at(row[4]), row)
        for index, (submit_s, demand, row) in enumerate(zip(submits, demands, rows, strict=True))
    )
    return Workload(options.name, "batuta", jobs, (_recipe(options),))


def parse_sizes(text: str) -> tuple[tuple[int, float], ...]:
    """GPU counts and weights from `1:40,2:30,4:30`."""
    try:
        pairs = (part.split(":") for part in text.split(","))
        return tuple((int(gpus), float(weight)) for gpus, weight in pairs)
    except ValueError:
        fix = "write GPUS:WEIGHT,…, such as 1:40,2:30,4:30"
        raise InputError.of(f"sizes {text!r} are not understood", fix=fix) from None


class _Choice:
    """A discrete distribution that is read with uniform numbers."""

    def __init__(self, weighted: Sequence[tuple[int, float]]) -> None:
        self.values = [value for value, weight in weighted if weight > 0]
        self.upto = list(accumulate(weight for _, weight in weighted if weight > 0))

    def at(self, draw: float) -> int:
        place = bisect_right(self.upto, draw * self.upto[-1])
        return self.values[min(place, len(self.values) - 1)]


class _Durations:
    """Philly's durations for one class of sizes, scaled, and cut to a range without heaps at its ends."""

    def __init__(self, mixture: Sequence[LogNormal], options: GeneratorOptions) -> None:
        self.parts = []
        for one in mixture:
            median_s = one.median_s * options.duration_scale
            low, high = (
                _NORMAL.cdf(math.log(limit / median_s) / one.sigma) for limit in (options.shortest_s, options.longest_s)
            )
            self.parts.append((median_s, one.sigma, low, high))
        within = [one.weight * (high - low) for one, (_, _, low, high) in zip(mixture, self.parts, strict=True)]
        self.choice = _Choice(list(enumerate(within))) if any(within) else None
        self.limits = (options.shortest_s, options.longest_s)

    def at(self, part: float, place: float) -> float:
        shortest, longest = self.limits
        if self.choice is None:  # the range lies far outside: no shape is left of the mixture
            return shortest * math.pow(longest / shortest, place)
        median_s, sigma, low, high = self.parts[self.choice.at(part)]
        deviation = _NORMAL.inv_cdf(min(max(low + place * (high - low), 1e-15), 1 - 1e-15))
        return min(max(median_s * math.exp(sigma * deviation), shortest), longest)


def _demands(options: GeneratorOptions, rows: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    """GPUs asked for and seconds on them, by job."""
    sizes = _Choice([(size, weight) for size, weight in options.sizes if size <= options.gpus])
    durations = {size: _Durations(duration_mixture(size), options) for size in sizes.values}
    demands = []
    for row in rows:
        size = sizes.at(row[1])
        demands.append((size, round(durations[size].at(row[2], row[3]), 1)))
    return demands


def _submits(options: GeneratorOptions, demands: Sequence[tuple[int, float]], draws: Sequence[float]) -> list[float]:
    """Ascending submit times, the first at 0."""
    rate, start_hour = WEEKLY if options.weekly else FLAT, options.start_hour
    low = rate.expected(start_hour)
    if options.jobs_per_hour is not None:
        gaps = (-math.log(1.0 - draw) / options.jobs_per_hour for draw in draws)
        arrivals = [low + passed for passed in accumulate(gaps)]
    else:
        # Given how many arrive, the moments of a Poisson process are independent draws from its rate.
        gpu_s = math.fsum(size * seconds for size, seconds in demands)
        span_s = gpu_s / (options.gpus * options.load)
        high = rate.expected(start_hour + span_s / HOUR_S)
        arrivals = [low + draw * (high - low) for draw in sorted(draws)]
    moments = [max(0.0, (rate.moment(expected) - start_hour) * HOUR_S) for expected in arrivals]
    return [round(moment - moments[0], 1) for moment in moments]


def _sim_job(
    options: GeneratorOptions, job_id: str, submit_s: float, demand: tuple[int, float], user: int, row: Sequence[float]
) -> SimJob:
    size, seconds = demand
    low = high = size
    sizes: tuple[int, ...] | None = None
    if row[5] < options.elastic_fraction:
        low, high, sizes = _range(size, options.gpus, row[6], row[7])
    family, curve = _curve(high, row[8], row[9])
    work_s = round(seconds * curve.at(size), 1)
    job = Job(
        id=job_id,
        submit_s=submit_s,
        size=size,
        min=low,
        max=high,
        sizes=sizes,
        user=f"user-{user:02d}",
        application=family,
        curve=curve,
        work_s=work_s,
    )
    return SimJob(job, work_s, curve)


def _range(size: int, gpus: int, stretch: float, kind: float) -> tuple[int, int, tuple[int, ...] | None]:
    """From a quarter or half of the size to its double or fourfold; every third job takes doublings only."""
    low = max(1, size // (4 if stretch < 0.5 else 2))
    high = max(size, min(gpus, size * (4 if stretch % 0.5 < 0.25 else 2)))
    if kind >= 1 / 3:
        return low, high, None
    halves, doubles = (max(low, size >> n) for n in range(3)), (min(high, size << n) for n in range(3))
    return low, high, tuple(sorted({*halves, *doubles}))


def _curve(largest: int, family: float, parameter: float) -> tuple[str, SpeedCurve]:
    """A family and its parameter, from nearly linear to poor; values to four digits."""
    if family < 0.4:
        name, model = "amdahl", SpeedModel("amdahl", (round(0.01 + 0.14 * parameter, 3),))
    elif family < 0.7:
        name, model = "power", SpeedModel("power", (round(0.65 + 0.33 * parameter, 3),))
    else:
        costs = round(0.002 + 0.03 * parameter, 3), round(0.2 * parameter, 3)
        name, model = "all-reduce", SpeedModel("alpha-beta", costs)
    return name, _rounded(model, largest)


@lru_cache(maxsize=4096)
def _rounded(model: SpeedModel, largest: int) -> SpeedCurve:
    return SpeedCurve(tuple(round(speed, 4) for speed in model.curve(largest).speeds))


def _recipe(options: GeneratorOptions) -> str:
    """How to make it again: the options that are not the default."""
    always, never = ("jobs", "seed"), ("name",)
    changed = [
        f"{field.name}={getattr(options, field.name)!r}"
        for field in fields(options)
        if field.name in always or (field.name not in never and getattr(options, field.name) != field.default)
    ]
    return f"generated with {', '.join(changed)}"
