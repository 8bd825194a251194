"""A workload is read in submit order, or refused with all its faults."""

from pathlib import Path

import pytest

from batuta.backends.sim.goodput.application import Application
from batuta.backends.sim.goodput.workload import ReplayJob, WorkloadError, read_workload

HEADER = "name,time,application,num_replicas,batch_size\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "workload-1.csv"
    path.write_text(text)
    return path


def test_jobs_come_in_submit_order_and_ties_in_that_of_the_file(tmp_path: Path):
    path = write(tmp_path, HEADER + "c,20,toy,2,60\nb,7,toy,1,20\na,7,toy,1,20\n")
    jobs = read_workload(path)
    assert [job.name for job in jobs] == ["b", "a", "c"]
    assert jobs[2] == ReplayJob("c", 20, "toy", 2, 60)


def test_whole_seconds_stay_whole(tmp_path: Path):
    path = write(tmp_path, HEADER + "a,7,toy,1,20\nb,7.5,toy,1,20\n")
    assert [repr(job.submit_s) for job in read_workload(path)] == ["7", "7.5"]


def test_columns_may_come_in_any_order_and_more_of_them(tmp_path: Path):
    path = write(tmp_path, "user,batch_size,num_replicas,application,time,name\nme,20,1,toy,7,a\n\n")
    assert read_workload(path) == (ReplayJob("a", 7, "toy", 1, 20),)


def test_all_faults_are_named_with_their_line(tmp_path: Path, toy: Application):
    path = write(
        tmp_path,
        HEADER
        + "a,-1,toy,1,20\nb,soon,toy,0,2.5\na,3,toy,1,20\na,4,toi,1,20\nd,5,toy,4,20\n,6,toy,1,61\nf,7\n",
    )
    with pytest.raises(WorkloadError) as caught:
        read_workload(path, {"toy": toy.profile})
    assert [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems] == [
        "2: time is negative: -1",
        "3: time is not a number: 'soon'",
        "3: num_replicas is not between 1 and 2³¹: 0",
        "3: batch_size is not a whole number: '2.5'",
        "5: job a is also on line 4",
        "5: no profile for application toi (did you mean toy?)",
        "6: num_replicas 4 leaves too few samples for each replica (at most 2)",
        "7: name is empty",
        "8: has 2 fields, the header has 5",
    ]


def test_a_batch_size_outside_of_the_validated_ones_is_a_fault(tmp_path: Path, toy: Application):
    path = write(tmp_path, HEADER + "a,1,toy,1,61\n")
    with pytest.raises(WorkloadError, match=r"batch_size 61 cannot be judged \(20 to 60 were validated\)"):
        read_workload(path, {"toy": toy.profile})


@pytest.mark.parametrize(
    ("text", "fault"),
    [("", "the file is empty"), (HEADER, "has no rows"), ("name,time\n", "application is missing")],
)
def test_a_file_without_jobs_is_a_fault(tmp_path: Path, text: str, fault: str):
    with pytest.raises(WorkloadError, match=fault):
        read_workload(write(tmp_path, text))


def test_a_missing_file_is_a_fault(tmp_path: Path):
    with pytest.raises(WorkloadError, match="the file is missing"):
        read_workload(tmp_path / "none.csv")
