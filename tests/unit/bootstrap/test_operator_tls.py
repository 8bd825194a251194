"""The certificate of an operator's port, read from files, exchanged while it serves."""

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from batuta.api.http_server import HttpServer
from batuta.backends.kube.client.access import Access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.operator_config import OperatorConfig, OperatorTls
from batuta.backends.kube.settings import validated
from batuta.bootstrap.operator_tls import ServerTls, server_tls
from batuta.bootstrap.serving import listen
from batuta.spec.problem import InputError
from tests.support.certificates import client_context, loopback_certificates


def write(folder: Path, which: str = "") -> OperatorTls:
    """Writes the files of a mounted Secret."""
    made = loopback_certificates(which)
    (folder / "tls.crt").write_bytes(made.server.certificate)
    (folder / "tls.key").write_bytes(made.server.key)
    (folder / "ca.crt").write_bytes(made.authority.certificate)
    return OperatorTls.model_validate({"mode": "files", "folder": str(folder), "refreshSeconds": 1})


def served(tls: ServerTls, story: Callable[[int], Awaitable[None]]) -> None:
    async def run() -> None:
        listener = listen("127.0.0.1", 0, "")
        server = HttpServer(PlainTextResponse("ok"), tls=tls.context)
        serving = asyncio.create_task(server.serve([listener]))
        reading = asyncio.create_task(tls.run(Api(Access("http://127.0.0.1:1")), "none"))
        await story(listener.getsockname()[1])
        reading.cancel()
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(run(), 30))


async def is_believed(port: int, which: str) -> bool:
    """Whether a client that knows this authority alone believes the server."""
    async with httpx2.AsyncClient(verify=client_context(which), trust_env=False) as client:
        try:
            return (await client.get(f"https://localhost:{port}/")).text == "ok"
        except httpx2.ConnectError as error:
            return "CERTIFICATE_VERIFY_FAILED" not in str(error)


def test_files_that_change_are_shown_to_the_next_client_and_open_connections_go_on(tmp_path: Path):
    async def story(port: int) -> None:
        async with httpx2.AsyncClient(verify=client_context("first"), trust_env=False) as client:
            address = f"https://localhost:{port}/"
            assert (await client.get(address)).text == "ok"
            write(tmp_path, "second")
            while not await is_believed(port, "second"):
                await asyncio.sleep(0.1)
            assert not await is_believed(port, "first")
            assert (await client.get(address)).text == "ok"

    served(ServerTls(write(tmp_path, "first")), story)


@pytest.mark.parametrize("spoilt", ["no file", "nonsense", "another key", "a password"])
def test_files_that_are_spoilt_leave_the_certificate_that_was_shown(spoilt: str, tmp_path: Path):
    tls = ServerTls(write(tmp_path, "first"))
    spoil(tmp_path, spoilt)

    async def story(port: int) -> None:
        await asyncio.sleep(1.5)
        assert await is_believed(port, "first")
        assert tls.trouble == ""

    served(tls, story)


@pytest.mark.parametrize("spoilt", ["no file", "nonsense", "another key", "a password"])
def test_files_that_are_spoilt_are_refused_at_the_start(spoilt: str, tmp_path: Path):
    config = write(tmp_path)
    spoil(tmp_path, spoilt)
    with pytest.raises(InputError, match=f"api.tls.folder {tmp_path}: "):
        ServerTls(config)


def spoil(folder: Path, how: str) -> None:
    key = folder / "tls.key"
    if how == "no file":
        key.unlink()
    elif how == "nonsense":
        key.write_text("nonsense")
    elif how == "another key":
        key.write_bytes(loopback_certificates("another").server.key)
    else:
        sealed = ("-out", str(folder / "sealed"), "-passout", "pass:x")
        command = ["openssl", "pkcs8", "-topk8", "-in", str(key), *sealed]
        subprocess.run(command, check=True, capture_output=True)
        (folder / "sealed").rename(key)


def test_without_ca_crt_other_operators_have_to_be_known_to_the_system(tmp_path: Path):
    config = write(tmp_path)
    (tmp_path / "ca.crt").unlink()
    known, asked = ssl.create_default_context().cert_store_stats(), ServerTls(config).trust
    assert asked.cert_store_stats() == known
    assert asked.verify_mode is ssl.CERT_REQUIRED
    assert asked.check_hostname


def test_an_operator_that_is_started_by_hand_has_no_tls_and_listens_on_loopback():
    config = OperatorConfig()
    assert server_tls(config.api.tls) is None
    assert config.api.listen == "127.0.0.1"


@pytest.mark.parametrize(
    ("tls", "problem"),
    [
        ({"mode": "files"}, "api.tls: mode files needs folder"),
        ({"mode": "on"}, "api.tls.mode"),
        ({"mode": "auto", "names": []}, "api.tls.names"),
        ({"mode": "auto", "refreshSeconds": 0}, "api.tls.refreshSeconds"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(tls: dict[str, object], problem: str):
    with pytest.raises(InputError, match=problem):
        validated(OperatorConfig, {"api": {"tls": tls}})
