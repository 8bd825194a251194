"""`batuta trace` shows, converts and generates workloads."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.backends.sim.traces.reader import read_workload
from batuta.cli.trace import app
from batuta.spec.problem import InputError

TRACE = "job_id,submission_time,duration,num_gpu\na,0,3600,2\nb,3600,7200,4\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    path.write_text(TRACE)
    return path


def run(*arguments: object):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_info_shows_counts_times_and_load(trace):
    shown = run("info", trace, "--cluster", "2x4").stdout
    for part in ("in (elasticflow)", "2 × 1, 4 × 1", "10.0", "1.25 on 8 GPUs"):
        assert part in shown


def test_info_speaks_json(trace):
    found = json.loads(run("info", trace, "--cluster", "2x4", "-o", "json").stdout)
    assert (found["jobs"], found["gpu_hours"], found["load"]) == (2, 10.0, 1.25)
    assert found["jobs_by_gpus"] == {"2": 1, "4": 1}
    assert set(found["duration_s"]) == {"mean", "min", "p10", "p50", "p90", "p99", "max"}


def test_info_knows_the_sample():
    assert "120" in run("info", "sample").stdout


def test_convert_writes_what_was_read(trace, tmp_path):
    run("convert", trace, tmp_path / "out.jsonl", "--elastic", "0.5:2", "--speed", "amdahl:0.1")
    workload = read_workload(tmp_path / "out.jsonl")
    assert [(own.job.id, own.job.min, own.job.max) for own in workload.jobs] == [("a", 1, 4), ("b", 2, 8)]
    assert workload.notes == ("converted from elasticflow file in.csv",)


def test_convert_can_stop_early_and_print(trace):
    lines = run("convert", trace, "-", "--limit", "1").stdout.splitlines()
    assert [json.loads(line).get("id") for line in lines] == [None, "a"]


def test_convert_refuses_to_overwrite_unless_forced(trace, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        run("convert", trace, out)
    assert out.read_text() == "mine"
    run("convert", trace, out, "--force")
    assert len(read_workload(out).jobs) == 2


def test_generate_is_reproducible(tmp_path):
    for name in ("a", "b"):
        run(
            "generate",
            "--jobs",
            30,
            "--seed",
            5,
            "--gpus",
            16,
            "--sizes",
            "1:2,4:1",
            "--name",
            "w",
            tmp_path / name,
        )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert {own.job.size for own in read_workload(tmp_path / "a").jobs} == {1, 4}


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "missing.csv"],
        ["info", "sample", "--cluster", "0x4"],
        ["info", "sample", "--elastic", "2:1"],
        ["info", "sample", "--speed", "warp:9"],
        ["generate", "--jobs", "0", "-"],
        ["generate", "--sizes", "1", "-"],
        ["generate", "--longest", "soon", "-"],
    ],
)
def test_bad_input_is_left_to_the_command_line_to_print(arguments):
    with pytest.raises(InputError):
        run(*arguments)


@pytest.mark.parametrize("verb", ["info", "convert", "generate"])
def test_help_has_examples(verb):
    shown = run(verb, "--help").stdout
    assert "Examples:" in shown
    assert shown.count(f"batuta trace {verb}") == 3
