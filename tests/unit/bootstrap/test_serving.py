"""The port of agents and operators: probes, metrics, and what is not there."""

import asyncio
import os
import stat
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from batuta.api.http_server import HttpServer
from batuta.bootstrap.serving import ProbesApp, listen, listen_unix
from batuta.spec.problem import InputError


def served(app: ASGIApp, ask: Callable[[httpx2.AsyncClient], Awaitable[None]]) -> None:
    async def story() -> None:
        listener = listen("127.0.0.1", 0, "")
        server = HttpServer(app)
        serving = asyncio.create_task(server.serve([listener]))
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            await ask(client)
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_port_serves_metrics_and_probes():
    trouble = ""

    async def metrics(_: object) -> str:
        return "x 1\n"

    async def nothing() -> ASGIApp:
        return PlainTextResponse("not found\n", 404)

    async def ask(client: httpx2.AsyncClient) -> None:
        nonlocal trouble
        answer = await client.get("/metrics?a=b")
        assert answer.content == b"x 1\n"
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        for probe in ("/healthz", "/readyz"):
            answer = await client.get(probe)
            assert (answer.status_code, answer.text) == (200, "ok\n")
        trouble = "NVML does not answer"
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.text) == (503, f"{trouble}\n")
        assert (await client.get("/nothing")).status_code == 404

    served(ProbesApp(lambda: trouble, metrics, nothing), ask)


def test_an_answer_on_an_open_connection_does_not_wait_for_an_acknowledgement():
    """Head and body are two writes: the second one must not wait until the client has acknowledged the first."""
    took_s: list[float] = []

    async def ask(client: httpx2.AsyncClient) -> None:
        for _ in range(20):
            begun_s = time.perf_counter()
            await client.get("/")
            took_s.append(time.perf_counter() - begun_s)

    served(PlainTextResponse("ok\n"), ask)
    assert statistics.median(took_s) < 0.03  # a delayed acknowledgement takes 0.04 s and more


def test_a_port_that_is_taken_is_said():
    with listen("127.0.0.1", 0, "") as first:
        port = first.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1:{port}"):
            listen("127.0.0.1", port, "choose another --port")


def test_a_socket_of_a_server_that_was_killed_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run" / "batuta.sock"
    with listen_unix(path) as first:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        with pytest.raises(InputError, match="another server listens there"):
            listen_unix(path)
        first.close()
    listen_unix(path).close()
    path.unlink()
    path.write_text("x")
    with pytest.raises(InputError, match="something else is there"):
        listen_unix(path)


def test_a_socket_where_others_could_put_theirs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InputError, match=r"other users can exchange what is in .*open"):
        listen_unix(tmp_path / "open" / "batuta.sock")
    (tmp_path / "open").chmod(0o1777)
    with pytest.raises(InputError, match="other users can write"):
        listen_unix(tmp_path / "open" / "batuta.sock")
    (tmp_path / "open" / "own").mkdir()  # closed itself, in a folder that is another user's
    (tmp_path / "open").chmod(0o755)
    os.chown(tmp_path / "open", 5, 5)
    with pytest.raises(InputError, match=r"other users can exchange what is in .*open"):
        listen_unix(tmp_path / "open" / "own" / "batuta.sock")
