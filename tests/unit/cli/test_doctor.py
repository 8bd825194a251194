"""`doctor` sees what is wrong and says what to do."""

import json
import os
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta import __version__
from batuta.apitypes.resources import Cluster, Gpu, Job, Node, ReasonGiven
from batuta.bootstrap import local_facts
from batuta.bootstrap.local_facts import Leftover
from batuta.cli import doctor
from batuta.cli.doctor import check_machine, check_ports, check_sdk, check_state_dir
from batuta.cli.main import app
from batuta.engine.soundness import Severity
from batuta.gpu import devices
from tests.support.fake_api import Routes, client_to


def by_name(findings) -> dict:
    return {finding.check: finding for finding in findings}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    return folder


def test_a_sound_state_directory(home):
    assert {finding.severity for finding in check_state_dir(home)} == {Severity.OK}


def test_a_state_directory_that_is_not_there_is_no_error(tmp_path):
    (finding,) = check_state_dir(tmp_path / "none")
    assert (finding.severity, finding.fix) == (Severity.NOTE, "batuta up makes it")


def test_what_others_can_read_is_an_error(home):
    (home / "token").write_text("secret")
    (home / "token").chmod(0o644)
    home.chmod(0o755)
    found = by_name(check_state_dir(home))
    assert found["state directory"].severity is Severity.ERROR
    assert found["state directory"].fix == f"chmod 700 {home}"
    assert found["token"].severity is Severity.ERROR


def test_a_file_in_its_place(tmp_path):
    (tmp_path / "home").write_text("")
    assert by_name(check_state_dir(tmp_path / "home"))["state directory"].severity is Severity.ERROR


@pytest.mark.parametrize(("free", "severity"), [(1 << 20, Severity.ERROR), (1 << 29, Severity.WARNING)])
def test_little_room(home, monkeypatch, free, severity):
    full = os.statvfs_result((4096, 1, 0, 0, free, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert by_name(check_state_dir(home))["disk"].severity is severity


def test_a_server_that_was_killed(home):
    (home / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 4}))
    found = by_name(check_state_dir(home))["lock"]
    assert (found.severity, "pid 4" in found.found) == (Severity.WARNING, True)


def test_the_machine(home, monkeypatch):
    monkeypatch.setattr(devices, "find_devices", tuple)
    left = [Leftover(pid, "b-1-0", "python train.py") for pid in range(10, 15)]
    monkeypatch.setattr(local_facts, "find_leftovers", lambda folder: left)
    found = by_name(check_machine(home))
    assert found["Python"].severity is Severity.OK
    assert (found["GPUs"].severity, found["GPUs"].fix) == (Severity.NOTE, "batuta up --virtual")
    assert found["processes"].severity is Severity.WARNING
    assert found["processes"].fix == "kill 10 11 12 13 14"
    assert "and 2 more" in found["processes"].found


def test_a_driver_that_is_half_installed(home, monkeypatch):
    def fail() -> tuple[devices.Device, ...]:
        raise OSError("libnvidia-ml.so: version mismatch")

    monkeypatch.setattr(devices, "find_devices", fail)
    assert by_name(check_machine(home))["GPUs"].severity is Severity.WARNING


def test_nodes_and_their_gpus():
    nodes = [
        Node("a", "lost", gpus=(Gpu(0),)),
        Node("b", "cordoned", gpus=(Gpu(0, healthy=False),)),
        Node("c", "ready", gpus=(Gpu(0),)),
    ]
    told = [(f.check, f.severity.value, f.found) for f in doctor._check_nodes(nodes)]
    assert told == [
        ("nodes", "warning", "lost: a"),
        ("nodes", "warning", "cordoned: b"),
        ("GPU health", "warning", "1 are not healthy: b:0"),
    ]
    assert next(doctor._check_nodes([])).severity is Severity.ERROR


def test_jobs_that_can_never_run():
    jobs = [
        Job("1", state="PENDING", reason=ReasonGiven("EXCEEDS_CLUSTER", "needs 9 GPUs, the cluster has 8")),
        Job("2", state="PENDING", reason=ReasonGiven("WAITING_FOR_GPUS", "needs 4")),
    ]
    (finding,) = doctor._check_stuck_jobs(jobs)
    assert finding.check == "job 1"
    assert "the cluster has 8" in finding.found
    assert next(doctor._check_stuck_jobs(jobs[1:])).severity is Severity.OK


