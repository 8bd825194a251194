"""A server whose journal was lost, cut or exchanged does not start as if nothing had been; each by a real server."""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.server_process import PlainServers, run_batuta

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only")
PATIENCE_S = 60.0
SAVES = {"run": 'cat "$BATUTA_CHECKPOINT_DIR"/* 2>/dev/null; echo $BATUTA_JOB_ID > "$BATUTA_CHECKPOINT_DIR/saved"'}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[PlainServers]:
    with PlainServers(tmp_path) as servers:
        yield servers


@pytest.fixture
def home(servers: PlainServers, tmp_path: Path) -> Path:
    """A state directory in which job 1 has saved a checkpoint, with a copy of its journal from before job 2."""
    home = tmp_path / "home"
    server = servers.start(home)
    server.wait_ready()
    with server.client() as client:
        assert client.wait(client.submit(SAVES), timeout_s=PATIENCE_S).succeeded
        done = run_batuta("backup", tmp_path / "backup.db", "--home", home)
        assert done.returncode == 0, done.stderr
        assert client.wait(client.submit(SAVES), timeout_s=PATIENCE_S).succeeded
    assert server.end() == 0
    return home


def refusal(servers: PlainServers, home: Path) -> str:
    """What a server says that does not start."""
    server = servers.start(home)
    assert server.wait() == 1
    said = server.said.read_text()
    assert "Traceback" not in said
    assert "do not belong together" in said
    assert "batuta up --set-aside" in said
    return said


def lose_journal(home: Path) -> None:
    for path in home.glob("journal.db*"):
        path.unlink()


def test_the_folder_of_a_job_says_which_journal_knows_it(home: Path):
    with closing(sqlite3.connect(home / "journal.db")) as journal:
        ((own,),) = journal.execute("SELECT journal FROM identity").fetchall()
    assert [(home / "jobs" / job / "journal-id").read_text().strip() for job in ("1", "2")] == [own, own]


def test_after_the_loss_of_its_journal_a_server_starts_only_when_told_and_uses_no_number_again(
    home: Path, servers: PlainServers
):
    lose_journal(home)
    said = refusal(servers, home)
    assert "journal.db is gone" in said
    assert "2 folders are in jobs/ (1, 2)" in said
    assert not (home / "journal.db").exists(), "a start that is refused changes nothing"
    server = servers.start(home, "--set-aside")
    server.wait_ready()
    with server.client() as client:
        job = client.submit(SAVES)
        assert client.wait(job, timeout_s=PATIENCE_S).succeeded
        assert int(job.id) > 2
        assert list(client.logs(job)) == [], "it has found the checkpoint of another job"
    (aside,) = (home / "set-aside").iterdir()
    assert (aside / "jobs" / "1" / "checkpoints" / "saved").read_text() == "1\n"
    assert server.end() == 0
    again = servers.start(home)
    again.wait_ready()
    assert again.end() == 0


def test_a_journal_that_was_cut_is_refused(home: Path, tmp_path: Path, servers: PlainServers):
    lose_journal(home)
    shutil.copy(tmp_path / "backup.db", home / "journal.db")
    said = refusal(servers, home)
    assert "journal.db was cut" in said
    assert "a folder is in jobs/ (2)" in said
    server = servers.start(home, "--set-aside")
    server.wait_ready()
    with server.client() as client:
        assert [job.id for job in client.jobs()] == ["1"]
        assert int(client.submit(SAVES).id) > 2
    assert server.end() == 0


def test_the_journal_of_another_directory_is_refused(home: Path, tmp_path: Path, servers: PlainServers):
    other = servers.start(tmp_path / "other")
    other.wait_ready()
    assert other.end() == 0
    lose_journal(home)
    shutil.copy(tmp_path / "other" / "journal.db", home / "journal.db")
    said = refusal(servers, home)
    assert "journal.db is another one" in said
    assert "2 folders are in jobs/ (1, 2) of jobs of another journal" in said


def test_a_backup_brings_a_lost_journal_back(home: Path, tmp_path: Path, servers: PlainServers):
    lose_journal(home)
    done = run_batuta("restore", tmp_path / "backup.db", "--home", home)
    assert done.returncode == 0, done.stderr
    assert "a folder is in jobs/ (2)" in done.stderr
    assert "of jobs that the journal does not know" in refusal(servers, home)
    server = servers.start(home, "--set-aside")
    server.wait_ready()
    busy = run_batuta("restore", tmp_path / "backup.db", "--replace", "--home", home)
    assert busy.returncode == 1
    assert "another server runs" in busy.stderr
    with server.client() as client:
        assert [job.id for job in client.jobs()] == ["1"]
        assert int(client.submit(SAVES).id) > 2
    assert server.end() == 0
