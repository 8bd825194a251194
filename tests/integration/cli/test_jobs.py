"""Jobs by hand: launch, look, change, cancel."""

import json
import signal
import sys
import time
from pathlib import Path

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
    assert cli.until(lambda: cli.ok("logs", job, "--no-follow"), lambda text: "3" in text).endswith(
        "line 3\n"
    )
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
    assert cli.run("logs", "no-such-job").returncode == 1


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
    cli.until(
        lambda: cli.json("status", job), lambda now: now["gpus"]["now"] == 2 and now["state"] == "RUNNING"
    )
    (parked,) = cli.json("stop", job)
    assert parked["wish"] == "park"
    told = cli.until(
        lambda: cli.json("explain", job), lambda found: (found["reason"] or {}).get("code") == "PARKED"
    )
    assert len(told["story"]) >= 3
    assert "is parked until it is started again" in cli.ok("explain", job)
    cli.ok("start", job)
    cli.wait(job, "RUNNING")


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
    script.write_text(
        "from batuta import sdk\nsdk.report(step=1, total_steps=2)\nsdk.result({'accuracy': 0.9})\n"
    )
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
    assert "no node has a GPU of type H100" in never.stderr


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
