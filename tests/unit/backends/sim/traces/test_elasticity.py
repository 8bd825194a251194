"""Rigid jobs become elastic by factors and a curve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import RIGID, Elasticity, TraceOptions

HEADER = "job_id,submission_time,duration,num_gpu\n"


def test_rigid_is_the_default():
    assert Elasticity.parse() == Elasticity.parse(" Rigid ") == Elasticity.parse("1:1") == RIGID


@pytest.mark.parametrize(
    ("sizes", "size", "range_"),
    [
        ("0.5:2", 8, (4, 16)),
        ("0.5:2", 1, (1, 2)),
        ("0.5:2", 3, (1, 6)),
        ("0:1.5", 3, (1, 5)),
        ("1:1", 7, (7, 7)),
        ("0.3:1.01", 10, (3, 11)),
    ],
)
def test_the_range_follows_from_the_factors(write, sizes, size, range_):
    path = write("x.csv", HEADER + f"a,0,100,{size}\n")
    (own,) = read_workload(path, options=TraceOptions(Elasticity.parse(sizes))).jobs
    assert (own.job.min, own.job.max) == range_


@given(
    size=st.integers(1, 200),
    low=st.floats(0, 1),
    high=st.floats(1, 8),
    curve=st.sampled_from(["linear", "constant", "amdahl:0.05", "power:0.9", "alpha-beta:0.01,0.1", "table:1,1.8"]),
)
def test_every_elastic_job_is_sound_and_keeps_its_recorded_time(tmp_path_factory, size, low, high, curve):
    path = tmp_path_factory.mktemp("trace") / "x.csv"
    path.write_text(HEADER + f"a,0,100,{size}\n")
    (own,) = read_workload(path, options=TraceOptions(Elasticity.parse(f"{low}:{high}", curve))).jobs
    assert own.job.faults() == []
    assert own.work_s / own.curve.at(size) == pytest.approx(100)


def test_a_part_of_a_gpu_stays_rigid(write):
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    path = write("pods.csv", header + "p,1,1,1,500,,0,9,0\n")
    (own,) = read_workload(path, options=TraceOptions(Elasticity.parse("0.5:4"))).jobs
    assert own.job.faults() == []
    assert own.job.max == 1


@pytest.mark.parametrize(
    "sizes", ["", "2", "0.5:", ":2", "0.5:2:3", "2:4", "0.5:0.9", "nan:2", "0.5:inf", "a:b", "-1:2"]
)
def test_senseless_factors_are_refused_with_an_example(problems_of, sizes):
    (problem,) = problems_of(lambda: Elasticity.parse(sizes))
    assert "0.5:2" in problem.fix


def test_a_measured_curve_needs_a_gpu_type(problems_of):
    assert Elasticity.parse(curve="elasticflow: T4").measured_on == "T4"
    (problem,) = problems_of(lambda: Elasticity.parse(curve="elasticflow:"))
    assert "elasticflow:T4" in problem.fix