def test_clocks_and_versions():
    assert doctor.check_clock(100.0, 99.0, 101.0, "its").severity is Severity.OK
    assert doctor.check_clock(100.0, 160.0, 161.0, "its").severity is Severity.WARNING
    assert doctor.check_clock(100.0, 30.0, 31.0, "its").severity is Severity.WARNING
    assert doctor._check_version(Cluster(version="0.0")).severity is Severity.WARNING
    assert doctor._check_version(Cluster(version=__version__)).severity is Severity.OK


def test_an_older_server_that_does_not_examine_itself(monkeypatch):
    routes = Routes(cluster={"version": "0.0", "trouble": "nothing is decided"}, nodes={"nodes": []}, jobs={"jobs": []})
    client = client_to(routes)
    monkeypatch.setattr("batuta.client.client.Client", lambda **_: client)
    found = by_name(doctor.check_server(None))
    assert (found["engine"].severity, found["engine"].found) == (Severity.ERROR, "nothing is decided")
    assert found["inside"].severity is Severity.NOTE


def test_the_port_of_a_server_that_was_killed(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        (home / "server.json").write_text(json.dumps({"url": url, "pid": 4}))
        assert [one.severity for one in check_ports(home)] == [Severity.OK]
    (finding,) = check_ports(home)
    assert (finding.severity, finding.fix) == (Severity.WARNING, "batuta up")


def test_the_usual_port_is_free_or_somebody_elses(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (finding,) = check_ports(home, port)
        assert (finding.severity, "another program" in finding.found) == (Severity.NOTE, True)
    assert next(check_ports(home, port)).severity is Severity.OK


def test_a_server_that_everybody_can_reach(home):
    with socket.create_server(("0.0.0.0", 0)) as other:
        url = f"http://0.0.0.0:{other.getsockname()[1]}"
        (home / "server.json").write_text(json.dumps({"url": url, "pid": 4}))
        answers, is_open = check_ports(home)
    assert (answers.severity, is_open.severity) == (Severity.OK, Severity.WARNING)
    assert "not encrypted" in is_open.found


@pytest.mark.parametrize(
    ("script", "severity", "words"),
    [
        (f"printf {__version__}", Severity.OK, __version__),
        ("printf 0.0.9", Severity.WARNING, "has batuta.sdk 0.0.9"),
        ("exit 1", Severity.NOTE, "has no batuta.sdk"),
    ],
)
def test_the_sdk_that_jobs_would_import(tmp_path, script, severity, words):
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    found = check_sdk(str(python))
    assert (found.severity, words in found.found) == (severity, True)


def test_a_python_that_does_not_run(tmp_path):
    (tmp_path / "python3").write_text("")
    assert check_sdk(str(tmp_path / "python3")).severity is Severity.WARNING


def test_without_a_server_it_is_no_error(home, monkeypatch):
    monkeypatch.delenv("BATUTA_SERVER", raising=False)
    result = CliRunner().invoke(app, ["doctor", "--home", str(home), "-o", "json"])
    assert result.exit_code == 0, result.output
    found = {one["check"]: one for one in json.loads(result.stdout)}
    assert found["server"]["severity"] == "note"
    assert found["journal"]["severity"] == "note"
    again = CliRunner().invoke(app, ["doctor", "--home", str(home), "--json"])
    assert {one["check"] for one in json.loads(again.stdout)} == set(found)
    table = CliRunner().invoke(app, ["doctor", "--home", str(home)]).output
    assert "CHECK" in table
    assert "no server is running" in table


def test_a_damaged_journal_is_found_without_a_server(home, monkeypatch):
    monkeypatch.delenv("BATUTA_SERVER", raising=False)
    (home / "journal.db").write_bytes(b"not a database" * 1000)
    (home / "journal.db").chmod(0o600)
    result = CliRunner().invoke(app, ["doctor", "--home", str(home), "--json"])
    assert result.exit_code == 1
    found = {one["check"]: one for one in json.loads(result.stdout)}
    assert (found["journal"]["severity"], "move it away" in found["journal"]["fix"]) == ("error", True)


def test_an_error_is_the_exit_code(home):
    home.chmod(0o755)
    assert CliRunner().invoke(app, ["doctor", "--home", str(home)]).exit_code == 1
