"""CPU-only jobs on a live server: two nodes with four virtual GPUs and four CPUs each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_server import Cli

PREPARE = """\
name: prepare
num_nodes: 2
resources: {cpus: 2+, memory: 1+}
run: |
  echo "rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES, GPUs $SKYPILOT_NUM_GPUS_PER_NODE"
  echo "cuda <$CUDA_VISIBLE_DEVICES> nvidia <$NVIDIA_VISIBLE_DEVICES>"
"""
NOTE = "no accelerators: runs on CPU; add accelerators: 1 for a GPU"


@pytest.fixture(scope="module")
def server_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("server")
    cli = Cli(folder / "home", folder)
    started = cli.run("up", "--virtual", "--cpus", "4", "--memory", "16", "--port", "0", "-d")
    assert started.returncode == 0, started.stderr
    yield folder / "home"
    cli.run("down")


def row(cli: Cli, job: str) -> list[str]:
    """The line of `batuta queue` about a job, as words."""
    lines = [line.split() for line in cli.ok("queue").splitlines()]
    return next(words for words in lines if words and words[0] == job)


def test_with_all_gpus_taken_a_task_file_without_accelerators_runs_at_once(cli: Cli) -> None:
    blocker = cli.launch("-n", "blocker", "--num-nodes", "8", "--", "sleep", "600")
    cli.wait(blocker, "RUNNING")
    waits = cli.launch("-n", "waits", "--", "sleep", "1")
    (cli.cwd / "prepare.yaml").write_text(PREPARE)
    done = cli.run("launch", "prepare.yaml")
    assert done.returncode == 0, done.stderr
    assert f"note: {NOTE}" in done.stderr
    assert "rank 0 of 2, GPUs 0" in done.stdout
    assert "cuda <> nvidia <void>" in done.stdout
    shown = cli.json("status", waits)
    assert (shown["state"], shown["reason"]["code"]) == ("PENDING", "WAITING_FOR_GPUS")


def test_gpus_0_makes_a_command_cpu_only_and_it_is_shown_so(cli: Cli) -> None:
    job = cli.launch("-n", "cpu", "--gpus", "0", "--", "sleep", "600")
    cli.wait(job, "RUNNING")
    assert "–" in row(cli, job)
    shown = cli.json("status", job)
    assert (shown["gpus"]["now"], shown["gpus"]["wanted"], shown["gpus"]["per_node"]) == (0, 0, 0)
    assert shown["cpu"] == {"replicas": 1, "now": 1, "cpus": 1.0, "memory_mib": 0}
    assert cli.json("status")["cluster"]["gpus"]["used"] == 0
    [node] = [node for node in cli.json("nodes") if job in node["cpu"]["jobs"]]
    assert (node["cpu"]["total"], node["cpu"]["free"]) == (4.0, 3.0)
    told = cli.ok("explain", job)
    assert "asks for 1 node on CPU" in told
    assert "runs at its full size of 1 replica" in told
    assert cli.json("eta", job)["jobs"][0]["id"] == job


def test_the_duration_of_a_job_without_gpus_is_the_time_for_which_it_ran(cli: Cli) -> None:
    job = cli.launch("-n", "short", "--gpus", "0", "--", "sleep", "2")
    over = cli.wait(job, "SUCCEEDED")
    assert 2.0 <= over["duration_s"] < 30.0


def test_a_command_has_one_gpu_unless_told(cli: Cli) -> None:
    job = cli.launch("-n", "train", "--", "sleep", "600")
    cli.wait(job, "RUNNING")
    assert cli.json("status", job)["gpus"]["now"] == 1


def test_when_cpus_are_out_it_waits_and_is_told_so_and_gpu_jobs_go_on(cli: Cli) -> None:
    (cli.cwd / "wide.yaml").write_text("name: wide\nnum_nodes: 2\nresources: {cpus: 4}\nrun: sleep 600\n")
    first, second = cli.launch("wide.yaml"), cli.launch("wide.yaml", "-n", "second")
    cli.wait(first, "RUNNING")
    train = cli.launch("-n", "train", "--num-nodes", "8", "--", "sleep", "600")
    cli.wait(train, "RUNNING")
    reason = cli.json("status", second)["reason"]
    assert reason["code"] == "WAITING_FOR_CPU"
    assert reason["sentence"] == ("needs 2 replicas with 4 CPUs each, the jobs that go first leave room for 0")
    cli.ok("cancel", first, "-y")
    cli.wait(second, "RUNNING")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("run: x\nresources: {cpus: 64}\n", "needs 64 CPUs on each node; the largest node has 4"),
        ("run: x\nresources: {memory: 64}\n", "needs 64 GiB of memory on each node; the largest node has 16"),
        ("run: x\nnum_nodes: 9\n", "needs room for 9 replicas; the cluster has room for 8"),
    ],
)
def test_what_can_never_run_on_cpu_is_refused(cli: Cli, task: str, message: str) -> None:
    (cli.cwd / "bad.yaml").write_text(task)
    refused = cli.run("launch", "bad.yaml", "-d")
    assert refused.returncode == 2
    assert message in refused.stderr


def test_a_cpu_only_job_is_not_resized(cli: Cli) -> None:
    job = cli.launch("-n", "cpu", "--gpus", "0", "--", "sleep", "600")
    cli.wait(job, "RUNNING")
    refused = cli.run("resize", job, "2")
    assert refused.returncode != 0
    assert f"job {job} is not elastic" in refused.stderr


def test_the_duration_of_a_cpu_only_job_is_the_time_that_it_ran(cli: Cli) -> None:
    job = cli.launch("--gpus", "0", "--", "sleep", "2")
    assert cli.wait(job, "SUCCEEDED")["duration_s"] >= 2.0
