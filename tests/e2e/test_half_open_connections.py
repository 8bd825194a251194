"""1,200 connections that send half a request, at a server with few descriptors: jobs end once, and the API answers."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import PlainServers, ServerProcess

pytestmark = pytest.mark.slow
DESCRIPTORS = 256
CONNECTIONS = 1200
JOBS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    limited = ["/bin/sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
    with PlainServers(tmp_path) as servers:
        made = servers.start(tmp_path / "home", "2x4", prefix=limited)
        made.wait_ready()
        yield made


def half_open(port: int) -> list[socket.socket]:
    found = []
    for _ in range(CONNECTIONS):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        found.append(one)
    time.sleep(0.5)
    for one in found:
        try:
            one.send(b"GET /api/v1/jobs HTTP/1.1\r\nHost: lo")
        except OSError:
            continue  # it had to make room already
    return found


def test_jobs_that_end_under_1200_half_open_connections_end_once(server: ServerProcess, tmp_path: Path):
    port = int(server.wait_ready().rpartition(":")[2])
    with server.client() as client:
        runs = [f"echo ran >>{tmp_path}/ran-{n}; sleep 4" for n in range(JOBS)]
        jobs = [client.submit({"name": f"job-{n}", "run": run}).id for n, run in enumerate(runs)]
        give_up = time.monotonic() + 60.0
        while not all((tmp_path / f"ran-{n}").exists() for n in range(JOBS)):
            assert time.monotonic() < give_up
            time.sleep(0.05)
    connections = half_open(port)
    try:
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < DESCRIPTORS - 16, "none is left for the engine"
        # While all of them are there, a request of a client is answered.
        with server.client(timeout_s=20.0) as client:
            states = {client.job(job).state for job in jobs}
            assert states <= {"RUNNING", "SUCCEEDED", "STARTING"}
            time.sleep(5.0)
            give_up = time.monotonic() + 30.0
            while any(client.job(job).state != "SUCCEEDED" for job in jobs):
                assert time.monotonic() < give_up, [client.job(job) for job in jobs]
                time.sleep(0.2)
    finally:
        for one in connections:
            one.close()
    with server.client() as client:
        found = [client.job(job) for job in jobs]
        assert {(one.state, one.restarts) for one in found} == {("SUCCEEDED", 0)}
    assert [(tmp_path / f"ran-{n}").read_text() for n in range(JOBS)] == ["ran\n"] * JOBS
    assert "lost" not in (server.home / "server.log").read_text()
