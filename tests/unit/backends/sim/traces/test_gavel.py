"""Gavel: steps and throughputs give run times and speeds by GPU type."""

import json

import pytest

from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import TraceOptions


def row(job_type="LM", steps="1000", gpus="2", weight="1", arrival="0"):
    return "\t".join([job_type, "python x", "lm", "-n", "1", steps, gpus, weight, "-1.000000", arrival]) + "\n"


TABLE = {
    "k80": {"('LM', 2)": {"null": 1.0}, "('A3C', 1)": {"null": 0.0}},
    "p100": {"('LM', 2)": {"null": 2.0, "('LM', 2)": [1.0, 1.0]}, "('A3C', 1)": {"null": 3.0}},
    "v100": {"('LM', 2)": {"null": 5.0}, "('A3C', 1)": {"null": 0.0}},
}


@pytest.fixture
def throughputs(write):
    return write("simulation_throughputs.json", json.dumps(TABLE))


def test_steps_become_seconds_on_the_reference_type(write, throughputs):
    (own,) = read_workload(write("a.trace", row())).jobs
    assert own.job.id == "gavel-00001"
    assert own.job.size == own.job.min == own.job.max == 2
    assert own.work_s / own.curve.at(2) == 1000 / 5.0
    assert own.job.gpu_types == (("V100", 1.0), ("P100", 0.4), ("K80", 0.2))


def test_a_type_without_throughput_is_not_accepted_and_the_next_becomes_the_reference(write, throughputs):
    (own,) = read_workload(write("a.trace", row("A3C", steps="300", gpus="1"))).jobs
    assert (own.job.gpu_types, own.work_s) == ((("P100", 1.0),), 100.0)


def test_arrivals_are_sorted_and_start_at_zero(write, throughputs):
    jobs = read_workload(write("a.trace", row(arrival="50") + row(arrival="20"))).jobs
    assert [own.job.submit_s for own in jobs] == [0.0, 30.0]


def test_weights_are_counted_in_a_note(write, throughputs):
    workload = read_workload(write("a.trace", row() + row(weight="5")))
    assert any(note.startswith("1 jobs have a priority weight") for note in workload.notes)


def test_without_throughputs_the_fix_says_where_to_put_them(write, problems_of, tmp_path):
    path = write("a.trace", row())
    (problem,) = problems_of(lambda: read_workload(path))
    assert "simulation_throughputs.json" in problem.message
    assert str(tmp_path) in problem.fix


def test_throughputs_may_lie_elsewhere(write, tmp_path):
    (tmp_path / "profiles").mkdir()
    write("profiles/simulation_throughputs.json", json.dumps(TABLE))
    options = TraceOptions(profiles=tmp_path / "profiles")
    assert len(read_workload(write("a.trace", row()), options=options).jobs) == 1


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (row() + row("LN"), 2, "no throughput of LN on 2 GPUs (known: A3C, LM)"),
        (row() + row(gpus="4"), 2, "no throughput of LM on 4 GPUs (measured on 2)"),
        (row() + row(gpus="0"), 2, "scale factor"),
        (row() + row(steps="many"), 2, "total steps"),
        (row() + row(arrival="nan"), 2, "arrival time"),
        (row() + "a\tb\n", 2, "2 columns between tabs, expected 10"),
    ],
    ids=["job type", "gpus not measured", "no gpus", "steps", "arrival", "columns"],
)
def test_a_bad_row_is_named_with_its_line(write, throughputs, problems_of, lines, line, said):
    problems = problems_of(lambda: read_workload(write("a.trace", lines)))
    assert problems[0].line == line
    assert said in str(problems[0])


@pytest.mark.parametrize("table", ["[]", "{", '{"v100": {"x": 1}}', '{"v100": {}, "p100": {}}', "3"])
def test_a_bad_throughput_table_is_refused(write, problems_of, table):
    path = write("simulation_throughputs.json", table)
    (problem,) = problems_of(lambda: read_workload(write("a.trace", row())))
    assert problem.file == str(path)


def test_the_published_traces_are_read(shared_data):
    for name, jobs in (("max_min_fairness", 96), ("minimize_makespan", 100)):
        workload = read_workload(shared_data / "gavel" / f"{name}.trace")
        assert (workload.format, len(workload.jobs)) == ("gavel", jobs)
        assert not [own for own in workload.jobs if own.job.faults()]
