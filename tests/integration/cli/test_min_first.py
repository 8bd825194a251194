"""Two people on one server with the default policy: a job that fits at its `min` runs before others grow."""

import sys
import time

import pytest

TRAINS = """
name: {name}
resources: {{accelerators: 1}}
run: exec {python} -m batuta.demo.trainer --steps 4000 --work-ms 300
elastic: {{min_nodes: 1, max_nodes: 8, grace: 10s}}
"""
SILENT = """
name: silent
resources: {accelerators: 1}
run: sleep 600
elastic: {min_nodes: 1, max_nodes: 8}
"""
RESTARTABLE = SILENT.replace("max_nodes: 8", "max_nodes: 8, restartable: true").replace("{", "{{").replace("}", "}}")
AT_ONCE_S = 2.0


def trains(cli, name):
    (cli.cwd / f"{name}.yaml").write_text(TRAINS.format(name=name, python=sys.executable))
    job = cli.launch(f"{name}.yaml")
    cli.wait(job, "RUNNING")
    return job


def runs_with(cli, job, gpus):
    return cli.until(
        lambda: cli.json("status", job),
        lambda found: found["state"] == "RUNNING" and found["gpus"]["now"] == gpus,
    )


def test_two_equal_elastic_jobs_both_run_and_neither_is_restarted_again_and_again(cli):
    first = trains(cli, "first")
    runs_with(cli, first, 8)
    second = trains(cli, "second")
    time.sleep(10)  # reports come in, and the scheduler learns how fast both are
    sizes = {}
    for job in (first, second):
        found = cli.json("status", job)
        assert found["state"] == "RUNNING"
        sizes[job] = found["gpus"]["now"]
        assert found["restarts"] <= 1
    assert min(sizes.values()) >= 1
    assert sum(sizes.values()) == 8


def test_an_arrival_and_its_end_cost_a_running_job_one_restart_each(cli):
    long = trains(cli, "long")
    runs_with(cli, long, 8)
    cli.wait(cli.launch("--", "sleep 3"), "SUCCEEDED")
    assert runs_with(cli, long, 8)["restarts"] <= 2


def waited_s(cli, job):
    """From its submit until it runs, by the server's clock."""
    story = {one["sentence"].split(" ")[0]: one["time_s"] for one in cli.json("explain", job)["story"]}
    return story["runs"] - cli.json("status", job)["submitted_s"]


@pytest.mark.parametrize("task", [TRAINS, RESTARTABLE], ids=["saves when asked", "is restartable"])
def test_an_arrival_runs_at_once_where_a_job_shrinks_without_losing_work(cli, task):
    (cli.cwd / "holder.yaml").write_text(task.format(name="holder", python=sys.executable))
    holder = cli.launch("holder.yaml")
    runs_with(cli, holder, 8)
    if task is TRAINS:
        cli.until(lambda: cli.json("status", holder), lambda found: found["checkpoint"]["seen"])
    short = cli.launch("--", "sleep 3")
    cli.wait(short, "RUNNING", "SUCCEEDED")
    assert waited_s(cli, short) < AT_ONCE_S
    assert cli.json("status", holder)["gpus"]["now"] < 8


def test_a_job_that_reports_nothing_does_not_keep_another_from_its_one_gpu(cli):
    """It never saves, so a restart costs its work: then there is a wait, and it is bounded by a minute."""
    (cli.cwd / "silent.yaml").write_text(SILENT)
    silent = cli.launch("silent.yaml")
    runs_with(cli, silent, 8)
    short = cli.launch("--", "sleep 1")
    told = cli.until(lambda: cli.json("explain", short), lambda found: found["reason"] is not None)
    assert told["reason"]["code"] == "WAITING_FOR_RELEASE", "what it waits for is shown"
    ended = cli.wait(short, "SUCCEEDED")
    assert waited_s(cli, short) < 60
    assert ended["duration_s"] < 5, "what it waited is no running time"
    assert cli.json("status", silent)["state"] in ("RUNNING", "RESIZING")
