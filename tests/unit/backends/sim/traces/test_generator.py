"""Generated workloads: reproducible, sound, and like the cluster whose statistics they have."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.traces.batuta_jsonl import dump_workload
from batuta.backends.sim.traces.generator import (
    FLAT,
    JOBS_BY_GPUS,
    JOBS_BY_HOUR,
    JOBS_BY_WEEKDAY,
    WEEKLY,
    GeneratorOptions,
    generate,
    parse_sizes,
)
from batuta.backends.sim.traces.reader import read_workload

MANY = GeneratorOptions(jobs=20_000, seed=1, gpus=4096)


@pytest.fixture(scope="module")
def many():
    return generate(MANY)


def duration_s(own):
    return own.work_s / own.curve.at(own.job.size)


def test_the_same_options_give_the_same_bytes():
    options = GeneratorOptions(jobs=50, seed=9)
    assert dump_workload(generate(options)) == dump_workload(generate(options))
    assert generate(options) != generate(replace(options, seed=10))


def test_a_longer_workload_begins_with_the_same_demands():
    short, long = (generate(GeneratorOptions(jobs=jobs, seed=4)) for jobs in (20, 40))
    for one, other in zip(short.jobs, long.jobs, strict=False):
        assert replace(one.job, submit_s=0) == replace(other.job, submit_s=0)


@given(
    seed=st.integers(0, 2**32),
    gpus=st.integers(1, 300),
    elastic=st.floats(0, 1),
    scale=st.sampled_from([1e-9, 0.01, 1, 1e9]),
    rate=st.none() | st.floats(0.01, 1e6),
)
def test_every_job_is_sound(seed, gpus, elastic, scale, rate):
    options = GeneratorOptions(
        jobs=30, seed=seed, gpus=gpus, elastic_fraction=elastic, duration_scale=scale, jobs_per_hour=rate
    )
    jobs = generate(options).jobs
    assert not [fault for own in jobs for fault in own.job.faults()]
    assert max(own.job.max for own in jobs) <= gpus
    assert jobs[0].job.submit_s == 0
    assert all(a.job.submit_s <= b.job.submit_s for a, b in pairwise(jobs))
    assert all(9.9 <= duration_s(own) <= options.longest_s + 1 for own in jobs)


def test_sizes_come_as_often_as_in_philly(many):
    counts = Counter(own.job.size for own in many.jobs)
    total = sum(count for _, count in JOBS_BY_GPUS)
    for gpus, count in JOBS_BY_GPUS[:4]:
        assert counts[gpus] / len(many.jobs) == pytest.approx(count / total, rel=0.25)


def test_durations_are_spread_as_in_philly(many):
    found = np.percentile([duration_s(own) for own in many.jobs], [25, 50, 75, 90])
    assert found == pytest.approx([115, 1144, 2932, 11_266], rel=0.25)


@pytest.mark.parametrize("load", [0.5, 0.9, 2.0])
def test_the_load_is_the_one_asked_for(load):
    jobs = generate(GeneratorOptions(jobs=5000, seed=2, gpus=128, load=load)).jobs
    asked = sum(own.job.size * duration_s(own) for own in jobs)
    assert asked / (128 * jobs[-1].job.submit_s) == pytest.approx(load, rel=0.05)


def test_the_rate_is_the_one_asked_for():
    jobs = generate(GeneratorOptions(jobs=10_000, seed=2, jobs_per_hour=30)).jobs
    assert 10_000 / (jobs[-1].job.submit_s / 3600) == pytest.approx(30, rel=0.05)


def test_busy_hours_of_the_week_get_more_jobs():
    options = GeneratorOptions(jobs=20_000, seed=3, jobs_per_hour=20)
    hours = Counter(int(own.job.submit_s // 3600) % 24 for own in generate(options).jobs)
    total = sum(JOBS_BY_HOUR)
    for hour in (4, 7, 14):
        assert hours[hour] / 20_000 == pytest.approx(JOBS_BY_HOUR[hour] / total, rel=0.15)
    flat = Counter(int(own.job.submit_s // 3600) % 24 for own in generate(replace(options, weekly=False)).jobs)
    assert max(flat.values()) / min(flat.values()) < 1.3


def test_few_users_submit_most_jobs(many):
    counts = Counter(own.job.user for own in many.jobs).most_common()
    assert counts[0][0] == "user-01"
    assert sum(count for _, count in counts[:5]) > len(many.jobs) / 2


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_the_elastic_share_is_the_one_asked_for(fraction):
    jobs = generate(GeneratorOptions(jobs=2000, seed=5, elastic_fraction=fraction)).jobs
    assert sum(own.job.min < own.job.max for own in jobs) / 2000 == pytest.approx(fraction, abs=0.04)


def test_elastic_jobs_differ_in_curves_and_some_list_their_sizes(many):
    assert {own.job.application for own in many.jobs} == {"amdahl", "power", "all-reduce"}
    listed = [own.job for own in many.jobs if own.job.sizes is not None]
    assert len(listed) / len(many.jobs) == pytest.approx(1 / 3, abs=0.03)


@pytest.mark.parametrize("rate", [WEEKLY, FLAT])
@given(hours=st.floats(0, 2000))
def test_a_moment_and_its_expected_arrivals_are_inverse(rate, hours):
    assert rate.moment(rate.expected(hours)) == pytest.approx(hours, abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": 0},
        {"jobs": 10**9},
        {"seed": -1},
        {"gpus": 0},
        {"load": 0},
        {"load": math.nan},
        {"jobs_per_hour": -1},
        {"start_hour": math.inf},
        {"duration_scale": 0},
        {"shortest_s": 100, "longest_s": 10},
        {"users": 0},
        {"elastic_fraction": 1.5},
        {"sizes": ((0, 1),)},
        {"sizes": ((8, 1),), "gpus": 4},
        {"sizes": ()},
    ],
    ids=str,
)
def test_senseless_options_are_refused(problems_of, change):
    assert len(problems_of(lambda: generate(replace(GeneratorOptions(), **change)))) == 1


def test_all_senseless_options_are_told_at_once(problems_of):
    assert len(problems_of(lambda: generate(GeneratorOptions(jobs=0, users=0, load=-1)))) == 3


def test_sizes_are_parsed_with_their_weights(problems_of):
    assert parse_sizes("1:40, 2:30.5") == ((1, 40.0), (2, 30.5))
    for text in ("", "1", "1:a", "x:1", "1:2:3"):
        problems_of(lambda text=text: parse_sizes(text))


def test_the_facts_are_those_of_the_trace(shared_data):
    path = shared_data / "philly" / "jobs.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()[1:] if line]
    sizes = Counter(int(row[2]) for row in rows)
    hours = Counter(int(row[0][11:13]) for row in rows)
    days = Counter(np.datetime64(row[0][:10]).item().weekday() for row in rows)
    assert tuple(sorted(sizes.items())) == JOBS_BY_GPUS
    assert tuple(hours[hour] for hour in range(24)) == JOBS_BY_HOUR
    assert tuple(days[day] for day in range(7)) == JOBS_BY_WEEKDAY
    assert len(read_workload(path).jobs) == sum(JOBS_BY_HOUR)
