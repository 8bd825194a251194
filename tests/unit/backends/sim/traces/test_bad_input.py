"""Bad input is refused with all its problems at once, each with file and line."""

import pytest

from batuta.backends.sim.traces.reader import read_workload

HEADER = "job_id,submission_time,duration,num_gpu\n"


def test_all_problems_come_at_once_in_the_order_of_the_file(write, problems_of):
    path = write(
        "x.csv",
        HEADER + "a,0,10,1\nb,soon,10,1\nc,1,nan,1\n\nd,2,-3,1\ne,3,4,0\nf,3,4,-2\na,5,6,1\ng,1,2\nh,1,2,3,4\n",
    )
    problems = problems_of(lambda: read_workload(path))
    assert {problem.file for problem in problems} == {str(path)}
    assert [(problem.line, problem.message) for problem in problems] == [
        (3, "submission_time must be a number within 0..1e12, found 'soon'"),
        (4, "duration must be a number within 0..1e12, found 'nan'"),
        (6, "duration must be a number within 0..1e12, found '-3'"),
        (7, "num_gpu must be a whole number within 1..100000, found '0'"),
        (8, "num_gpu must be a whole number within 1..100000, found '-2'"),
        (9, "id a is taken by line 2"),
        (10, "3 columns, the header has 4"),
        (11, "5 columns, the header has 4"),
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,inf,1,1", "submission_time"),
        ("a,-inf,1,1", "submission_time"),
        ("a,1e400,1,1", "submission_time"),
        ("a,1_000,1,1", "submission_time"),
        ("a,,1,1", "submission_time"),
        ("a,0,1e13,1", "duration"),
        ("a,0,ten,1", "duration"),
        ("a,0,1,1.5", "num_gpu"),
        ("a,0,1,1e9", "num_gpu"),
        ("a,0,1,999999999999999999999", "num_gpu"),
        ("a,0,1,nan", "num_gpu"),
        ("a,0,1,", "num_gpu"),
        (",0,1,1", "job_id must not be empty"),
        ("  ,0,1,1", "job_id must not be empty"),
        ("a", "1 column, the header has 4"),
        ('"a,0,1,1', "1 column, the header has 4"),
    ],
)
def test_a_bad_cell_is_named(write, problems_of, row, said):
    (problem,) = problems_of(lambda: read_workload(write("x.csv", HEADER + row + "\n")))
    assert problem.line == 2
    assert said in problem.message


def test_a_long_cell_is_cut_in_the_message(write, problems_of):
    (problem,) = problems_of(lambda: read_workload(write("x.csv", HEADER + f"a,{'9' * 5000}x,1,1\n")))
    assert len(problem.message) < 200


def test_a_whole_number_may_be_written_as_a_float(write):
    assert read_workload(write("x.csv", HEADER + "a,0,1,4.0\n")).jobs[0].job.size == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (HEADER.encode(), "holds no jobs"),
        (b"job_id\0", "is a binary file"),
        (b"\x1f\x8b\x08\0abc", "packed with gzip"),
        (HEADER.encode() + b"caf\xe9,0,1,1\n", "is not UTF-8 text: byte 0xe9"),
    ],
)
def test_a_file_that_is_no_table_is_refused(write, problems_of, content, said):
    path = write("x.csv", content)
    (problem,) = problems_of(lambda: read_workload(path))
    assert problem.file == str(path)
    assert said in str(problem)


def test_bad_bytes_are_found_by_line_and_column(write, problems_of):
    path = write("x.csv", HEADER.encode() + b"a,0,1,1\ncaf\xe9,0,1,1\n")
    (problem,) = problems_of(lambda: read_workload(path))
    assert (problem.line, problem.column) == (3, 4)


def test_a_missing_file_and_a_folder_are_refused(tmp_path, problems_of):
    (missing,) = problems_of(lambda: read_workload(tmp_path / "none.csv"))
    (folder,) = problems_of(lambda: read_workload(tmp_path))
    assert missing.message == "no such file"
    assert folder.message == "is a folder, a file was expected"


def test_a_hundred_thousand_problems_are_all_there(write, problems_of):
    path = write("x.csv", HEADER + "a,x,1,1\n" * 50_000)
    problems = problems_of(lambda: read_workload(path))
    assert len(problems) == 50_000 + 49_999
