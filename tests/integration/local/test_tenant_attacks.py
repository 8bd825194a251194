"""What a user of a server for all users can try against root and the others, and what becomes of it."""

import json
import os
import pwd
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from batuta.client.client import Client
from tests.support.server_process import fork_server
from tests.support.tenant_machine import ANA, BEN, WITHIN_S, Machine, serving_all_users

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs as other users")
CATCHES_ALL = """
import signal, sys, time
for one in (signal.SIGTRAP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGVTALRM, signal.SIGSYS):
    signal.signal(one, lambda *_: None)
signal.signal(getattr(signal, "SIG" + "USR" + "1"), lambda *_: print("asked", flush=True))
print("ready", flush=True)
time.sleep(600)
"""
"""What catches every signal is told of a checkpoint if its script speaks of the signal: its first argument, it says."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with serving_all_users() as found:
        yield found


def test_a_job_has_nothing_of_the_powers_of_root(machine: Machine) -> None:
    said = machine.told(ANA, "grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status; umask; ls /proc/self/fd | wc -l")
    assert [line.split()[-1].strip("0") for line in said.splitlines()[:4]] == [""] * 4
    assert said.splitlines()[4:] == ["0022", "4"]  # 0, 1, 2 and the folder that `ls` reads


@pytest.mark.parametrize("target", ["own", "secret"])
def test_the_runner_looks_up_what_a_job_names_as_its_script_as_the_jobs_user(machine: Machine, target: str) -> None:
    """As root it could be led to open a device, or any secret."""
    place = machine.folder / target
    place.write_text("U" + "SR1")
    place.chmod(0o600 if target == "secret" else 0o644)
    job = machine.submit(
        ANA,
        f"exec /usr/bin/python3 - {place} <<'END'\n{CATCHES_ALL}\nEND\n",
        resources={"accelerators": "1"},
        elastic={"min_nodes": 1, "max_nodes": 1, "checkpoint": "on-signal", "grace": "2s"},
    )
    machine.wait(job, "RUNNING")
    give_up = time.monotonic() + WITHIN_S
    while "ready" not in machine.log(job):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    machine.as_user(ANA, lambda client: client.park(job).id)  # a checkpoint is requested first
    with machine.client() as client:
        while client.job(job).gpus.now:
            assert time.monotonic() < give_up, machine.story(job)
            time.sleep(0.1)
    assert ("asked" in machine.log(job)) == (target == "own")
    machine.as_user(ANA, lambda client: client.cancel(job).id)


@pytest.mark.parametrize("mounts", [{"/mnt/x": "PATH"}, {}])
def test_a_question_tells_no_user_what_root_can_see(machine: Machine, mounts: dict[str, str]) -> None:
    closed = machine.folder / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    (closed / "there").mkdir(exist_ok=True)

    def asked(path: Path) -> Any:
        named = {name: str(path) for name in mounts}
        task = {"run": "x", "workdir": "/" if named else str(path), "file_mounts": named}
        body = {"submit": [{"task": task}]}
        return machine.as_user(ANA, lambda client: type(client._transport.json("POST", "/whatif", json=body)).__name__)

    assert asked(closed / "there") == asked(closed / "absent")


def test_scripts_are_seen_by_their_user_and_admins(machine: Machine) -> None:
    job = machine.submit(BEN, "sleep 0 # word-in-run", setup="true # word-in-setup")
    machine.wait(job)

    def seen(client: Client) -> list[str]:
        return [client._transport.send("GET", f"/jobs/{job}{part}").text for part in ("", "/explain", "/events")]

    assert "word-in" not in "".join(machine.as_user(ANA, seen))
    assert "word-in-run" in machine.as_user(BEN, seen)[0]
    assert machine.as_user(ANA, lambda client: client._transport.send("GET", f"/jobs/{job}/task").text)[0] == 403
    assert "word-in-setup" in machine.as_user(
        BEN, lambda client: client._transport.send("GET", f"/jobs/{job}/task").text
    )


def test_a_link_to_the_dashboard_is_for_who_asked_for_it(machine: Machine) -> None:
    link = machine.as_user(ANA, lambda client: client.session_link())
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.open(link, timeout=20.0).close()
    base = link.partition("/login")[0]
    with opener.open(f"{base}/api/v1/session", timeout=20.0) as answer:
        assert json.load(answer) == {"user": ANA, "role": "user"}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.build_opener().open(link, timeout=20.0)


def test_reports_without_end_keep_no_one_else_waiting(machine: Machine) -> None:
    """One user's job wrote some hundred MiB of reports, and the server answered nobody for a minute."""
    flood = """
import os
line = b'{"step": 5, "total_steps": 900, "loss": 0.5}' + bytes([10])
with open(os.environ["BATUTA_PROGRESS"], "ab", 0) as file:
    while file.tell() < 400 * 2**20:
        file.write(line * 20000)
print("written", flush=True)
"""
    job = machine.submit(ANA, f"/usr/bin/python3 - <<'END'\n{flood}\nEND\nsleep 600")
    give_up = time.monotonic() + WITHIN_S
    while "written" not in machine.log(job):
        assert time.monotonic() < give_up
        begun = time.monotonic()
        machine.told(BEN, "true")
        assert time.monotonic() - begun < 15.0
    with machine.client() as client:
        seen = client.job(job).progress
    assert seen is not None
    assert seen.step == 5
    machine.as_user(ANA, lambda client: client.cancel(job).id)


