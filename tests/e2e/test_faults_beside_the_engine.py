"""A live server in which something fails that jobs can do without: it goes on, and says what fails."""

import sqlite3
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.apitypes.resources import Job
from tests.support.cli_server import Cli
from tests.support.local_replicas import wait_until
from tests.support.process_table import end_all, wait_for_none
from tests.support.server_process import PlainServers, ServerProcess, is_ready
from tests.support.thread_limit import thread_limit

PATIENCE_S = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]
TRAINS = """
import os, sys, time
from batuta import sdk
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
for step in range(100_000):
    time.sleep(0.05)
    sdk.report(step=step, total_steps=100_000, samples=32 * step)
"""
"""Reports how fast it is, once it may: something that the server wants to keep."""


class Scene:
    """A server, and a job that has not reported anything yet."""

    def __init__(self, server: ServerProcess, folder: Path) -> None:
        self.server, self._folder, self._go = server, folder, folder / "go"
        self.url = server.wait_ready()
        self.client = server.client()
        (folder / "train.py").write_text(TRAINS)
        job = self._submit("trains", f"exec {sys.executable} {folder}/train.py {self._go}")
        self.client.wait(job, "running", PATIENCE_S)

    def _submit(self, name: str, run: str) -> Job:
        return self.client.submit({"name": name, "run": run, "resources": {"accelerators": 1}})

    def reports(self) -> None:
        """The job begins to report."""
        self._go.touch()

    def runs_a_new_job(self) -> None:
        """A user submits a job, and it runs to its end."""
        job = self.client.wait(self._submit("later", "echo done"), timeout_s=PATIENCE_S)
        assert job.state == "SUCCEEDED"

    def doctor(self) -> str:
        return Cli(self.server.home, self._folder).run("doctor").stdout

    def log(self) -> str:
        return (self.server.home / "server.log").read_text()

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return answer.read().decode()


NO_THREAD = "learning from jobs failed (failure 1): RuntimeError: can't start new thread"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with PlainServers(tmp_path) as servers:
        server = servers.start(tmp_path / "home", "--nodes", "1", "--gpus", "4", "--open-metrics")
        found = Scene(server, tmp_path)
        yield found
        found.client.close()
        assert server.is_alive, server.last_words()
        assert server.end() == 0
    end_all(tmp_path / "home")
    wait_for_none(tmp_path / "home")


def test_a_thread_that_cannot_be_started_does_not_end_the_server(scene: Scene) -> None:
    """Given a server that wants to save what it has learned and cannot start a thread for it."""
    with thread_limit(scene.server.pid) as threads:
        threads.close()
        scene.reports()
        wait_until(lambda: NO_THREAD in scene.log(), PATIENCE_S, what="it has failed")
        assert is_ready(scene.url), scene.server.last_words()
        threads.open()
        scene.runs_a_new_job()
        wait_until(lambda: "learning from jobs works again" in scene.log(), PATIENCE_S, what="it works again")
    assert "learning from jobs" in scene.doctor()


def test_statistics_that_cannot_be_saved_do_not_end_the_server(scene: Scene) -> None:
    """Given a journal in which a table of statistics refuses every write."""
    with sqlite3.connect(scene.server.home / "journal.db") as database:
        database.execute("CREATE TRIGGER broken BEFORE INSERT ON settings BEGIN SELECT RAISE(ABORT, 'bad block'); END")
    scene.reports()
    wait_until(lambda: "bad block" in scene.log(), PATIENCE_S, what="it has failed")
    scene.runs_a_new_job()
    assert 'batuta_part_failing{part="learning from jobs"} 1.0' in scene.metrics()
    told = scene.doctor()
    assert "learning from jobs" in told
    assert "bad block" in told
    with sqlite3.connect(scene.server.home / "journal.db") as database:
        database.execute("DROP TRIGGER broken")
    wait_until(lambda: "learning from jobs works again" in scene.log(), PATIENCE_S, what="it works again")
