"""A task file means what it means to SkyPilot: its paths, the environment of setup and run."""

import json
import os
from pathlib import Path


def test_a_workdir_starts_where_the_command_was_called(cli):
    tasks, data = cli.cwd / "tasks", cli.cwd / "data"
    for folder in (tasks, data):
        folder.mkdir()
        (folder / "who.txt").write_text(folder.name)
    (cli.cwd / "who.txt").write_text("here")
    (tasks / "task.yaml").write_text("workdir: .\nfile_mounts: {seen: data}\nrun: cat who.txt seen/who.txt\n")
    done = cli.run("launch", "tasks/task.yaml")
    assert (done.returncode, done.stdout) == (0, "heredata"), done.stderr
    assert f"workdir '.' is {cli.cwd}, from where the command was called" in done.stderr
    assert f"--workdir chooses {tasks}" in done.stderr
    other = cli.run("launch", "tasks/task.yaml", "--workdir", "tasks")
    assert other.stdout == "tasksdata", other.stderr


def test_a_folder_that_is_only_beside_the_task_file_is_taken_with_a_note(cli):
    (cli.cwd / "project" / "code").mkdir(parents=True)
    (cli.cwd / "project" / "code" / "who.txt").write_text("beside")
    (cli.cwd / "project" / "task.yaml").write_text("workdir: code\nrun: cat who.txt\n")
    done = cli.run("launch", "project/task.yaml")
    assert (done.returncode, done.stdout) == (0, "beside"), done.stderr
    assert "is used, beside the task file" in done.stderr


