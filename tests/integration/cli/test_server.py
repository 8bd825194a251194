"""The server by hand: up, down, what is said when there is none."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_server import Cli


@pytest.mark.parametrize(
    "verb",
    [
        *(["queue"], ["status"], ["logs", "1"], ["cancel", "1"], ["nodes"], ["top"], ["events"]),
        *(["launch", "-d", "--", "true"], ["policy", "set", "fifo"], ["dashboard"]),
    ],
    ids=" ".join,
)
def test_without_a_server_every_verb_says_so(nobody, verb):
    done = nobody.run(*verb)
    assert done.returncode == 1
    assert done.stderr == f"error: no server is running for {nobody.home}: start one with `batuta up`\n"


def test_down_without_a_server_is_fine(nobody):
    assert nobody.ok("down") == f"no server is running for {nobody.home}\n"
    assert nobody.json("down") == {"stopped": False, "pid": None}


def test_a_machine_without_gpus_is_offered_virtual_ones(nobody):
    done = nobody.run("up", "-d")
    if done.returncode == 0:
        nobody.ok("down")
        pytest.skip("this machine has GPUs")
    assert done.returncode == 2
    assert "batuta up --virtual" in done.stderr


def test_up_says_why_it_does_not_start(nobody):
    done = nobody.run("up", "--virtual", "-d", "--policy", "fif")
    assert (done.returncode, "unknown policy 'fif'" in done.stderr) == (2, True)
    assert nobody.run("up", "--virtual", "-d", "--nodes", "0").returncode == 2
    assert nobody.run("up", "--gpu-type", "H100").returncode == 2
    wrong = nobody.run("up", "--virtual", "--stay", "--retain-days", "0", "--pass-env", "A B")
    assert wrong.returncode == 2
    assert [line.split()[1] for line in wrong.stderr.splitlines()] == [
        "--stay",
        "--retain-days",
        "--pass-env",
    ]


@pytest.mark.parametrize("detach", [(), ("-d",)], ids=["stays", "detaches"])
def test_a_taken_port_is_told_in_a_line(nobody, detach):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = nobody.run("up", "--virtual", "--port", str(port), *detach)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot listen at 127.0.0.1:{port}: Address already in use (choose another --port or --listen)\n"
    )


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "::1234"])
def test_a_server_that_others_can_reach_says_first_that_their_jobs_run_as_its_user(nobody, address):
    done = nobody.run("up", "--virtual", "--port", "0", "--listen", address)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"their jobs run as {getpass.getuser()}" in done.stderr
    assert "--jobs-run-as-me" in done.stderr
    assert not (nobody.home / "journal.db").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "for one user: all jobs run as USER"),
        (("--jobs-run-as-me",), "whose jobs all run as USER, whoever submits them"),
    ],
)
def test_a_server_says_as_whom_jobs_run(tmp_path: Path, options: tuple[str, ...], said: str):
    cli = Cli(tmp_path / "home", tmp_path)
    done = cli.run("up", "--virtual", "--nodes", "1", "--port", "0", "-d", *options)
    try:
        shown = done.stderr + (tmp_path / "home" / "up.log").read_text()
        assert f"it is a server {said}".replace("USER", getpass.getuser()) in shown
        if os.geteuid() == 0:
            assert ("jobs of other users are refused, and --socket PATH" in shown) == (not options)
    finally:
        cli.run("down")


@pytest.mark.parametrize("detach", [(), ("-d",)], ids=["stays", "detaches"])
def test_a_state_directory_that_cannot_be_is_told_in_a_line(tmp_path, detach):
    (tmp_path / "file").write_text("mine")
    for home, why in (("file", "is not a directory"), ("file/home", "Not a directory")):
        done = Cli(tmp_path / home, tmp_path).run("up", "--virtual", "--port", "0", *detach)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
        assert done.stderr.startswith("error: ")
        assert why in done.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_says_that_jobs_run_on(tmp_path: Path):
    cli = Cli(tmp_path / "home", tmp_path)
    up = ("up", "--virtual", "--nodes", "1", "--gpus", "1", "--port", "0")
    server = cli.start(*up)
    try:
        cli.until(lambda: cli.run("queue").returncode, lambda code: code == 0)
        cli.wait(cli.launch("--", "sleep 300"), "RUNNING")
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=30)
        assert (server.returncode, err.splitlines()[-1]) == (
            0,
            "1 job runs on, for the next `batuta up` to take over; `batuta down` stops jobs too",
        )
    finally:
        server.kill()
        assert cli.run(*up, "-d").returncode == 0
        cli.run("cancel", "-a", "-y")
        cli.run("down")


def state_of(pid: int) -> str:
    """Empty when it is gone; Z when only its parent has not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_a_server_whose_file_is_lost_is_found_by_its_lock(tmp_path: Path):
    cli = Cli(tmp_path / "home", tmp_path)
    started = cli.run("up", "--virtual", "--port", "0", "-d")
    assert started.returncode == 0, started.stderr
    (cli.home / "server.json").unlink()
    job = cli.launch("--", "true")
    cli.wait(job, "SUCCEEDED")
    assert "has stopped" in cli.ok("down")
    assert "no server is running" in cli.run("queue").stderr


