"""The state directory under hard conditions: a full disk, two servers, another user, an empty directory."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batuta.client.client import Client
from batuta.client.errors import ApiError, ClientError
from tests.support.process_table import wait_for_none
from tests.support.server_process import BATUTA, PlainServers, ServerProcess, readiness

PATIENCE_S = 60.0
DISK_MIB = 100
NOBODY = 65534

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[PlainServers]:
    with PlainServers(tmp_path) as servers:
        yield servers


def wait_until(condition: Callable[[], object], what: Callable[[], str] | str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        shown = what if isinstance(what, str) else what()
        assert time.monotonic() < give_up, f"waited in vain for {shown}"
        time.sleep(0.05)


# ---------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[list[str], Path]:
    """A command that runs another one with a disk of its own, which nobody else sees; and where that is."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={DISK_MIB}m,mode=700 batuta-test "{folder}" && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    able = shutil.which("unshare") and shutil.which("nsenter")
    if not able or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a full disk is tried by whoever may mount one: root, with unshare and mount")
    return prefix, folder


@pytest.fixture
def on_small_disk(small_disk: tuple[list[str], Path], servers: PlainServers) -> ServerProcess:
    """A server on that disk. Its state directory is looked at through /proc."""
    prefix, folder = small_disk
    server = servers.start(folder / "home", prefix=prefix)
    server.home = Path(f"/proc/{server.pid}/root{folder}/home")
    server.wait_ready()
    return server


def fill(folder: Path) -> None:
    """Leaves not a single byte."""
    for name, block in (("much", 1 << 20), ("little", 1 << 10)):
        try:
            with (folder / name).open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * block)
        except OSError:
            continue


def make_room(folder: Path) -> None:
    for name in ("much", "little"):
        (folder / name).unlink()


