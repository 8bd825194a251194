"""Batuta's own format loses nothing and refuses nonsense."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.traces.batuta_jsonl import PARSERS, dump_workload, read_batuta, save_workload
from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import RIGID_OPTIONS, TraceFile
from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload
from batuta.core.curve import SpeedCurve, linear_curve
from batuta.core.job import Job, JobKind, Share, Spread, Topology

HEADER = '{"batuta_workload": 1, "name": "x"}\n'
JOB = {"id": "a", "submit_s": 0, "size": 2, "work_s": 60}

seconds = st.floats(0, 1e12)
names = st.text(max_size=8)
speeds = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5)
factors = st.floats(0.01, 1)
curves = st.one_of(
    st.integers(1, 40).map(linear_curve),
    st.builds(lambda own, nodes, racks: SpeedCurve((0.0, *own), nodes, racks), speeds, factors, factors),
)


@st.composite
def jobs(draw) -> Job:
    step = draw(st.integers(1, 3))
    low, middle, high = sorted(step * draw(st.integers(1, 8)) for _ in range(3))
    share = None
    if (low, high, step) == (1, 1, 1):
        share = draw(st.none() | st.builds(Share, st.integers(0, 99_999), st.integers(1, 100)))
    return Job(
        id=draw(st.text(min_size=1, max_size=8)),
        submit_s=draw(seconds),
        size=middle,
        min=low,
        max=high,
        sizes=draw(st.sampled_from([None, tuple(sorted({low, middle, high}))])),
        gpus_per_replica=step,
        name=draw(names),
        user=draw(names),
        queue=draw(names),
        priority=draw(st.integers(-1000, 1000)),
        kind=draw(st.sampled_from(JobKind)),
        application=draw(names),
        gpu_types=tuple(draw(st.dictionaries(names, st.floats(0.01, 100), max_size=3)).items()),
        share=share,
        topology=draw(st.builds(Topology, st.sampled_from(Spread), st.booleans(), st.booleans())),
        cpus_milli_per_gpu=draw(st.integers(0, 10**6)),
        memory_mib_per_gpu=draw(st.integers(0, 10**6)),
        node_labels=tuple(draw(st.dictionaries(names, names, max_size=2)).items()),
        tolerations=tuple(draw(st.lists(names, max_size=2))),
        curve=draw(curves),
        work_s=draw(seconds),
        restart_s=draw(seconds),
        checkpoint_interval_s=draw(st.none() | seconds),
    )


requests = st.builds(GoodputRequest, names, st.integers(1, 64), st.integers(1, 10**6))
sim_jobs = st.builds(SimJob, jobs(), seconds, curves, st.none() | requests)


@st.composite
def workloads(draw) -> Workload:
    found = draw(st.lists(sim_jobs, min_size=1, max_size=5, unique_by=lambda own: own.job.id))
    found.sort(key=lambda own: own.job.submit_s)
    return Workload(draw(st.text(min_size=1)), "batuta", tuple(found), tuple(draw(st.lists(st.text(), max_size=2))))


@given(workloads())
def test_what_is_written_is_read_back_without_loss(workload):
    text = dump_workload(workload)
    assert read_batuta(TraceFile(Path("x"), text), RIGID_OPTIONS) == workload
    assert text.isascii()
    assert text.count("\n") == len(workload.jobs) + 1


def test_what_is_not_written_has_its_documented_default(write):
    (own,) = read_workload(write("x.jsonl", HEADER + json.dumps(JOB))).jobs
    expected = Job(id="a", submit_s=0.0, size=2, min=2, max=2, curve=linear_curve(2), work_s=60.0)
    assert own == SimJob(expected, 60.0, linear_curve(2))


def test_the_scheduler_may_believe_something_else(write):
    record = JOB | {"believed_work_s": 90, "believed_curve": [1, 1.5]}
    (own,) = read_workload(write("x.jsonl", HEADER + json.dumps(record))).jobs
    assert (own.work_s, own.job.work_s) == (60.0, 90.0)
    assert (own.curve, own.job.curve.speeds) == (linear_curve(2), (0.0, 1.0, 1.5))


def test_every_field_of_the_reader_is_documented():
    reference = (Path(__file__).parents[5] / "docs/reference/simulator.md").read_text()
    section = reference.partition("## Batuta's own workload file")[2].partition("\n## ")[0]
    assert [field for field in PARSERS if f"`{field}`" not in section] == []


def test_a_job_that_names_a_type_twice_cannot_be_written():
    job = Job(id="a", submit_s=0, gpu_types=(("T4", 1.0), ("T4", 2.0)))
    with pytest.raises(ValueError, match="gpu_types names something twice"):
        dump_workload(Workload("x", "batuta", (SimJob(job, 1.0, linear_curve(1)),)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": 7}, "id must be a text, found 7"),
        ({"id": ""}, "id must not be empty"),
        ({"submit_s": -1}, "submit_s must be a finite number ≥ 0, found -1"),
        ({"submit_s": "0"}, "submit_s must be a finite number ≥ 0, found '0'"),
        ({"submit_s": True}, "submit_s must be a finite number ≥ 0, found True"),
        ({"size": 0}, "size must be a whole number within 1..100000, found 0"),
        ({"size": 1.5}, "size must be a whole number"),
        ({"size": 10**9}, "size must be a whole number"),
        ({"min": 3}, "min must be ≤ max, found min 3 and max 2"),
        ({"max": 4, "min": 3}, "size must be within min..max"),
        ({"sizes": [1, 2]}, "sizes must begin at min and end at max"),
        ({"sizes": "all"}, "sizes must be a list of GPU counts"),
        ({"curve": []}, "curve must be linear:N or a list of speeds"),
        ({"curve": "linear:0"}, "curve must be a whole number within 1..100000"),
        ({"curve": "linear:999999999"}, "curve must be a whole number within 1..100000"),
        ({"curve": [1, "2"]}, "curve must be linear:N or a list of speeds"),
        ({"curve": [-1]}, "curve must be a list of finite speeds ≥ 0"),
        ({"curve": [0, 0]}, "the curve gives no speed at size 2"),
        ({"curve": {"speeds": [1], "across_nodes": 2}}, "spread factors in (0, 1]"),
        ({"curve": {"across_nodes": 0.5}}, "curve must be an object with speeds"),
        ({"kind": "docker"}, "kind must be one of script, torch-elastic"),
        ({"share": {"compute": 50}}, "share must be an object with memory_mib, compute_percent"),
        ({"share": {"compute_percent": 50}}, "a job with a share of a GPU has size, min and max 1"),
        ({"topology": {"within": "room"}}, "topology must be one of any, node, rack"),
        ({"gpu_types": {"T4": 0}}, "relative speed of GPU type T4"),
        ({"gpu_types": ["T4"]}, "gpu_types must be an object"),
        ({"goodput": {"application": "x"}}, "goodput must be an object with all of"),
        ({"restart_s": None}, "restart_s must be"),
        ({"gpu_types": {"T4": "fast"}}, "gpu_types must be numbers"),
        ({"tolerations": "spot"}, "tolerations must be a list of texts"),
        ({"topology": {"required": 1}}, "topology must be true or false"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"name": "x" * 1000, "user": 3}, "user must be a text"),
        ({"believed_curve": [True]}, "believed_curve must be"),
        ({"gpus_per_replica": 3}, "multiple of gpus_per_replica"),
        ({"prioritty": 3}, "unknown field prioritty (did you mean priority?)"),
    ],
)
def test_a_bad_field_is_named_with_what_was_found(write, problems_of, change, said):
    path = write("x.jsonl", HEADER + json.dumps(JOB | change) + "\n")
    problems = problems_of(lambda: read_workload(path))
    assert {problem.line for problem in problems} == {2}
    assert any(said in str(problem) for problem in problems)


@pytest.mark.parametrize("missing", ["id", "submit_s", "size", "work_s"])
def test_a_missing_field_is_named(write, problems_of, missing):
    record = {name: value for name, value in JOB.items() if name != missing}
    (problem,) = problems_of(lambda: read_workload(write("x.jsonl", HEADER + json.dumps(record))))
    assert problem.message == f"field {missing} is missing"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "a job must be a JSON object"),
        ("NaN", "NaN is not a number"),
        ('{"id": "a", "submit_s": Infinity}', "Infinity is not a number"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 10_000, "is not JSON"),
    ],
)
def test_a_line_that_is_no_job_is_refused(write, problems_of, line, said):
    (problem,) = problems_of(lambda: read_workload(write("x.jsonl", HEADER + "\n" + line + "\n")))
    assert problem.line == 3
    assert said in problem.message


@pytest.mark.parametrize("depth", range(300, 1000, 25))
@pytest.mark.parametrize("part", ['{"speeds": ', "["])
def test_deep_nesting_is_only_bad_input(write, problems_of, depth, part):
    end = "}" if part.startswith("{") else "]"
    record = json.dumps(JOB)[:-1] + f', "curve": {part * depth}1{end * depth}}}'
    (problem,) = problems_of(lambda: read_workload(write("x.jsonl", HEADER + record)))
    assert problem.line == 2


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('{"batuta_workload": 2}', "batuta_workload must be 1, found 2"),
        ('{"batuta_workload": true}', "batuta_workload must be 1, found True"),
        ('{"batuta_workload": 1, "nam": "x"}', "unknown field nam (did you mean name?)"),
        ('{"batuta_workload": 1, "name": 3}', "name must be a text"),
        ('{"batuta_workload": 1, "notes": "x"}', "notes must be a list of texts"),
        ("{}", "the header is missing"),
    ],
)
def test_a_bad_header_is_refused(write, problems_of, header, said):
    path = write("x.jsonl", header + "\n" + json.dumps(JOB))
    problems = problems_of(lambda: read_workload(path, format="batuta"))
    assert said in str(problems[0])


def test_all_problems_of_all_lines_come_at_once(write, problems_of):
    lines = [JOB, JOB, JOB | {"id": "b", "size": 0, "who": 1}, {"id": "a"}]
    path = write("x.jsonl", HEADER + "\n".join(map(json.dumps, lines)))
    assert [(problem.line, problem.message) for problem in problems_of(lambda: read_workload(path))] == [
        (3, "id a is taken by line 2"),
        (4, "size must be a whole number within 1..100000, found 0"),
        (4, "unknown field who"),
        (5, "field submit_s is missing"),
        (5, "field size is missing"),
        (5, "field work_s is missing"),
        (5, "id a is taken by line 2"),
    ]


WORKLOAD = Workload("x", "batuta", (SimJob(Job(id="a", submit_s=0), 1.0, linear_curve(1)),))


def test_a_file_is_written_whole_and_leaves_nothing_beside_it(tmp_path):
    save_workload(WORKLOAD, tmp_path / "x.jsonl")
    assert (tmp_path / "x.jsonl").read_text() == dump_workload(WORKLOAD)
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_an_existing_file_is_replaced_only_when_asked(tmp_path, problems_of):
    path = tmp_path / "x.jsonl"
    path.write_text("mine")
    (problem,) = problems_of(lambda: save_workload(WORKLOAD, path))
    assert (problem.message, path.read_text()) == ("exists already", "mine")
    save_workload(WORKLOAD, path, overwrite=True)
    assert path.read_text() == dump_workload(WORKLOAD)


@pytest.mark.parametrize("name", ["none/x.jsonl", "."])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, problems_of, name):
    (problem,) = problems_of(lambda: save_workload(WORKLOAD, tmp_path / name))
    assert problem.file == str(tmp_path / name)


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, problems_of, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_text("mine")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    (problem,) = problems_of(lambda: save_workload(WORKLOAD, path, overwrite=True))
    assert "No space left" in problem.message
    assert path.read_text() == "mine"
    assert [one.name for one in tmp_path.iterdir()] == ["x.jsonl"]


def test_any_format_survives_conversion(shared_data, tmp_path):
    for name in (
        "elasticflow/cluster05.csv",
        "gavel/max_min_fairness.trace",
        "pollux/workloads/load-1.0/workload-1.csv",
    ):
        workload = read_workload(shared_data / name)
        save_workload(workload, tmp_path / "x.jsonl", overwrite=True)
        assert read_workload(tmp_path / "x.jsonl") == replace(workload, format="batuta")
