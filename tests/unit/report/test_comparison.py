import json
import math
from dataclasses import replace
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.job import JobState
from batuta.report.comparison import (
    compare,
    comparison_json,
    explanation,
    headline,
    paired_ratio,
)
from batuta.report.metrics import MEAN_JCT
from tests.support.results import make_job, make_run


def run_with_jct(policy, *jcts, **changes):
    """A run whose jobs take so many seconds."""
    jobs = [make_job(k, submit_s=0.0, first_start_s=0.0, end_s=float(jct)) for k, jct in enumerate(jcts)]
    return make_run(policy, jobs, **changes)


def test_ratio_and_interval_by_hand():
    # Log ratios ln 0.5 and ln 0.8: mean -0.458145, s = 0.332343, t(1) = 12.7062, s/√2 = 0.235002.
    ratio = paired_ratio([50, 160], [100, 200])
    assert ratio.value == pytest.approx(math.sqrt(0.5 * 0.8))
    assert ratio.low == pytest.approx(math.exp(-0.458145 - 12.7062 * 0.235002), rel=1e-4)
    assert ratio.high == pytest.approx(math.exp(-0.458145 + 12.7062 * 0.235002), rel=1e-4)
    assert ratio.pairs == 2


def test_three_equal_ratios_have_a_point_as_interval():
    ratio = paired_ratio([1, 2, 3], [2, 4, 6])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_one_pair_has_no_interval():
    ratio = paired_ratio([1], [2])
    assert ratio.value == pytest.approx(0.5)
    assert not ratio.has_interval


@pytest.mark.parametrize(
    ("values", "baselines"),
    [([], []), ([0.0], [1.0]), ([1.0], [0.0]), ([math.nan, 1.0], [1.0, 1.0]), ([1.0, 0.0], [1.0, 1.0])],
)
def test_no_ratio_without_positive_values(values, baselines):
    assert paired_ratio(values, baselines).pairs == 0


# From scipy.stats.t.ppf(0.975, n).
@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.7062),
        (2, 4.3027),
        (7, 2.3646),
        (9, 2.2622),
        (10, 2.2281),
        (15, 2.1314),
        (31, 2.0395),
        (1000, 1.9623),
    ],
)
def test_quantiles_of_t(freedom, quantile):
    values = [2.0 if k % 2 else 1.0 for k in range(freedom + 1)]
    ratio = paired_ratio(values, [1.0] * len(values))
    deviation = stdev(map(math.log, values)) / math.sqrt(len(values))
    assert math.log(ratio.high / ratio.value) / deviation == pytest.approx(quantile, abs=6e-5)


