"""Jobs by hand: launch, look, change, cancel."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ELASTIC = """\
name: elastic
resources: {accelerators: "virtual:1"}
elastic: {min_nodes: 1, max_nodes: 4, grace: 1s}
run: sleep 300
"""


def test_launch_follows_the_output_and_ends_with_the_job(cli):
    (cli.cwd / "hello.py").write_text("print('hello from', __import__('os').getcwd())")
    done = cli.run("launch", "-n", "hello", "--", "python3", "hello.py")
    assert (done.returncode, done.stdout) == (0, f"hello from {cli.cwd}\n")
    assert "is submitted" in done.stderr
    assert "(hello) SUCCEEDED" in done.stderr


def test_the_exit_code_tells_how_a_job_ended(cli):
    failed = cli.run("launch", "-n", "bad", "--", "echo oops; exit 3")
    assert (failed.returncode, failed.stdout) == (100, "oops\n")
    assert "FAILED" in failed.stderr
    assert cli.run("launch", "--wait", "--", "false").returncode == 100
    assert cli.run("launch", "--wait", "-o", "json", "--", "true").returncode == 0


def test_ctrl_c_detaches_and_the_job_goes_on(cli):
    process = cli.start("launch", "-n", "detached", "--", "echo begun; sleep 300")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    job = cli.json("status", "detached")
    assert process.returncode == 0
    assert f"batuta logs {job['id']}" in said
    assert f"batuta cancel {job['id']}" in said
    assert job["state"] == "RUNNING"


def test_env_and_secrets_reach_the_job_and_secrets_are_never_shown(cli):
    cli.environ["FROM_HERE"] = "here"
    (cli.cwd / "values.env").write_text("A=file\nB=file\n")
    arguments = ["--env-file", "values.env", "--env", "B=option", "--env", "FROM_HERE", "--secret", "S=hush"]
    done = cli.run("launch", "-n", "vars", *arguments, "--", "echo $A $B $FROM_HERE ${#S}")
    assert done.stdout == "file option here 4\n"
    told = cli.ok("status", "vars", "-o", "json")
    assert "hush" not in told
    assert json.loads(told)["task"]["envs"]["B"] == "option"


def test_queue_history_and_status(cli):
    job = cli.launch("-n", "shown", "--", "true")
    cli.wait(job, "SUCCEEDED")
    listed = {one["id"]: one for one in cli.json("queue")}
    assert listed[job]["name"] == "shown"
    assert job not in {one["id"] for one in cli.json("queue", "--skip-finished")}
    assert job in {one["id"] for one in cli.json("queue", "-a")}
    assert job in {one["id"] for one in cli.json("get", "jobs")}
    assert job in {one["id"] for one in cli.json("history", "--since", "1h")}
    table = cli.ok("queue").splitlines()
    columns = "ID NAME USER QUEUE STATE GPUS PROGRESS ETA SUBMITTED DURATION RESTARTS REASON"
    assert " ".join(table[0].split()) == columns
    assert not any(line.endswith(" ") for line in table)
    assert set(cli.json("status")) == {"cluster", "jobs"}
    assert "virtual GPUs used" in cli.ok("status")
    assert "SUCCEEDED" in cli.ok("status", "shown")
    assert "DETAIL" in cli.ok("history")


def test_logs_and_their_exit_codes(cli):
    job = cli.launch("-n", "talks", "--", "for i in 1 2 3; do echo line $i; done; sleep 300")
    cli.wait(job, "RUNNING")
    assert cli.until(lambda: cli.ok("logs", job, "--no-follow"), lambda text: "3" in text).endswith("line 3\n")
    assert cli.ok("logs", "talks", "--no-follow", "--tail", "2") == "line 2\nline 3\n"
    assert cli.run("logs", job, "--node-rank", "7", "--no-follow").returncode == 1
    running = cli.run("logs", job, "--status")
    assert (running.returncode, running.stdout) == (101, "RUNNING\n")
    follower = cli.start("logs", job)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "line 1\n"
    cli.ok("cancel", job)
    follower.communicate(timeout=30)
    assert follower.returncode == 103
    assert cli.run("logs", job).returncode == 103
    assert cli.run("logs", job, "--no-follow").returncode == 0
    assert cli.run("logs", job, "--status").returncode == 103
    assert cli.run("logs", "no-such-job", "--status").returncode == 102
    assert cli.run("logs", "no-such-job").returncode == 102


def test_names_and_ids(cli):
    first, second = (cli.launch("-n", "twin", "--", "sleep 300") for _ in range(2))
    both = cli.run("cancel", "twin", "no-such-job")
    assert both.returncode == 2
    assert f"{second} " in both.stderr
    assert f"{first} " in both.stderr
    assert "there is no job no-such-job" in both.stderr
    assert {one["id"] for one in cli.json("queue", "-s")} >= {first, second}, "nothing is done by halves"
    cli.ok("cancel", first)
    cli.wait(first, "CANCELLED")
    assert cli.json("status", "twin")["id"] == second, "the one that is not over"
    cli.ok("delete", "twin")
    cli.wait(second, "CANCELLED")
    assert cli.json("status", "twin")["id"] == second, "the newest when all are over"


def test_resize_park_and_explain(cli):
    (cli.cwd / "elastic.yaml").write_text(ELASTIC)
    job = json.loads(cli.ok("create", "-f", "elastic.yaml", "-o", "json"))["job"]["id"]
    cli.wait(job, "RUNNING")
    (resized,) = cli.json("resize", "elastic", "--nodes", "2")
    assert resized["gpus"]["wanted"] == 2
    cli.until(lambda: cli.json("status", job), lambda now: now["gpus"]["now"] == 2 and now["state"] == "RUNNING")
    (parked,) = cli.json("stop", job)
    assert parked["wish"] == "park"
    told = cli.until(lambda: cli.json("explain", job), lambda found: (found["reason"] or {}).get("code") == "PARKED")
    assert len(told["story"]) >= 3
    assert "is parked until it is started again" in cli.ok("explain", job)
    cli.ok("start", job)
    cli.wait(job, "RUNNING")


def test_a_size_that_was_fixed_is_left_to_the_scheduler_again(cli):
    (cli.cwd / "elastic.yaml").write_text(ELASTIC)
    job = json.loads(cli.ok("create", "-f", "elastic.yaml", "-o", "json"))["job"]["id"]
    before = cli.wait(job, "RUNNING")["gpus"]
    (fixed,) = cli.json("resize", job, "1")
    assert (fixed["gpus"]["min"], fixed["gpus"]["max"]) == (1, 1)
    (auto,) = cli.json("resize", job, "auto")
    assert [auto["gpus"][key] for key in ("min", "wanted", "max")] == [before[key] for key in ("min", "wanted", "max")]


def test_a_job_of_one_size_is_not_resized_once_it_has_started(cli):
    job = cli.launch("--num-nodes", "2", "--", "sleep 300")
    cli.wait(job, "RUNNING")
    for size in ("4", "auto"):
        refused = cli.run("resize", job, size)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"job {job} is not elastic: its task says 2 nodes and no range" in refused.stderr
    now = cli.json("status", job)
    assert (now["gpus"]["now"], now["restarts"]) == (2, 0)

    waits = cli.launch("--num-nodes", "7", "--", "sleep 300")
    (smaller,) = cli.json("resize", waits, "6")
    assert smaller["gpus"]["wanted"] == 6, "nothing is lost while it waits"


def test_the_duration_of_a_job_is_the_time_that_it_ran(cli):
    job = cli.launch("--", "sleep 300")
    cli.wait(job, "RUNNING")
    cli.ok("stop", job)
    cli.until(lambda: cli.json("status", job), lambda now: now["gpus"]["now"] == 0)
    before = cli.json("status", job)
    time.sleep(2.0)
    after = cli.json("status", job)
    assert after["duration_s"] == before["duration_s"] < time.time() - after["started_s"] - 1.9
    cli.ok("cancel", job)
    over = cli.wait(job, "CANCELLED")
    assert over["duration_s"] == before["duration_s"]


def test_why_a_job_waits(cli):
    holder = cli.launch("--num-nodes", "2", "--gpus", "4", "--", "sleep 300")
    cli.wait(holder, "RUNNING")
    waits = cli.launch("-n", "waits", "--gpus", "4", "--", "true")
    told = cli.until(lambda: cli.json("explain", waits), lambda found: found["reason"] is not None)
    assert told["reason"]["code"] == "WAITING_FOR_GPUS"
    shown = cli.ok("explain", "waits")
    assert "needs 4 GPUs" in shown
    assert f"when job {holder} ends (with 4 GPUs" in shown
    assert "quota would do, there is no place for it now; it is the next of its queue" in shown
    assert "JOB_ENDS" in {one["code"] for one in cli.json("explain", waits)["suggestions"]}


def test_result(cli):
    script = cli.cwd / "work.py"
    script.write_text("from batuta import sdk\nsdk.report(step=1, total_steps=2)\nsdk.result({'accuracy': 0.9})\n")
    job = cli.launch("-n", "gives", "--", sys.executable, str(script))
    cli.wait(job, "SUCCEEDED")
    assert cli.json("result", "gives") == {"accuracy": 0.9}
    nothing = cli.launch("-n", "gives-none", "--", "true")
    cli.wait(nothing, "SUCCEEDED")
    none = cli.run("result", nothing)
    assert (none.returncode, "gave no result" in none.stderr) == (1, True)


def test_bad_tasks_are_refused_with_all_problems_and_exit_code_2(cli):
    Path(cli.cwd / "bad.yaml").write_text("nme: x\nnum_nodes: zero\nworkdir: ./missing\nrun: x\n")
    done = cli.run("launch", "bad.yaml", "-d")
    assert done.returncode == 2
    errors = done.stderr.splitlines()
    assert errors[0].startswith("error: bad.yaml:1:1: unknown key nme")
    assert any("bad.yaml:2:" in line for line in errors)
    assert any("missing" in line for line in errors)
    never = cli.run("launch", "--gpus", "H100:8", "--", "true")
    assert never.returncode == 2
    assert "needs 8 GPUs on each node; the largest node has 4" in never.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("apiVersion: kubeflow.org/v1\nkind: MPIJob\nspec: {}\n", "'MPIJob' of 'kubeflow.org/v1'"),
        ("apiVersion: ai.centaurus.io/v1alpha1\nkind: UnifiedJob\n", "of Voda or Alnair too, are not read"),
        ("apiVersion: batuta.dev/v1alpha1\nkind: UnifiedJob\n", "batuta --context NAME launch FILE"),
    ],
    ids=["of Voda", "of Alnair", "of a cluster"],
)
def test_an_object_of_kubernetes_is_refused_in_one_sentence(cli, text, told):
    (cli.cwd / "object.yaml").write_text(text)
    refused = cli.run("create", "-f", "object.yaml")
    assert (refused.returncode, refused.stderr.count("error:")) == (2, 1), refused.stderr
    assert told in refused.stderr


def test_a_dry_run_stores_nothing(cli):
    before = {one["id"] for one in cli.json("queue", "-a")}
    done = cli.run("launch", "--dryrun", "--gpus", "2", "--", "true")
    assert done.returncode == 0
    assert "one node with 2 GPUs" in done.stdout
    assert "fits this cluster" in done.stderr
    assert json.loads(cli.ok("launch", "--dryrun", "-o", "json", "--", "true"))["fits"] is True
    assert {one["id"] for one in cli.json("queue", "-a")} == before


def test_cancelling_all_wants_to_hear_yes(cli):
    job = cli.launch("--", "sleep 300")
    refused = cli.run("cancel", "--all")
    assert (refused.returncode, "add -y" in refused.stderr) == (2, True)
    time.sleep(0.1)
    assert cli.json("status", job)["state"] != "CANCELLED"
    assert cli.run("cancel").returncode == 2
    cli.ok("cancel", "-a", "-y")
    cli.wait(job, "CANCELLED")


def test_a_job_runs_again_by_its_name_with_another_value(cli):
    """Given a job that is over, when one like it is launched, then it runs the same but for what is said."""
    task = "name: first\nenvs: {A: old, B: kept}\nsecrets: {S: hush}\nrun: echo $A $B ${#S}\nworkdir: .\n"
    (cli.cwd / "task.yaml").write_text(task)
    assert cli.run("launch", "task.yaml").stdout == "old kept 4\n"
    again = cli.run("launch", "--like", "first", "-n", "second", "--env", "A=new")
    assert (again.returncode, again.stdout) == (0, "new kept 4\n")
    assert "(second) SUCCEEDED" in again.stderr
    assert "what job " in cli.ok("launch", "--like", "first", "--dryrun")


def test_a_job_that_cannot_run_again_says_why(cli):
    code = cli.cwd / "code"
    code.mkdir()
    job = cli.launch("-n", "gone", "--workdir", str(code), "--", "true")
    cli.wait(job, "SUCCEEDED")
    code.rmdir()
    refused = cli.run("launch", "--like", job)
    assert refused.returncode == 2
    assert f"the task of job {job}: workdir '{code}' is not there" in refused.stderr
    both = cli.run("launch", "--like", job, "--", "true")
    assert (both.returncode, "one of both" in both.stderr) == (2, True)


def test_a_limit_on_the_running_time_ends_a_job_with_a_typed_reason(cli):
    # given a task with Konduktor's label
    (cli.cwd / "task.yaml").write_text(
        "name: limited\nresources: {labels: {max-run-duration-seconds: 1}}\nrun: sleep 300\n"
    )
    # when it runs
    done = cli.run("launch", "--wait", "task.yaml")
    # then it fails soon, and both people and programs are told why
    assert done.returncode == 100
    job = cli.json("status", "limited")
    assert (job["state"], job["reason"]) == (
        "FAILED",
        {
            "code": "TIME_LIMIT",
            "sentence": "reached its limit of 1 s of running time",
            "evidence": {"limit_s": 1.0},
        },
    )
    told = " ".join(cli.ok("status", "limited").split())
    assert ("it reached its time limit" in told, "time limit 1s" in told) == (True, True)


def test_no_such_job_has_one_exit_code(cli):
    """Given no job of a name, then every verb that takes one ends with 102 and says so."""
    verbs = (
        *(("status",), ("logs",), ("logs", "--status"), ("explain",), ("cancel", "-y"), ("delete",)),
        *(("stop",), ("start",), ("resize", "--nodes", "2"), ("eta",)),
    )
    for verb, *options in verbs:
        done = cli.run(verb, "nowhere", *options)
        assert (done.returncode, "there is no job nowhere" in done.stderr) == (102, True), (verb, done)
    both = cli.run("cancel", "nowhere", "neither", "-y")
    assert both.returncode == 102
    assert both.stderr.count("there is no job") == 2
    assert cli.run("launch", "--like", "nowhere").returncode == 102


def test_a_name_of_another_script_works_everywhere(cli):
    job = cli.launch("-n", "训练-тест", "--", "echo ok")
    cli.wait(job, "SUCCEEDED")
    assert cli.json("status", "训练-тест")["id"] == job
    assert cli.run("logs", "训练-тест").stdout == "ok\n"
    assert "训练-тест" in cli.ok("queue")


def test_a_queue_that_is_not_there_is_refused(cli):
    """Given a server without queues, when one is named, then nothing is submitted, moved or listed."""
    refused = cli.run("launch", "-q", "typo", "-d", "--", "true")
    assert (refused.returncode, "there is no queue typo" in refused.stderr) == (2, True)
    listed = cli.run("queue", "-q", "defualt")
    assert (listed.returncode, "did you mean default" in listed.stderr) == (2, True)
    assert cli.run("queue", "-q", "default").returncode == 0
    assert cli.run("history", "-q", "typo").returncode == 2


def test_input_that_is_piped_in_is_refused_and_a_task_file_is_read(cli):
    """A job has no standard input: what is piped to launch would be lost."""
    refused = piped(cli, "some data", "launch", "--", "cat")
    assert refused.returncode == 2
    assert "standard input is not passed to a job" in refused.stderr
    assert piped(cli, "", "launch", "--", "echo fine").stdout == "fine\n"
    read = piped(cli, "name: piped\nrun: echo from $A\n", "launch", "-", "--env", "A=stdin")
    assert (read.returncode, read.stdout) == (0, "from stdin\n")
    wrong = piped(cli, "name: piped\nrunn: x\n", "launch", "-")
    assert (wrong.returncode, "standard input:2:1" in wrong.stderr) == (2, True)


def piped(cli, text, *arguments):
    environ = {key: value for key, value in os.environ.items() if not key.startswith("BATUTA_")}
    return subprocess.run(
        [sys.executable, "-m", "batuta", *arguments],
        cwd=cli.cwd,
        env=environ | {"BATUTA_HOME": str(cli.home)},
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
