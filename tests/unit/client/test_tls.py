"""Whom a client believes to be its server, and that it tells no token to others."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from batuta.api.http_server import HttpServer
from batuta.client.address import find_address
from batuta.client.client import Client
from batuta.client.errors import ClientError, UntrustedServerError
from batuta.client.transport import Transport
from tests.support.certificates import loopback_certificates, server_context


@contextmanager
def served(tokens: list[str], which: str = "", *, plain: bool = False) -> Iterator[int]:
    """A server that notes the tokens that it is sent; its port."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        tokens.append(Request(scope).headers["authorization"])
        await JSONResponse({})(scope, receive, send)

    server = HttpServer(app, tls=None if plain else server_context(which))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)


def ask(url: str, ca_file: Path | None) -> None:
    transport = Transport(lambda: find_address(url, "secret", environ={}, ca_file=ca_file), pauses_s=(0.0,))
    try:
        assert transport.json("GET", "/cluster") == {}
    finally:
        transport.close()


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    path = tmp_path / "ca.crt"
    path.write_bytes(loopback_certificates().authority.certificate)
    return path


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_whose_authority_is_in_the_file_is_told_the_token(host: str, ca_file: Path):
    tokens: list[str] = []
    with served(tokens) as port:
        ask(f"https://{host}:{port}", ca_file)
    assert tokens == ["Bearer secret"]


@pytest.mark.parametrize("knows", ["another authority", "the system's"])
def test_a_server_of_another_authority_is_told_nothing_and_the_fix_is_said(knows: str, ca_file: Path):
    tokens: list[str] = []
    with served(tokens, "impostor") as port:
        known = ca_file if knows == "another authority" else None
        with pytest.raises(
            UntrustedServerError, match=r"No token was sent; name its authority in \$BATUTA_CA_FILE"
        ) as said:
            ask(f"https://localhost:{port}", known)
    assert "kubectl -n batuta-system get configmap batuta-ca -o jsonpath='{.data.ca\\.crt}'" in str(said.value)
    assert tokens == []


def test_a_server_with_another_name_is_told_nothing(ca_file: Path):
    tokens: list[str] = []
    with served(tokens) as port, pytest.raises(UntrustedServerError, match="ask it by a name that its certificate has"):
        ask(f"https://127.1:{port}", ca_file)
    assert tokens == []


def test_a_server_with_tls_that_is_asked_in_clear_says_so_in_the_end():
    tokens: list[str] = []
    with served(tokens) as port, pytest.raises(ClientError, match=rf"if it speaks TLS, ask https://127.0.0.1:{port}"):
        ask(f"http://127.0.0.1:{port}", None)
    assert tokens == []


def test_no_token_goes_in_clear_where_an_authority_is_named(ca_file: Path):
    environ = {"BATUTA_SERVER": "127.0.0.1:7077", "BATUTA_TOKEN": "t", "BATUTA_CA_FILE": str(ca_file)}
    with pytest.raises(ClientError, match=r"write https://127.0.0.1:7077, or unset"):
        find_address(environ=environ)


def test_the_environment_names_the_authority(ca_file: Path, monkeypatch: pytest.MonkeyPatch):
    tokens: list[str] = []
    with served(tokens) as port:
        for name, value in (("SERVER", f"https://localhost:{port}"), ("TOKEN", "t"), ("CA_FILE", str(ca_file))):
            monkeypatch.setenv(f"BATUTA_{name}", value)
        with Client() as client:
            client.cluster()
    assert tokens == ["Bearer t"]


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "cannot be read: No such file"), ("nonsense", "has no certificate in PEM")]
)
def test_a_file_without_certificates_is_an_error_with_the_fix(text: str | None, problem: str, tmp_path: Path):
    path = tmp_path / "batuta-ca.crt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        ClientError, match=rf"\$BATUTA_CA_FILE .*batuta-ca.crt {problem}.*; for an operator: kubectl -n"
    ):
        ask("https://localhost:1", path)
