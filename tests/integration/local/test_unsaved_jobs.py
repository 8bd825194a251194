"""On a live server: an elastic job that never saves keeps its size while others grow and shrink around it."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batuta.apitypes.resources import Job
from batuta.client.client import Client
from tests.support.cli_server import Cli
from tests.support.server_process import PlainServers, ServerProcess

WITHIN_S = 90.0
SAVES_WHEN_ASKED = """
import os, time
from batuta import sdk

path = os.path.join(os.environ["BATUTA_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
while True:
    time.sleep(0.05)
    step += 1
    sdk.report(step=step, total_steps=100_000)
    if sdk.checkpoint_requested():
        with open(path, "w") as file:
            file.write(str(step))
        sdk.checkpointed(path, step=step)
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[PlainServers]:
    with PlainServers(tmp_path) as servers:
        yield servers


def start(servers: PlainServers, home: Path) -> ServerProcess:
    server = servers.start(home, "--nodes", "1", "--gpus", "8", "--policy", "elastic-fifo")
    server.wait_ready()
    return server


def elastic(name: str, **changes: object) -> dict[str, object]:
    return {"name": name, "run": "exec sleep 1000", "elastic": {"max_nodes": 8, "grace": "5s", **changes}}


def trainer(tmp_path: Path) -> dict[str, object]:
    script = tmp_path / "train.py"
    script.write_text(SAVES_WHEN_ASKED)
    return elastic("trainer") | {"run": f"exec {sys.executable} {script}"}


def wait(client: Client, job: Job, done: Callable[[Job], bool]) -> Job:
    give_up = time.monotonic() + WITHIN_S
    while not done(now := client.job(job)):
        assert time.monotonic() < give_up, f"{now}\n{client.explain(job)}"
        time.sleep(0.1)
    return now


def has(gpus: int) -> Callable[[Job], bool]:
    return lambda job: (job.state, job.gpus.now) == ("RUNNING", gpus)


def cancel(client: Client, *jobs: Job) -> None:
    for job in jobs:
        client.cancel(job)
        client.wait(job, timeout_s=WITHIN_S)


def test_it_keeps_its_size_while_one_that_saves_grows_and_shrinks_around_it(tmp_path, servers) -> None:
    home = tmp_path / "home"
    server = start(servers, home)
    with server.client() as client:
        # given a job that holds all GPUs and never saves
        stiff = client.submit(elastic("stiff"))
        wait(client, stiff, has(8))
        time.sleep(1.0)
        # when another one comes, it is restarted once, with half of its GPUs
        saver = client.submit(trainer(tmp_path))
        wait(client, stiff, has(4))
        # then the other one starts with the other half, and is seen to save on request
        wait(client, saver, has(4))
        wait(client, saver, lambda job: job.checkpoint is not None and job.checkpoint.seen)
        told = client.explain(stiff)
        assert told.reason is not None
        assert told.reason.code == "KEEPS_SIZE"
        assert "no checkpoint of it was seen, so" in told.story[-3].sentence
        assert [one.sentence for one in client.explain(saver).story].count(
            "its script saves when it is asked, so it may be resized"
        ) == 1
        # and it makes room for a third, which the first one does not
        third = client.submit({"name": "third", "run": "exec sleep 1000", "resources": {"accelerators": 1}})
        wait(client, third, has(1))
        wait(client, saver, has(3))
        cancel(client, third)
        wait(client, saver, has(4))
        cancel(client, saver)
        time.sleep(6.0)  # more than a server takes to decide on what has happened
        now = client.job(stiff)
        assert (now.gpus.now, now.restarts) == (4, 1)
        # what it did before its restart is lost, and what the other one did is not
        lost = Cli(home, tmp_path).json("report", "--from", "1h")["total"]
        began_s, left_s = (
            next(one.time_s for one in told.story if one.sentence.startswith(what)) for what in ("runs", "starts again")
        )
        assert lost["lost_gpu_s"] == pytest.approx(8 * (left_s - began_s), rel=0.01)
        parts = ("used", "unused", "restarting", "lost", "idle", "fragmented", "unavailable")
        assert sum(lost[f"{part}_gpu_s"] for part in parts) == pytest.approx(lost["capacity_gpu_s"])
        cancel(client, stiff)
    server.end()


def test_it_is_said_at_submit_in_explain_and_in_the_list_of_jobs(tmp_path, servers) -> None:
    home = tmp_path / "home"
    server = start(servers, home)
    cli = Cli(home, tmp_path)
    launched = cli.run("launch", "-d", "-n", "stiff", "--max-nodes", "8", "--", "sleep 1000")
    assert "note: elastic: the job keeps its size until a checkpoint of it is seen" in launched.stderr
    with server.client() as client:
        wait(client, client.job("stiff"), has(8))
    told = " ".join(cli.ok("explain", "stiff").split())
    assert "No checkpoint of it was seen yet, so it keeps its size" in told
    safe = cli.run("launch", "-d", "-n", "safe", "--max-nodes", "8", "--restartable", "--", "sleep 1000")
    assert "keeps its size" not in safe.stderr
    assert "No checkpoint" not in cli.ok("explain", "safe")
    with server.client() as client:
        stiff, restartable = (client.job(name).checkpoint for name in ("stiff", "safe"))
        assert stiff is not None
        assert restartable is not None
        assert (stiff.seen, stiff.restartable, bool(stiff.sentence)) == (False, False, True)
        assert (restartable.seen, restartable.restartable, restartable.sentence) == (False, True, "")
        cancel(client, client.job("stiff"), client.job("safe"))
    server.end()


def test_one_that_is_declared_restartable_is_resized_as_any_other(tmp_path, servers) -> None:
    server = start(servers, tmp_path / "home")
    with server.client() as client:
        safe = client.submit(elastic("safe", restartable=True, grace="200ms"))
        wait(client, safe, has(8))
        third = client.submit({"name": "third", "run": "exec sleep 1000", "resources": {"accelerators": 1}})
        wait(client, safe, has(7))
        cancel(client, third)
        wait(client, safe, has(8))
        cancel(client, safe)
    server.end()


def test_what_was_seen_outlives_a_server_that_is_killed(tmp_path, servers) -> None:
    home = tmp_path / "home"
    server = start(servers, home)
    with server.client() as client:
        stiff, saver = client.submit(elastic("stiff")), client.submit(trainer(tmp_path))
        wait(client, saver, lambda job: job.checkpoint is not None and job.checkpoint.seen)
    server.kill()
    # when the reports of the job are gone, too: the journal alone has to know
    for path in home.rglob("progress.jsonl"):
        path.unlink()
    server = start(servers, home)
    with server.client() as client:
        known = client.job(saver).checkpoint
        assert known is not None
        assert known.seen
        assert not client.job(stiff).checkpoint.seen  # type: ignore[union-attr]
        cancel(client, stiff, saver)
    server.end()
