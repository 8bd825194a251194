"""A workload's format is told by its first line, or forced."""

import pytest

from batuta.backends.sim.traces.reader import FORMATS, read_workload

FIRST_LINES = {
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n",
    "elasticflow": "job_id,submission_time,duration,num_gpu\na,1,2,3\n",
    "muri": "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration\n0,1,0,5,dqn,8,9\n",
    "alibaba": (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
        "p,1,1,1,1000,,0,9,0\n"
    ),
    "pollux": "name,time,application,num_replicas,batch_size\na,1,bert,1,12\n",
    "batuta": '{"batuta_workload": 1, "name": "x"}\n{"id": "a", "submit_s": 0, "size": 1, "work_s": 5}\n',
}


@pytest.mark.parametrize("name", FIRST_LINES)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n\r\n"], ids=["plain", "bom", "blank lines first"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"], ids=["lf", "crlf"])
def test_a_format_is_recognised_by_its_first_line(write, name, mark, ending):
    text = mark + FIRST_LINES[name].encode().replace(b"\n", ending)
    workload = read_workload(write("some.file", text))
    assert (workload.format, len(workload.jobs)) == (name, 1)


def test_columns_may_come_in_any_order_and_more_of_them(write):
    text = "num_gpu,who,duration,submission_time,job_id\n4,me,100,7,a\n"
    (own,) = read_workload(write("x.csv", text)).jobs
    assert (own.job.id, own.job.size, own.work_s) == ("a", 4, 400.0)


def test_an_unknown_first_line_lists_what_is_known_and_what_was_found(write, problems_of):
    path = write("x.csv", "some,other,table\n1,2,3\n")
    (problem,) = problems_of(lambda: read_workload(path))
    assert "some,other,table" in problem.message
    assert all(name in problem.fix for name in FORMATS)


def test_a_forced_format_says_which_columns_are_missing(write, problems_of):
    path = write("x.csv", "timestamp,duration,gpus\n1,2,3\n")
    problems = problems_of(lambda: read_workload(path, format="philly"))
    assert [problem.message for problem in problems] == [
        "column num_gpus is missing",
        "column cluster is missing",
    ]
    assert problems[0].fix == "did you mean gpus?"


def test_an_unknown_format_name_has_a_nearest_one(write, problems_of):
    path = write("x.csv", FIRST_LINES["philly"])
    (problem,) = problems_of(lambda: read_workload(path, format="phily"))
    assert problem.fix == "did you mean philly?"
    assert read_workload(path, format=" Philly ").format == "philly"


def test_sample_is_the_workload_that_comes_with_batuta():
    assert read_workload("sample").name == "sample"
