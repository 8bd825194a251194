"""A task with an image runs in a container, and everything holds that holds for plain processes."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.backends.local.containers import ContainerRuntimes
from batuta.backends.local.processes import find_leftovers
from batuta.core import event as ev
from batuta.core.job import JobState
from batuta.core.job_table import Phase
from tests.support.local_backends import ANSWER, Bench
from tests.support.podman import IMAGE, Podman, a_podman

IN_IMAGE = {"resources": {"image_id": f"docker:{IMAGE}", "accelerators": 1}}
TRAINS = ANSWER.replace("date +%s.%N", "date +%s") + (
    "cat /etc/inside; echo restart $BATUTA_RESTART; while :; do answer; sleep 0.05; done"
)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with a_podman(tmp_path_factory.mktemp("podman")) as podman:
        yield podman


@pytest.fixture
def bench(tmp_path: Path, podman: Podman) -> Iterator[Bench]:
    bench = Bench(tmp_path, 4)
    bench.containers = ContainerRuntimes(podman.environ)
    yield bench
    bench.clean_up()
    assert podman.containers() == []


def test_setup_and_run_happen_inside_with_the_tasks_environment_and_files(bench, tmp_path):
    # given a task with an image, a workdir, mounts, variables and a secret
    work, data = tmp_path / "work", tmp_path / "data"
    work.mkdir()
    data.mkdir()
    (work / "train.txt").write_text("the script")
    (data / "set").write_text("the data")
    bench.task(
        "j",
        "cat /etc/inside /made; cat train.txt /data/set ~/here/set; echo; echo $CUDA_VISIBLE_DEVICES; "
        "echo [$WORDS] $TOKEN; touch out; echo saved > $BATUTA_CHECKPOINT_DIR/saved; "
        'echo \'{"step": 3, "total_steps": 4}\' >> $BATUTA_PROGRESS',
        setup="echo made by rank $SKYPILOT_SETUP_NODE_RANK > /made",
        envs={"WORDS": "two words, 'quoted'\nand a line"},
        secrets={"TOKEN": "s3cret"},
        workdir=str(work),
        file_mounts={"/data": str(data), "~/here": str(data)},
        **IN_IMAGE,
    )
    # when it runs on the third GPU
    bench.start("j", "n0:2")
    # then it has seen all of it, and what it wrote is on this machine
    assert (bench.end_of("j").state, bench.end_of("j").detail) == (JobState.SUCCEEDED, "")
    assert bench.log("j") == (
        "the image\nmade by rank 0\nthe scriptthe datathe data\n2\n[two words, 'quoted' and a line] s3cret\n"
    )
    assert (work / "out").exists()
    assert (bench.folder("j") / "checkpoints/saved").read_text() == "saved\n"
    assert bench.heard(ev.JobProgressed, "j")
    # and no file mount was left on this machine
    assert not os.path.lexists("/data") or not Path("/data").is_symlink()
    assert not os.path.lexists(Path.home() / "here")


def test_no_secret_is_on_a_command_line(bench):
    bench.task("j", "echo ready; sleep 1000", secrets={"TOKEN": "s3cret-of-mine"}, **IN_IMAGE)
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert b"s3cret-of-mine" not in entry.read_bytes()
        except OSError:
            continue
    bench.stop("j")
    assert bench.end_of("j").state is JobState.CANCELLED


def test_the_exit_code_is_that_of_the_script(bench):
    bench.task("j", "exit 42", **IN_IMAGE)
    bench.start("j", "n0:0")
    found = bench.end_of("j")
    assert (found.state, found.exit_code) == (JobState.FAILED, 42)


def test_a_setup_that_fails_inside_fails_the_setup(bench):
    bench.task("j", "echo never", setup="echo no such wheel; exit 7", **IN_IMAGE)
    bench.start("j", "n0:0")
    found = bench.end_of("j")
    assert (found.state, found.exit_code) == (JobState.FAILED_SETUP, 7)
    assert found.detail == "setup of the job failed: it exited with code 7; its last line: no such wheel"


def test_an_image_that_cannot_be_had_fails_the_setup_and_says_why(bench):
    bench.task("j", "echo never", resources={"image_id": "docker:localhost/no-such-image:1", "accelerators": 1})
    bench.start("j", "n0:0")
    found = bench.end_of("j")
    assert found.state is JobState.FAILED_SETUP
    assert "no-such-image" in found.detail


def test_it_writes_a_checkpoint_when_asked_and_goes_on_at_its_new_size(bench):
    # given a job in containers that saves on request, and needs what its setup has made
    bench.task(
        "j",
        f"cat /made\n{TRAINS}",
        setup="echo made for rank $SKYPILOT_SETUP_NODE_RANK > /made",
        sizes=2,
        elastic={"checkpoint": "on-signal", "grace": "20s"},
        **IN_IMAGE,
    )
    bench.start("j", "n0:0")
    bench.until_logged("j", "restart 0")
    # when it is resized
    bench.resize("j", "n0:01")
    bench.until_logged("j", "restart 1", 1)
    # then it has saved once, and each replica has a container that is set up
    assert "made for rank 1\n" in bench.log("j", 1)
    assert len((bench.folder("j") / "checkpoints/saved").read_text().split()) == 1
    bench.stop("j")
    assert bench.end_of("j").state is JobState.CANCELLED


def test_sigusr1_reaches_a_handler_inside(bench):
    bench.task(
        "j",
        "trap 'echo asked; echo 1 > $BATUTA_CONTROL/checkpoint-done' USR1; echo ready; while :; do sleep 0.1; done",
        elastic={"checkpoint": "on-signal", "grace": "20s"},
        **IN_IMAGE,
    )
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    bench.preempt("j")
    bench.until_logged("j", "asked")


def test_sigterm_reaches_all_and_the_container_lives_until_the_last_has_saved(bench):
    # given a script whose child needs a moment to save when it is told to end
    child = "trap 'sleep 0.7; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    bench.task("j", f'sh -c "{child}"\necho and on', elastic={"grace": "20s"}, **IN_IMAGE)
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    # when it is taken off its GPUs
    bench.preempt("j")
    bench.until_logged("j", "saved")
    # then the script itself did not go on after it
    bench.idle(1.0)
    assert "and on" not in bench.log("j")


def test_a_job_that_does_not_listen_is_killed_after_its_grace(bench):
    bench.task("j", "trap '' TERM; echo ready; while :; do sleep 0.1; done", **IN_IMAGE)
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    bench.stop("j")
    assert bench.end_of("j").state is JobState.CANCELLED


def test_a_time_limit_ends_what_runs_inside(bench):
    resources = {**IN_IMAGE["resources"], "labels": {"max-run-duration-seconds": "1"}}
    bench.task("j", "echo ready; sleep 1000", resources=resources)
    bench.start("j", "n0:0")
    found = bench.end_of("j")
    assert (found.state, found.detail.split(" (")[0]) == (JobState.FAILED, "it reached its time limit")


@pytest.mark.parametrize("server_too", [False, True])
def test_nothing_of_it_is_left_when_its_runner_is_killed(bench, server_too):
    # given a job in a container, with a process that has left its session
    bench.task("j", "(sleep 1000 &) ; echo ready; sleep 1000", **IN_IMAGE)
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    (state_file,) = (bench.folder("j") / "runs").glob("*/0/state.json")
    state = json.loads(state_file.read_text())
    run_id, runner = state["run_id"], state["runner_pid"]
    assert len(find_leftovers(run_id)) >= 3
    # when its runner is killed, and perhaps the server as well
    if server_too:
        bench.vanish()
    os.kill(runner, signal.SIGKILL)
    if server_too:
        bench.come_back({"j": ("n0:0", Phase.RUNNING)})
    # then the engine hears that it was lost, and no process and no container of it is left
    bench.until_said(ev.JobInterrupted, "j")
    assert find_leftovers(run_id) == []


def test_it_outlives_its_server_and_is_adopted(bench):
    bench.task("j", "echo ready; while ! [ -e $BATUTA_CHECKPOINT_DIR/go ]; do sleep 0.05; done; exit 5", **IN_IMAGE)
    bench.start("j", "n0:0")
    bench.until_logged("j", "ready")
    bench.vanish()
    time.sleep(0.2)
    (bench.folder("j") / "checkpoints/go").touch()
    bench.come_back({"j": ("n0:0", Phase.RUNNING)})
    found = bench.end_of("j")
    assert (found.state, found.exit_code) == (JobState.FAILED, 5)