def test_folders_as_deep_as_they_get_are_removed(machine: Machine) -> None:
    deep = "import os\nos.chdir(os.environ['BATUTA_CONTROL'])\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')"
    job = machine.submit(ANA, f'/usr/bin/python3 -c "{deep}"')
    machine.wait(job)
    give_up = time.monotonic() + WITHIN_S
    while any((machine.area / "trash").iterdir()) or (machine.area / job / "runs").exists():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_state_directory_that_a_user_can_exchange_is_refused(tmp_path: Path) -> None:
    with serving_all_users() as machine:
        anas = machine.folder / "anas"
        anas.mkdir()
        os.chown(anas, pwd.getpwnam(ANA).pw_uid, -1)
        (anas / "state").mkdir(mode=0o700)
        other = fork_server().start(
            anas / "state", unix_socket=str(machine.folder / "s" / "x.sock"), job_files=str(machine.folder / "more")
        )
        assert other.wait(60.0) != 0
        assert "--home" in other.last_words()
        assert "can exchange" in other.last_words()


def test_root_is_not_given_to_jobs_that_were_submitted_before(tmp_path: Path) -> None:
    """A server of root's took jobs of all with --jobs-run-as-me; the next one is started without it."""
    first = fork_server().start(tmp_path, jobs_run_as_me=True)
    url = first.wait_ready()
    with first.client() as client:
        token = client.create_token(ANA, "user").token
    with Client(server=url, token=token) as other:
        job = other.submit({"run": "sleep 600"}).id
    first.end()
    second = fork_server().start(tmp_path, jobs_run_as_me=False)
    assert second.wait(60.0) != 0
    assert f"job {job} is {ANA}'s, and all jobs of this server would run as root" in second.last_words()
    third = fork_server().start(tmp_path, jobs_run_as_me=True)
    third.wait_ready()
    with third.client() as client:
        client.shut_down()
    third.wait(60.0)


def test_an_admin_that_is_not_root_is_one_by_a_token_alone(machine: Machine) -> None:
    """At the socket an account is a user, whatever tokens it has."""
    with machine.client() as client:
        client.create_token(ANA, "admin")
    assert machine.as_user(ANA, lambda client: client._transport.json("GET", "/session"))["role"] == "user"
    status, _ = machine.as_user(ANA, lambda client: client.create_token("root", "admin").token)
    assert status == 403


def test_all_jobs_together_leave_process_ids_to_the_machine(machine: Machine) -> None:
    """Each job may have thousands; ten that fork without end had all that there are, and no one could log in."""
    job = machine.submit(
        ANA, "cat /proc/self/cgroup; sleep 600", resources={"labels": {"batuta.dev/pids-limit": 4_000_000}}
    )
    machine.wait(job, "RUNNING")
    give_up = time.monotonic() + WITHIN_S
    while not (line := next((one for one in machine.log(job).splitlines() if ":pids:" in one or "0::" in one), "")):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    groups = [
        root / line.rpartition(":")[2].lstrip("/") for root in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"))
    ]
    group = next((one for one in groups if (one / "pids.max").exists()), None)
    if group is None:
        pytest.skip("no control groups here")
    most = int(Path("/proc/sys/kernel/pid_max").read_text()) * 7 // 8
    assert int((group / "pids.max").read_text()) <= most
    assert int((group.parent / "pids.max").read_text()) <= most
    machine.as_user(ANA, lambda client: client.cancel(job).id)


def test_a_users_job_that_reaches_a_limit_is_stopped_with_that_reason(machine: Machine) -> None:
    """Bounded by itself, too: it starts 60 processes, and no more."""
    run = "for n in $(seq 60); do sleep 60 & done; wait"
    job = machine.submit(ANA, run, resources={"labels": {"batuta.dev/pids-limit": 30}})
    with machine.client() as client:
        now = client.wait(job, timeout_s=WITHIN_S)
    assert now.reason is not None
    assert (now.state, now.reason.code) == ("FAILED", "PROCESS_LIMIT")


def test_what_jobs_print_takes_no_gpu_from_others() -> None:
    """Three jobs that printed an error of a GPU and failed had the node taken out of service for half an hour."""
    with serving_all_users(nodes=1, gpus=1) as machine:
        for _ in range(3):
            job = machine.submit(
                ANA,
                "echo 'CUDA error: uncorrectable ECC error encountered'; exit 1",
                resources={"accelerators": "1"},
            )
            with machine.client() as client:
                client.wait(job, timeout_s=WITHIN_S)
        with machine.client() as client:
            (node,) = client._transport.json("GET", "/nodes")["nodes"]
            assert node["gpus"][0]["healthy"], node
        other = machine.submit(BEN, "true", resources={"accelerators": "1"})
        machine.wait(other)
