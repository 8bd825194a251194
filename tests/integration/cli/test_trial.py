"""`batuta trial` and `trial: true`, with real processes."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.support.cli_server import Cli

SPEEDS = {1: 10.0, 2: 19.5, 4: 20.5}
"""Steps per second by GPUs: more than two are hardly worth it."""
TRAIN = """
import json, os, sys, time
n = int(os.environ["WORLD_SIZE"])
if n in json.loads(os.environ["TOO_SMALL"]):
    sys.exit("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB")
if os.environ.get("RANK") != "0" or not os.environ.get("BATUTA_TRIAL"):
    sys.exit()
rate = json.loads(os.environ["SPEEDS"])[str(n)]
now = time.time()
with open(os.environ["BATUTA_PROGRESS"], "a") as report:
    for step in range(400):
        report.write(json.dumps({"step": step, "total_steps": 10**6, "time": now + step / rate}) + "\\n")
time.sleep(float(os.environ["SECONDS"]))
"""


def write_task(folder: Path, more: str = "", too_small: str = "[]", seconds: str = "0") -> str:
    """A task whose script reports at once what it would have done in half a minute."""
    (folder / "train.py").write_text(TRAIN)
    envs = {"SPEEDS": json.dumps(SPEEDS), "TOO_SMALL": too_small, "SECONDS": seconds}
    (folder / "task.yaml").write_text(
        f"name: vision\nworkdir: .\nnum_nodes: auto\nelastic: {{max_nodes: 4}}\n"
        f"envs: {json.dumps(envs)}\nrun: python3 train.py\n{more}\n"
    )
    return str(folder / "task.yaml")


def test_a_trial_tells_how_a_task_scales_and_what_would_be_chosen(cli: Cli, tmp_path: Path) -> None:
    found = cli.json("trial", write_task(tmp_path), "--budget", "60s")
    assert found["over"]
    assert [run["gpus"] for run in found["runs"]] == [1, 2, 4]
    assert {run["state"] for run in found["runs"]} == {"measured"}
    assert [run["steps_per_s"] for run in found["runs"]] == pytest.approx(list(SPEEDS.values()), rel=0.05)
    assert found["runs"][2]["efficiency"] == pytest.approx(0.51, abs=0.04)
    assert found["chosen_gpus"] == 2
    assert "2 GPUs give 9" in found["sentence"]
    # and the next job of the name starts from it, without a trial of its own
    preview = cli.json("launch", str(tmp_path / "task.yaml"), "--dryrun")
    assert preview["job"]["size_choice"]["gpus"] == 2


def test_a_job_is_tried_out_first_and_then_runs_with_what_was_learned(cli: Cli, tmp_path: Path) -> None:
    task = write_task(tmp_path, "trial: {sizes: [1, 2, 4], budget: 60s}")
    job = cli.launch(task, "-n", "language")
    cli.wait(job, "SUCCEEDED")
    told = cli.json("explain", job)
    assert told["size_choice"]["gpus"] == 2
    assert told["trial"]["over"]
    sentences = [chapter["sentence"] for chapter in told["story"]]
    assert any(one.startswith("trial run with 4 GPUs: 20.") for one in sentences)
    assert "is queued, with what its trial runs showed" in sentences
    assert any(one.startswith("starts with") for one in sentences)


def test_a_task_that_runs_out_of_memory_is_told_so_before_it_waits(cli: Cli, tmp_path: Path) -> None:
    task = write_task(tmp_path, "trial: {sizes: [1, 2], budget: 60s}", too_small="[1, 2, 3, 4]")
    job = cli.launch(task, "-n", "large")
    told = cli.until(lambda: cli.json("explain", job), lambda now: now["trial"]["over"])
    assert [run["state"] for run in told["trial"]["runs"]] == ["out of memory"] * 2
    found = cli.until(lambda: cli.json("explain", job), lambda now: now["reason"]["code"] == "OUT_OF_MEMORY")
    assert "with up to 2 GPUs" in found["reason"]["sentence"]


def test_the_size_that_fits_is_found(cli: Cli, tmp_path: Path) -> None:
    task = write_task(tmp_path, "trial: {budget: 60s}", too_small="[1]")
    job = cli.launch(task, "-n", "medium")
    found = cli.wait(job, "SUCCEEDED")
    assert found["gpus"]["min"] == 2


def test_a_size_that_cannot_be_is_refused_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    refused = cli.run("trial", write_task(tmp_path), "--sizes", "1,3,64")
    assert refused.returncode == 2
    assert "trial: 64 GPUs is no size that this task can have here" in refused.stderr
    for wrong in (("--sizes", "1,x"), ("--budget", "soon"), ("--each", "1s")):
        assert cli.run("trial", write_task(tmp_path), *wrong).returncode == 2


def test_a_server_that_was_killed_goes_on_with_the_trial_where_it_was(tmp_path: Path) -> None:
    """What was measured is in the journal, and the run that was under way is found again."""
    cli = Cli(tmp_path / "home", tmp_path)
    up = ("up", "--virtual", "--nodes", "1", "--gpus", "4", "--port", "0", "-d")
    assert cli.run(*up).returncode == 0
    try:
        task = write_task(tmp_path, "trial: {sizes: [1, 2, 4], budget: 60s, each: 5s}", seconds="1.5")
        job = cli.launch(task)
        cli.until(lambda: runs_of(cli, job), lambda states: states[:2] == ["measured", "runs"])
        os.kill(json.loads((tmp_path / "home" / "server.json").read_text())["pid"], signal.SIGKILL)
        assert cli.run(*up).returncode == 0
        cli.wait(job, "SUCCEEDED")
        assert runs_of(cli, job) == ["measured"] * 3
        assert cli.json("explain", job)["size_choice"]["gpus"] == 2
        names = [one["id"] for one in cli.json("queue", "-a")]
        assert sorted(names) == sorted([job, *(f"{job}-t{gpus}" for gpus in SPEEDS)])
    finally:
        assert cli.run("down").returncode == 0


def runs_of(cli: Cli, job: str) -> list[str]:
    return [run["state"] for run in cli.json("explain", job)["trial"]["runs"]]