def test_setup_and_run_find_the_variables_that_skypilot_gives_them(cli):
    (cli.cwd / "task.yaml").write_text(
        """\
resources: {accelerators: A100:2}
envs: {MINE: mine}
setup: |
  test -z "${CUDA_VISIBLE_DEVICES+set}" || exit 1
  echo "setup $SKYPILOT_SETUP_NODE_RANK $SKYPILOT_SETUP_NODE_IPS $SKYPILOT_SETUP_NUM_GPUS_PER_NODE"
  echo "$SKYPILOT_NUM_NODES $SKYPILOT_TASK_ID $SKYPILOT_USER $MINE"
run: |
  test -z "${SKYPILOT_SETUP_NODE_RANK+set}" || exit 1
  echo "run $SKYPILOT_NODE_RANK $SKYPILOT_NODE_IPS $SKYPILOT_NUM_GPUS_PER_NODE $CUDA_VISIBLE_DEVICES"
  echo "$SKYPILOT_NUM_NODES $SKYPILOT_TASK_ID $SKYPILOT_USER $MINE $SKYPILOT_INTERNAL_JOB_ID"
  echo "$SKYPILOT_CLUSTER_INFO $PYTHONUNBUFFERED"
"""
    )
    done = cli.run("launch", "task.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    job = cli.json("queue", "-a")[0]
    setup, both, run, both_again, rest = done.stdout.splitlines()
    assert setup.split() == ["setup", "0", setup.split()[2], "2"]
    assert setup.split()[2].startswith("127.")
    assert both == f"1 batuta-{job['id']} {job['user']} mine"
    assert run.split()[:4] == ["run", "0", setup.split()[2], "2"]
    assert len(run.split()[4].split(",")) == 2
    assert both_again == f"{both} {job['id']}"
    info, unbuffered = rest.rsplit(" ", 1)
    assert unbuffered == "1"
    assert json.loads(info) == {"cluster_name": "batuta", "cloud": "local", "region": None, "zone": None}


def test_each_node_of_a_task_does_its_own_setup_before_any_of_them_runs(cli):
    (cli.cwd / "task.yaml").write_text(
        """\
workdir: .
num_nodes: 3
resources: {accelerators: V100:1}
setup: echo $SKYPILOT_SETUP_NODE_RANK >>ready
run: sort ready | tr -d '\\n' >seen.$SKYPILOT_NODE_RANK
"""
    )
    done = cli.run("launch", "task.yaml", "--wait")
    assert done.returncode == 0, done.stderr
    assert [(cli.cwd / f"seen.{rank}").read_text() for rank in range(3)] == ["012"] * 3


THREE = """\
name: three
num_nodes: 3
resources: {accelerators: V100:1}
run: |
  printf 'rank %s of %s\\nno end' $SKYPILOT_NODE_RANK $SKYPILOT_NUM_NODES
"""


def test_launch_and_logs_show_all_ranks_each_line_with_its_own(cli):
    (cli.cwd / "task.yaml").write_text(THREE)
    done = cli.run("launch", "task.yaml")
    assert done.returncode == 0, done.stderr
    expected = [
        *("(head, rank=0) no end", "(head, rank=0) rank 0 of 3"),
        *("(worker1, rank=1) no end", "(worker1, rank=1) rank 1 of 3"),
        *("(worker2, rank=2) no end", "(worker2, rank=2) rank 2 of 3"),
    ]
    assert sorted(done.stdout.splitlines()) == expected
    again = cli.ok("logs", "three").splitlines()
    assert sorted(again) == expected
    assert again[0] == "(head, rank=0) rank 0 of 3"
    assert sorted(cli.ok("logs", "three", "--no-follow", "--tail", "1").splitlines()) == expected[::2]


def test_one_rank_is_shown_as_it_printed(cli):
    (cli.cwd / "task.yaml").write_text(THREE)
    assert cli.run("launch", "task.yaml", "--wait").returncode == 0
    assert cli.ok("logs", "three", "--no-follow", "--node-rank", "1") == "rank 1 of 3\nno end"


def test_lines_of_ranks_come_as_they_are_printed_and_of_new_ranks_too(cli):
    (cli.cwd / "task.yaml").write_text(
        """\
name: grows
num_nodes: 1
resources: {accelerators: V100:1}
elastic: {min_nodes: 1, max_nodes: 2, grace: 1s}
run: |
  echo "$SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES"
  [ $SKYPILOT_NUM_NODES = 1 ] && sleep 300
  sleep 1
"""
    )
    job = cli.launch("task.yaml", "--num-nodes", "1", "--max-nodes", "2")
    cli.wait(job, "RUNNING")
    following = cli.start("logs", job)
    cli.ok("resize", job, "--nodes", "2")
    said, errors = following.communicate(timeout=60)
    assert following.returncode == 0, errors
    assert "(head, rank=0) 0 of 2" in said.splitlines()
    assert "(worker1, rank=1) 1 of 2" in said.splitlines()


MOUNTS = """\
name: mounts
workdir: code
file_mounts:
  /batuta-test-{tag}/data: data
  ~/batuta-test-{tag}/file.txt: data/file.txt
  ~/sky_workdir/more: data
setup: cat ~/batuta-test-{tag}/file.txt
run: |
  cat /batuta-test-{tag}/data/file.txt
  cd / && bash ~/sky_workdir/train.sh
  cat ~/sky_workdir/more/file.txt
  {more}
"""


def project(cli, more="true"):
    """A project as people have them, with a script that goes to where SkyPilot has the workdir."""
    (cli.cwd / "code").mkdir()
    (cli.cwd / "data").mkdir()
    (cli.cwd / "data" / "file.txt").write_text("data\n")
    (cli.cwd / "code" / "train.sh").write_text("cd ~/sky_workdir && ls\n")
    (cli.cwd / "task.yaml").write_text(MOUNTS.format(tag=cli.cwd.name, more=more))


def left_over(cli):
    """What is at the targets, outside of the job. (Other jobs may use ~/sky_workdir just now.)"""
    tag, sky_workdir = f"batuta-test-{cli.cwd.name}", Path.home() / "sky_workdir"
    assert not sky_workdir.is_symlink()
    places = [Path("/") / tag, Path.home() / tag, cli.cwd / "code" / "more"]
    return [place for place in places if os.path.lexists(place)]


def test_mounts_and_sky_workdir_are_seen_by_the_job_and_nothing_is_left(cli):
    project(cli)
    done = cli.run("launch", "task.yaml")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout == "data\ndata\nmore\ntrain.sh\ndata\n"
    assert left_over(cli) == []


def test_mount_points_of_a_running_job_are_empty_for_others_and_go_with_the_last_job(cli):
    project(cli, more="echo ready; sleep 300")
    first, second = cli.launch("task.yaml"), cli.launch("task.yaml")
    for job in (first, second):
        cli.until(lambda job=job: cli.ok("logs", job, "--no-follow"), lambda text: "ready" in text)
    seen = Path("/") / f"batuta-test-{cli.cwd.name}" / "data"
    assert list(seen.iterdir()) == []
    cli.ok("cancel", first, "-y")
    cli.wait(first, "CANCELLED")
    assert seen.exists()
    assert cli.run("launch", "--", "true").returncode == 0
    cli.ok("cancel", second, "-y")
    cli.wait(second, "CANCELLED")
    cli.until(lambda: left_over(cli), lambda found: not found)


def test_a_script_that_knows_sky_workdir_finds_it_without_the_task_naming_it(cli):
    (cli.cwd / "train.sh").write_text("cd ~/sky_workdir && cat train.sh | wc -l\n")
    done = cli.run("launch", "--", "bash train.sh")
    if os.geteuid() == 0:
        assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
    assert left_over(cli) == []


SKELETON = """\
# As in /etc/skel/.bashrc: nothing below is for shells that are not interactive.
case $- in
    *i*) ;;
      *) return;;
esac
echo noise
export PATH=$HOME/conda/bin:$PATH MINE=overwritten
"""


def test_run_finds_what_setup_wrote_into_bashrc_and_conda_can_be_activated(cli):
    home, conda = cli.cwd / "home", cli.cwd / "home" / "conda"
    (conda / "bin").mkdir(parents=True)
    (conda / "etc" / "profile.d").mkdir(parents=True)
    (home / ".bashrc").write_text(SKELETON)
    (conda / "bin" / "conda").write_text("#!/bin/sh\nexit 9\n")
    (conda / "bin" / "conda").chmod(0o755)
    (conda / "bin" / "bash").write_text("#!/bin/sh\nexit 9\n")
    (conda / "bin" / "bash").chmod(0o755)
    (conda / "etc" / "profile.d" / "conda.sh").write_text("conda() { CONDA_ENV=$2; }\n")
    (cli.cwd / "task.yaml").write_text(
        f"""\
envs: {{HOME: {home}, MINE: mine}}
setup: echo "export TEST_VAR=test" >>~/.bashrc
run: |
  conda activate lab
  echo $TEST_VAR $MINE $CONDA_ENV ${{BASH_ENV-none}}
  bash -c 'echo $TEST_VAR'
  false_command_on_line_4
"""
    )
    done = cli.run("launch", "task.yaml")
    assert done.stdout.splitlines()[:2] == ["test mine lab none", "test"], done.stdout + done.stderr
    assert "line 4" in done.stdout


def test_a_task_without_run_does_its_setup(cli):
    (cli.cwd / "task.yaml").write_text("setup: echo prepared\n")
    done = cli.run("launch", "task.yaml")
    assert (done.returncode, done.stdout) == (0, "prepared\n"), done.stderr
    assert "note: there is no run: the job ends after setup" in done.stderr
