"""Philly: rows without ids become jobs in submit order."""

import pytest

from batuta.backends.sim.traces.reader import read_workload

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
THREE = HEADER + (
    "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    "2017-10-09 06:13:03,2951.0,4,11804.0,6214e9\n"
    "2017-10-09 07:01:55,10.0,2,20.0,6c71a0\n"
)


def test_jobs_start_at_zero_in_submit_order_with_padded_ids(write):
    jobs = [own.job for own in read_workload(write("jobs.csv", THREE)).jobs]
    assert [(job.id, job.submit_s, job.size) for job in jobs] == [
        ("philly-00001", 0.0, 4),
        ("philly-00002", 2932.0, 1),
        ("philly-00003", 2932.0, 2),
    ]


def test_the_virtual_cluster_stands_for_the_user(write):
    assert {own.job.user for own in read_workload(write("jobs.csv", THREE)).jobs} == {
        "11cb48",
        "6214e9",
        "6c71a0",
    }


def test_a_rigid_job_takes_its_recorded_time_at_its_recorded_size(write):
    own = read_workload(write("jobs.csv", THREE)).jobs[0]
    assert (own.job.min, own.job.max) == (4, 4)
    assert own.work_s / own.curve.at(4) == 2951.0
    assert (own.job.work_s, own.job.curve) == (own.work_s, own.curve)


@pytest.mark.parametrize("timestamp", ["yesterday", "", "2017-13-01 00:00:00", "2017-10-09 06:13:03+02:00"])
def test_a_bad_timestamp_is_named(write, problems_of, timestamp):
    path = write("jobs.csv", HEADER + f"{timestamp},66.0,1,66.0,a\n")
    (problem,) = problems_of(lambda: read_workload(path))
    assert (problem.line, problem.file) == (2, str(path))
    assert "timestamp" in problem.message


def test_the_whole_trace_is_read_and_every_job_is_sound(shared_data):
    workload = read_workload(shared_data / "philly" / "jobs.csv")
    assert len(workload.jobs) == 82_247
    assert not [own for own in workload.jobs if own.job.faults()]
