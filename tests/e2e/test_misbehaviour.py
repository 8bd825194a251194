"""Jobs that behave badly: contained, reported, and the next job does not notice."""

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batuta.apitypes.resources import Job
from batuta.backends.local.supervisor import process_tree
from batuta.client.client import Client
from tests.support.process_table import end_all, wait_for_none
from tests.support.server_process import ForkServer, readiness

PATIENCE_S = 60.0
CAP_BYTES = 64 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only"),
]

STUBBORN = "trap '' TERM HUP INT USR1; echo ready; while :; do sleep 0.1; done"
DAEMONS = """
import os, signal, sys, time
def daemon(*how):
    if os.fork():
        return
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if "session" in how:
        os.setsid()
    if "group" in how:
        os.setpgid(0, 0)
    if "again" in how and os.fork():
        os._exit(0)
    os.closerange(0, 3)
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")
    if "nameless" in how:  # neither environment nor name tell whose it is
        os.execve("/bin/sleep", ["sleep", "600"], {})
    time.sleep(600)
    os._exit(0)
for how in (["group"], ["session"], ["session", "again"], ["session", "again", "nameless"], []):
    daemon(*how)
while not os.path.exists("pids") or len(open("pids").readlines()) < 5:
    time.sleep(0.01)
print("ready", flush=True)
if "stay" in sys.argv:
    time.sleep(600)
"""
FLOOD = """
import os, time
block, end, count = b"x" * 127 + b"\\n", time.monotonic() + 3, 0
block *= 8192
while time.monotonic() < end:
    count += os.write(1, block)
open("written", "w").write(str(count))
os.write(1, b"\\nthe last line\\n")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a server that runs."""
    folder = tmp_path_factory.mktemp("misbehaviour")
    with ForkServer(folder) as servers:
        server = servers.start(folder / "home")
        server.wait_ready()
        yield folder / "home"
        assert server.is_alive, server.last_words()
        assert server.end() == 0
    left = wait_for_none(folder / "home")
    end_all(folder / "home")
    assert not left


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client
        alive = client.jobs(active=True)
        for job in alive:  # of a test that has failed: the next one wants all GPUs
            client.cancel(job)
            client.wait(job, timeout_s=PATIENCE_S)
        assert not alive, f"the test has left {alive}"


def submit(client: Client, run: str, gpus: int = 1, **task: Any) -> Job:
    return client.submit({"run": run, "resources": {"accelerators": gpus}, **task})


def python(code: str, *words: str) -> str:
    """A command that runs code; it stands in a file, as a script would."""
    return f"cat >script.py <<'END'\n{code}\nEND\nexec {sys.executable} -I -S script.py {' '.join(words)}"


def until_logged(client: Client, job: Job, text: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while text not in (log := "\n".join(client.logs(job, tail=20))):
        assert time.monotonic() < give_up, f"no {text!r} in the log: {log}; {client.job(job)}"
        time.sleep(0.02)


def all_gpus_work(client: Client) -> bool:
    """Whether a job on every GPU of a node starts and ends, on each node."""
    jobs = [submit(client, "echo fine", gpus=4) for _ in range(2)]
    return [client.wait(job, timeout_s=PATIENCE_S).state for job in jobs] == ["SUCCEEDED"] * 2


def living(pids: Path) -> list[int]:
    """Of the pids that are noted in a file, those of living processes."""
    found = [process_tree.look_up(int(line)) for line in pids.read_text().split()]
    return [entry.pid for entry in found if entry is not None and not entry.dead]


def size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # renamed since
            total += path.stat().st_size
    return total


def test_job_that_ignores_every_signal_is_gone_after_its_grace(client: Client) -> None:
    job = submit(client, STUBBORN, gpus=4, elastic={"grace": "500ms"})
    until_logged(client, job, "ready")
    begun = time.monotonic()
    client.cancel(job)
    assert client.wait(job, timeout_s=PATIENCE_S).state == "CANCELLED"
    assert time.monotonic() - begun < 15
    assert all_gpus_work(client)


@pytest.mark.parametrize("how", ["cancelled", "ends by itself"])
def test_daemons_of_a_job_are_gone_with_it(client: Client, home: Path, how: str) -> None:
    """Forked twice, in sessions and groups of their own, deaf to signals, without environment: all."""
    job = submit(client, python(DAEMONS, "stay" if how == "cancelled" else ""), elastic={"grace": "500ms"})
    pids = home / "jobs" / job.id / "work" / "pids"
    until_logged(client, job, "ready")
    if how == "cancelled":
        assert len(living(pids)) == 5
        client.cancel(job)
    assert client.wait(job, timeout_s=PATIENCE_S).state == ("CANCELLED" if how == "cancelled" else "SUCCEEDED")
    assert living(pids) == []
    assert all_gpus_work(client)


def test_log_that_is_filled_as_fast_as_can_be_is_capped_and_keeps_its_tail(client: Client, home: Path) -> None:
    job = submit(client, python(FLOOD))
    client.wait(job, "running", PATIENCE_S)
    assert client.address is not None
    slowest_s, folder = 0.0, home / "jobs" / job.id
    while not client.job(job).is_over:
        begun = time.monotonic()
        assert readiness(client.address.url, 10)[0] == 200
        slowest_s = max(slowest_s, time.monotonic() - begun)
        assert size_bytes(folder / "logs") <= CAP_BYTES * 1.1
        time.sleep(0.05)
    beside = submit(client, "echo not disturbed")
    assert client.wait(beside, timeout_s=PATIENCE_S).succeeded
    assert client.job(job).succeeded, client.job(job)
    written = int((folder / "work" / "written").read_text())
    assert written > CAP_BYTES, f"only {written >> 20} MiB were written: it was no flood"
    assert slowest_s < 2, f"/readyz took {slowest_s:.1f} s"
    assert list(client.logs(job, tail=1)) == ["the last line"]
    assert list(client.logs(beside)) == ["not disturbed"]


@pytest.mark.parametrize(
    ("trap", "checkpoint", "ends", "code"),
    [
        ("trap 'exit 0' USR1", "on-signal", "SUCCEEDED", 0),
        ("trap 'exit 3' USR1", "on-signal", "FAILED", 3),
        ("trap 'exit 0' TERM", "none", "SUCCEEDED", 0),
        ("trap 'exit 3' TERM", "none", "CANCELLED", None),
        ("trap 'kill -9 $$' USR1", "on-signal", "FAILED", 137),
    ],
    ids=["with 0", "with 3", "with 0 at the end", "with 3 at the end", "killed"],
)
def test_job_that_exits_during_a_resize(
    client: Client, trap: str, checkpoint: str, ends: str, code: int | None
) -> None:
    """With 0 it has finished, otherwise it has failed; one that was told to end goes on at its new size."""
    run = f"{trap}; echo ready $SKYPILOT_NUM_NODES $BATUTA_RESTART; while :; do sleep 0.05; done"
    elastic = {"min_nodes": 1, "max_nodes": 3, "checkpoint": checkpoint, "grace": "5s"}
    job = submit(client, run, elastic=elastic)
    until_logged(client, job, "ready 3")
    client.resize(job, min_nodes=1, max_nodes=2)
    if ends == "CANCELLED":
        until_logged(client, job, "ready 2")
        client.cancel(job)
    over = client.wait(job, timeout_s=PATIENCE_S)
    assert (over.state, over.exit_code) == (ends, code), over.detail
    assert all_gpus_work(client)