@given(st.lists(st.tuples(st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=2, max_size=20))
def test_swapping_policy_and_baseline_inverts_the_ratio(pairs):
    there = paired_ratio([a for a, _ in pairs], [b for _, b in pairs])
    back = paired_ratio([b for _, b in pairs], [a for a, _ in pairs])
    assert there.low <= there.value <= there.high
    assert back.value == pytest.approx(there.inverse.value)
    if there.high / there.low < 1e100:
        assert (back.low, back.high) == pytest.approx((there.inverse.low, there.inverse.high))


def test_pairs_are_matched_by_workload_and_seed_whatever_their_order():
    runs = [
        run_with_jct("fifo", 100, seed=0),
        run_with_jct("fifo", 1000, seed=1),
        run_with_jct("afs", 500, seed=1),
        run_with_jct("afs", 50, seed=0),
    ]
    row = compare(runs).row("afs")
    assert row.ratios[MEAN_JCT].value == pytest.approx(0.5)
    assert row.ratios[MEAN_JCT].high == pytest.approx(0.5)
    assert row.values[MEAN_JCT] == pytest.approx(275)


def test_baseline_is_fifo_then_the_first_then_what_is_asked_for():
    runs = [run_with_jct("sjf", 1), run_with_jct("fifo", 2)]
    assert compare(runs).baseline == "fifo"
    assert compare([runs[0], run_with_jct("afs", 1)]).baseline == "sjf"
    assert compare(runs, "sjf").baseline == "sjf"
    with pytest.raises(ValueError, match="none of the policies: sjf, fifo"):
        compare(runs, "afs")


def test_nothing_and_doubles_are_refused():
    with pytest.raises(ValueError, match="no run"):
        compare([])
    with pytest.raises(ValueError, match="two runs of fifo"):
        compare([run_with_jct("fifo", 1), run_with_jct("fifo", 2)])


def test_best_values_are_marked_with_ties_but_not_where_all_agree():
    quick, slow = run_with_jct("sjf", 10, 20), run_with_jct("fifo", 30, 40)
    comparison = compare([slow, quick, replace(quick, policy="afs")])
    assert {row.policy for row in comparison.rows if MEAN_JCT in row.best} == {"sjf", "afs"}
    assert all("restarts" not in row.best for row in comparison.rows)
    assert [row.policy for row in comparison.rows] == ["sjf", "afs", "fifo"]


def test_a_policy_that_leaves_jobs_out_cannot_win():
    whole = run_with_jct("fifo", 10, 1000)
    lost = [
        make_job(0, submit_s=0.0, first_start_s=0.0, end_s=10.0),
        make_job(1, state=JobState.PENDING, end_s=math.nan),
    ]
    comparison = compare([whole, make_run("sly", lost, gpus=whole.gpus)])
    assert [row.policy for row in comparison.rows] == ["fifo", "sly"]
    assert not comparison.row("sly").comparable
    assert not comparison.row("sly").best
    assert comparison.winner is not None
    assert comparison.winner.policy == "fifo"
    assert "sly (1 of 2 jobs)" in " ".join(explanation(comparison))


def test_a_policy_that_lacks_a_run_cannot_win():
    runs = [
        run_with_jct("fifo", 10, seed=0),
        run_with_jct("fifo", 10, seed=1),
        run_with_jct("sly", 1, seed=0),
    ]
    assert not compare(runs).row("sly").comparable


def test_no_job_finished_is_no_shortest_time():
    pending = [make_job(k, state=JobState.PENDING, first_start_s=math.nan, end_s=math.nan) for k in range(2)]
    comparison = compare([make_run("stuck", pending), run_with_jct("fifo", 10, 20, gpus=2)])
    assert math.isnan(comparison.row("stuck").values[MEAN_JCT])
    assert headline(comparison) == "fifo is the only policy that can be ranked"
    assert comparison_json(comparison)["winner"] == "fifo"


@pytest.mark.parametrize(
    ("afs", "sentence"),
    [
        (100, "afs finishes jobs 1.42× faster than fifo on average"),
        (200, "No policy finishes jobs faster than fifo; next is afs, 1.41× slower on average"),
        (142, "No policy finishes jobs faster than fifo; afs is level with it"),
    ],
)
def test_headline(afs, sentence):
    assert headline(compare([run_with_jct("fifo", 142), run_with_jct("afs", afs)])) == sentence


def test_chance_is_called_chance():
    runs = [run_with_jct("fifo", 100, seed=s) for s in range(3)]
    runs += [run_with_jct("afs", jct, seed=s) for s, jct in enumerate((50, 120, 101))]
    assert "may be chance" in explanation(compare(runs))[0]


def test_json_has_no_nan():
    found = comparison_json(compare([run_with_jct("fifo", 10), run_with_jct("afs", 5)]))
    first = json.loads(json.dumps(found, allow_nan=False))["policies"][0]
    assert first["policy"] == "afs"
    assert first["ratio"][MEAN_JCT] == {"value": pytest.approx(0.5), "low": None, "high": None, "pairs": 1}
    assert first["ratio"]["wait_mean_s"] is None
    assert MEAN_JCT in first["best"]
