"""ElasticFlow: ids come from the file, curves from its authors' measurements."""

import pytest

from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions

TRACE = "job_id,submission_time,duration,num_gpu\nb,2000,1500,1\na,1000,2400,4\nc,3000,100,64\n"
VGG = "global_batch_size,1,2,4,8\n64,5,9,15,20\n128,2.5,5,8,\n"
NCF = "global_batch_size,1,2,4,8\r\n32768,40,30,50,nan\r\n"
MEASURED = Elasticity.parse("0.5:4", "elasticflow:T4")


@pytest.fixture
def trace(write, tmp_path):
    (tmp_path / "throughputs_T4").mkdir()
    write("throughputs_T4/vgg.csv", VGG)
    write("throughputs_T4/ncf.csv", NCF)
    return write("cluster.csv", TRACE)


def test_ids_and_times_come_from_the_file(trace):
    jobs = [own.job for own in read_workload(trace).jobs]
    assert [(job.id, job.submit_s, job.size) for job in jobs] == [
        ("a", 0.0, 4),
        ("b", 1000.0, 1),
        ("c", 2000.0, 64),
    ]


def test_measured_curves_are_relative_to_one_gpu_with_straight_lines_between(trace):
    workload = read_workload(trace, options=TraceOptions(MEASURED))
    curves = {own.job.application: own.curve for own in workload.jobs}
    expected = {
        "vgg-64": (0, 1, 1.8, 2.4, 3.0, 3.25, 3.5, 3.75, 4.0),
        "vgg-128": (0, 1, 2, 2.6, 3.2),
        "ncf-32768": (0, 1, 0.75, 1, 1.25),
    }
    for application, curve in curves.items():
        assert curve.speeds == pytest.approx(expected[application])


def test_the_recorded_time_stays_whatever_model_is_drawn(trace):
    for own in read_workload(trace, options=TraceOptions(MEASURED, seed=3)).jobs:
        recorded = {"a": 2400, "b": 1500, "c": 100}[own.job.id]
        assert own.work_s / own.curve.at(own.job.size) == pytest.approx(recorded)


def test_sizes_end_where_measurements_end_but_never_below_the_recorded_size(trace):
    jobs = {own.job.id: own.job for own in read_workload(trace, options=TraceOptions(MEASURED)).jobs}
    assert (jobs["a"].min, jobs["b"].min, jobs["c"].min) == (2, 1, 32)
    assert jobs["a"].max in (4, 8)
    assert jobs["b"].max == 4
    assert (jobs["c"].max, jobs["c"].application) == (64, "vgg-64")


def test_the_same_seed_draws_the_same_models_and_another_seed_others(trace):
    def drawn(seed):
        workload = read_workload(trace, options=TraceOptions(MEASURED, seed=seed))
        return tuple(own.job.application for own in workload.jobs)

    assert drawn(5) == drawn(5)
    assert len({drawn(seed) for seed in range(20)}) > 1


def test_an_unknown_gpu_type_names_those_that_are_there(trace, problems_of):
    options = TraceOptions(Elasticity.parse("rigid", "elasticflow:H100"))
    (problem,) = problems_of(lambda: read_workload(trace, options=options))
    assert "throughputs_H100" in problem.message
    assert "throughputs_T4" in problem.fix


@pytest.mark.parametrize(
    ("table", "line", "said"),
    [
        ("batch,1,2\n64,1,2\n", 1, "global_batch_size"),
        ("global_batch_size,2,4\n64,1,2\n", 1, "ascending GPU counts from 1"),
        ("global_batch_size,1,2\n64,fast,2\n", 2, "could not convert"),
        ("global_batch_size,1,2\n64,-1,2\n", 2, "≥ 0"),
        ("global_batch_size,1,2\n64,,2\n", 2, "on 1 GPU was not measured"),
        ("global_batch_size,1,2\n64,1,2,3\n", 2, "at most 2 throughputs"),
    ],
)
def test_a_bad_throughput_table_is_refused(trace, write, problems_of, table, line, said):
    path = write("throughputs_T4/vgg.csv", table)
    (problem,) = problems_of(lambda: read_workload(trace, options=TraceOptions(MEASURED)))
    assert (problem.file, problem.line) == (str(path), line)
    assert said in problem.message


@pytest.mark.parametrize(("name", "jobs"), [("cluster01", 1595), ("cluster04", 15_802)])
@pytest.mark.parametrize("gpu_type", ["T4", "A100"])
def test_the_published_clusters_are_read_with_both_tables(shared_data, name, jobs, gpu_type):
    options = TraceOptions(Elasticity.parse("0.5:2", f"elasticflow:{gpu_type}"))
    workload = read_workload(shared_data / "elasticflow" / f"{name}.csv", options=options)
    assert len(workload.jobs) == jobs
    assert not [own for own in workload.jobs if own.job.faults()]