def test_install_says_what_it_needs_where_the_extra_is_missing(tmp_path: Path):
    """A Python in which msgspec cannot be imported, as after `pip install batuta` alone."""
    code = "import sys; sys.modules['msgspec'] = None; from batuta.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "install"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == ("error: Kubernetes needs msgspec, which is not installed (pip install 'batuta[kube]')\n")


def test_up_down_and_up_again(tmp_path: Path):
    cli = Cli(tmp_path / "home", tmp_path)
    up = ("up", "--virtual", "--nodes", "1", "--gpus", "2", "--gpu-type", "H100", "--port", "0", "-d")
    url = cli.run(*up).stdout.strip()
    facts = json.loads((cli.home / "server.json").read_text())
    try:
        assert facts["url"] == url
        assert os.getsid(facts["pid"]) == facts["pid"], "it outlives the terminal that it was started from"
        log = (cli.home / "up.log").read_text()
        second = cli.run(*up)
        assert (second.returncode, f"pid {facts['pid']}" in second.stderr) == (1, True)
        assert log
        assert (cli.home / "up.log").read_text() == log, "it is the first one's, and stays as it was"
        assert cli.json("nodes")[0]["gpu_type"] == "H100"
        job = cli.launch("-n", "lasts", "--gpus", "H100:1", "--", "sleep 300")
        cli.wait(job, "RUNNING")
        assert cli.ok("down", "--keep-jobs").endswith("has stopped; its jobs run on\n")
        assert cli.until(lambda: state_of(facts["pid"]), lambda state: state in ("", "Z")) in ("", "Z")
        assert cli.run("queue").returncode == 1
        assert cli.run(*up).returncode == 0
        cli.wait(job, "RUNNING")
        assert cli.json("status", job)["restarts"] == 0
        assert cli.json("down")["stopped"] is True
    finally:
        cli.run("cancel", "-a", "-y")
        cli.run("down")


def test_following_outlasts_a_server_that_is_killed(tmp_path: Path):
    cli = Cli(tmp_path / "home", tmp_path)
    up = ("up", "--virtual", "--nodes", "1", "--gpus", "1", "--port", "0", "-d")
    assert cli.run(*up).returncode == 0
    try:
        follower = cli.start("launch", "-n", "counts", "--", "for i in $(seq 40); do echo $i; sleep 0.2; done")
        assert follower.stdout is not None
        assert follower.stdout.readline() == "1\n"
        os.kill(json.loads((cli.home / "server.json").read_text())["pid"], signal.SIGKILL)
        # A large process takes a moment to die, and holds its lock until then.
        cli.until(lambda: cli.ok("doctor"), lambda told: "was killed" in told)
        assert cli.run(*up).returncode == 0
        out, err = follower.communicate(timeout=60)
        assert out.split() == [str(i) for i in range(2, 41)], "every line, once"
        assert (follower.returncode, "SUCCEEDED" in err) == (0, True)
    finally:
        cli.run("down")
