"""A client sends its token to the server of the state directory, and to no other program at the same port."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from batuta.apitypes.server_proof import server_proof
from batuta.client.client import Client
from batuta.client.errors import ClientError, NoServerError, UnprovenServerError

TOKEN = "batuta_the-admins-token"
Prove = Callable[[str], str | None]


class Listener:
    """Some program at a port, which writes down all that it is sent."""

    def __init__(self, prove: Prove, port: int = 0) -> None:
        heard = self.heard = list[str]()
        self.prove = prove

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                heard.append(f"{handler.path} {handler.headers.get('authorization', 'no token')}")
                nonce = parse_qs(urlsplit(handler.path).query).get("nonce", [""])[0]
                proof = self.prove(nonce)
                body = json.dumps({"proof": proof} if nonce else {"jobs": []}).encode()
                handler.send_response(404 if nonce and proof is None else 200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        self._server = HTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def listening(prove: Prove, port: int = 0) -> Iterator[Listener]:
    listener = Listener(prove, port)
    try:
        yield listener
    finally:
        listener.close()


def state_of(home: Path, url: str) -> Path:
    """The state directory that a server at this address has left."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "server.json").write_text(json.dumps({"url": url, "pid": 1}))
    (home / "token").write_text(TOKEN + "\n")
    return home


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_server_of_the_state_directory_gets_the_token(tmp_path: Path):
    with listening(lambda nonce: server_proof(TOKEN, nonce, own.url)) as own:
        with Client(home=state_of(tmp_path / "home", own.url)) as client:
            assert client.jobs() == ()
            assert client.jobs() == ()
        proof, *asked = own.heard
        assert proof.startswith("/api/v1/server-proof?nonce=")
        assert proof.endswith("no token")
        assert asked == ["/api/v1/jobs?limit=1000 Bearer " + TOKEN] * 2


ANSWERS: dict[str, Prove] = {
    "it knows no such thing": lambda nonce: None,
    "it repeats what it is sent": lambda nonce: nonce,
    "it knows another secret": lambda nonce: server_proof("batuta_another", nonce, "http://127.0.0.1:1"),
    "it has no secret": lambda nonce: server_proof("", nonce, "http://127.0.0.1:1"),
}


@pytest.mark.parametrize("prove", ANSWERS.values(), ids=ANSWERS)
def test_another_program_at_the_port_of_a_dead_server_gets_no_token(tmp_path: Path, prove: Prove):
    with listening(prove) as other, Client(home=state_of(tmp_path / "home", other.url)) as client:
        with pytest.raises(UnprovenServerError, match=r"is not the server of .*No token was sent"):
            client.jobs()
        with pytest.raises(ClientError):
            list(client.logs("1"))
        assert other.heard
        assert TOKEN not in str(other.heard)


def test_a_program_that_passes_on_the_answer_of_the_living_server_gets_no_token(tmp_path: Path):
    """The server was started again at another port; a program at the old one asks it for the proof."""
    living = f"http://127.0.0.1:{free_port()}"
    with listening(lambda nonce: server_proof(TOKEN, nonce, living)) as other:
        with Client(home=state_of(tmp_path / "home", other.url)) as client, pytest.raises(UnprovenServerError):
            client.jobs()
        assert TOKEN not in str(other.heard)


def test_a_program_that_takes_the_port_while_a_client_waits_gets_no_token(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("batuta.client.transport._PROOF_HOLDS_S", 0.0)
    with listening(lambda nonce: server_proof(TOKEN, nonce, own.url)) as own:
        client = Client(home=state_of(tmp_path / "home", own.url))
        client._transport.pauses_s = (0.0,)
        assert client.jobs() == ()
    with listening(lambda nonce: None, own.port) as other, client:
        with pytest.raises(NoServerError):
            client.jobs()
        assert TOKEN not in str(other.heard)


def test_a_server_elsewhere_is_trusted_by_its_address(tmp_path: Path):
    """Its certificate says who it is: https."""
    with listening(lambda nonce: None) as other:
        with Client(server=other.url, token="batuta_given") as client:
            assert client.jobs() == ()
        assert other.heard == ["/api/v1/jobs?limit=1000 Bearer batuta_given"]