def test_full_disk_is_reported_and_loses_nothing_and_all_goes_on_when_there_is_room(
    on_small_disk: ServerProcess,
) -> None:
    server, disk = on_small_disk, on_small_disk.home.parent
    url = server.wait_ready()
    with Client(home=server.home, timeout_s=5.0) as client:
        outlasts = client.submit({"run": "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo done"})
        client.wait(outlasts, "running", PATIENCE_S)
        ends_meanwhile = client.submit({"run": "sleep 1"})
        client.wait(ends_meanwhile, "running", PATIENCE_S)
        fill(disk)
        # Whether this one is accepted is open, until it is asked for again with the same key.
        try:
            client.submit({"run": "echo late"}, key="late")
        except (ApiError, ClientError) as refusal:
            print(f"refused: {refusal}")  # noqa: T201
        wait_until(lambda: readiness(url)[0] == 503, "/readyz to say no")
        assert "no room left" in readiness(url)[1]
        doctor = [str(BATUTA), "doctor", "-o", "json", "--home", str(server.home)]
        said = subprocess.run(doctor, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert said.returncode == 1, said.stdout + said.stderr
        errors = {one["check"]: one["found"] for one in json.loads(said.stdout) if one["severity"] == "error"}
        assert "no room left" in errors["journal"]
        assert "disk" in errors
        with pytest.raises(ApiError, match="no room left"):
            client.submit({"run": "echo refused"}, key="refused")
        time.sleep(1.0)
        assert server.is_alive
        make_room(disk)
        wait_until(lambda: readiness(url)[0] == 200, "/readyz to say yes again")
        (server.home / "jobs" / outlasts.id / "work" / "go").touch()
        late = client.submit({"run": "echo late"}, key="late")
        for job in (outlasts, ends_meanwhile, late):
            assert client.wait(job, timeout_s=PATIENCE_S).succeeded, client.job(job)
        assert [job.id for job in client.jobs()] == [outlasts.id, ends_meanwhile.id, late.id]
        assert list(client.logs(outlasts)) == ["begun", "done"]
        assert list(client.logs(late)) == ["late"]
    assert server.end() == 0


def test_server_that_is_killed_on_a_full_disk_has_lost_nothing(
    small_disk: tuple[list[str], Path], on_small_disk: ServerProcess, servers: PlainServers
) -> None:
    """What was accepted before is there; what could not be written was not accepted."""
    first, disk = on_small_disk, on_small_disk.home.parent
    keeper = subprocess.Popen(
        ["nsenter", f"--mount=/proc/{first.pid}/ns/mnt", "sleep", "300"], stdin=subprocess.DEVNULL
    )
    try:
        with Client(home=first.home, timeout_s=5.0) as client:
            job = client.submit({"run": "while [ ! -e go ]; do sleep 0.05; done; echo done"})
            client.wait(job, "running", PATIENCE_S)
            fill(disk)
            with pytest.raises((ApiError, ClientError)):
                client.submit({"run": "echo never"})
            first.kill()
        inside = Path(f"/proc/{keeper.pid}/root{small_disk[1]}/home")
        enter = ["nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt"]
        refused = servers.start(small_disk[1] / "home", prefix=enter)
        assert refused.wait() != 0
        assert "MiB free" in refused.said.read_text()
        make_room(inside.parent)
        second = servers.start(small_disk[1] / "home", prefix=enter)
        second.home = inside
        second.wait_ready()
        with second.client() as client:
            (inside / "jobs" / job.id / "work" / "go").touch()
            assert client.wait(job, timeout_s=PATIENCE_S).succeeded
            assert [one.id for one in client.jobs()] == [job.id]
        assert second.end() == 0
    finally:
        keeper.kill()
        keeper.wait()


# ---------------------------------------------------------------------------------- two servers, other users


def test_second_server_on_a_state_directory_refuses_with_the_pid_of_the_first(
    servers: PlainServers, tmp_path: Path
) -> None:
    first = servers.start(tmp_path / "home")
    url = first.wait_ready()
    second = servers.start(tmp_path / "home")
    assert second.wait() not in (0, None)
    said = second.said.read_text()
    assert f"pid {first.pid}" in said
    assert "Traceback" not in said
    assert readiness(url)[0] == 200
    first.kill()
    third = servers.start(tmp_path / "home")
    third.wait_ready()
    assert third.end() == 0


def as_nobody() -> list[str]:
    """A command that runs another one as a user without rights, who may still read this Python."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("another user is tried by root with setpriv; all other tests ran as this user anyway")
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    read = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    for command in ([setpriv, *user], [setpriv, *user, *read]):
        # By a shell: setpriv itself still has root's rights when it starts the program.
        probe = [*command, "sh", "-c", '"$0" -c "import numpy" && exit', sys.executable]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("this Python is of no use to another user, who cannot read it")


def test_it_works_as_another_user_from_an_empty_directory(servers: PlainServers) -> None:
    """No privilege, no configuration, an empty home: jobs run, are cancelled and leave nothing."""
    prefix = as_nobody()
    empty = Path("/tmp") / f"batuta-nobody-{os.getpid()}"  # below what another user may enter
    empty.mkdir(mode=0o700)
    try:
        os.chown(empty, NOBODY, NOBODY)
        env = {"HOME": str(empty), "PATH": os.environ.get("PATH", os.defpath)}
        server = servers.start(empty / ".batuta", prefix=prefix, env=env, cwd=empty)
        server.wait_ready()
        with server.client() as client:
            job = client.submit({"run": "id -u; echo $CUDA_VISIBLE_DEVICES", "resources": {"accelerators": 2}})
            wait_until(lambda: client.job(job).is_over, lambda: str(client.explain(job)))
            assert client.job(job).succeeded, client.job(job)
            assert list(client.logs(job)) == [str(NOBODY), "0,1"]
            daemon = client.submit({"run": "(setsid sleep 600 &) ; echo ready; sleep 600"})
            client.wait(daemon, "running", PATIENCE_S)
            client.cancel(daemon)
            assert client.wait(daemon, timeout_s=PATIENCE_S).state == "CANCELLED"
        command = [*prefix, str(BATUTA), "queue", "-a", "-o", "json"]
        listed = subprocess.run(command, capture_output=True, text=True, env=env, cwd=empty, check=True)
        assert {one["state"] for one in json.loads(listed.stdout)} == {"SUCCEEDED", "CANCELLED"}
        assert server.end() == 0
        assert not wait_for_none(empty)
        modes = {path.name: path.stat().st_mode & 0o777 for path in (empty / ".batuta").iterdir()}
        assert not [name for name, mode in modes.items() if mode & 0o077], modes
    finally:
        shutil.rmtree(empty, ignore_errors=True)
