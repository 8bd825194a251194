"""Pollux: the file gives requests, the profiles give the rest."""

from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions
from batuta.backends.sim.workload import GoodputRequest

TRACE = (
    "name,time,application,num_replicas,batch_size\n"
    "ncf-2,135,ncf,1,32768\nz-0,107,cifar10,96,2048\na-1,107,bert,6,384\n"
)


def test_jobs_keep_their_times_and_ties_keep_the_order_of_the_file(write):
    jobs = [own.job for own in read_workload(write("workload-1.csv", TRACE)).jobs]
    assert [(job.id, job.submit_s) for job in jobs] == [("z-0", 107.0), ("a-1", 107.0), ("ncf-2", 135.0)]


def test_the_rigid_request_is_kept_beside_the_range(write):
    large, small, _ = read_workload(write("workload-1.csv", TRACE)).jobs
    assert small.goodput == GoodputRequest("bert", 6, 384)
    assert (small.job.min, small.job.size, small.job.max) == (1, 6, 64)
    assert (large.job.min, large.job.size, large.job.max) == (1, 96, 96)
    assert small.job.application == "bert"


def test_elasticity_has_no_say_and_a_note_tells(write):
    options = TraceOptions(Elasticity.parse("0.5:2"))
    workload = read_workload(write("workload-1.csv", TRACE), options=options)
    assert workload.jobs == read_workload(write("workload-1.csv", TRACE)).jobs
    assert "not used" in workload.notes[-1]


def test_all_problems_come_at_once_with_their_lines(write, problems_of):
    path = write("workload-1.csv", TRACE + "a-1,1,ncf,0,32768\n,soon,,1,0\n")
    problems = problems_of(lambda: read_workload(path))
    assert [problem.line for problem in problems] == [5, 5, 6, 6, 6, 6]
    (empty,) = problems_of(lambda: read_workload(write("workload-2.csv", TRACE.splitlines()[0])))
    assert empty.message == "holds no jobs"


def test_all_published_workloads_are_read(shared_data):
    for path in sorted((shared_data / "pollux" / "workloads").glob("load-*/workload-*.csv")):
        workload = read_workload(path)
        assert workload.format == "pollux"
        assert not [own for own in workload.jobs if own.job.faults() or own.goodput is None]
