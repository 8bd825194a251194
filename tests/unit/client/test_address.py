"""Which server is meant: arguments, then the environment, then the state directory."""

import json
import socket
from pathlib import Path

import pytest

from batuta.client.address import find_address, find_home, show_path
from batuta.client.errors import ClientError, NoServerError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 7, "started_s": 1}))
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


def test_arguments_win_over_all(home):
    environ = {"BATUTA_SERVER": "http://other:1", "BATUTA_TOKEN": "t", "BATUTA_HOME": str(home)}
    address = find_address("gpu-box:7077", "mine", environ=environ)
    assert (address.url, address.token, address.home) == ("http://gpu-box:7077", "mine", None)


def test_the_environment_names_a_server_anywhere(home):
    environ = {"BATUTA_SERVER": "https://gpu-box/", "BATUTA_TOKEN": "t", "BATUTA_HOME": str(home)}
    address = find_address(environ=environ)
    assert (address.url, address.token) == ("https://gpu-box", "t")


def test_a_state_directory_that_is_named_wins_over_the_environment(home):
    address = find_address(home=home, environ={"BATUTA_SERVER": "http://other:1"})
    assert (address.url, address.token, address.pid) == ("http://127.0.0.1:9", "secret", 7)


def test_the_state_directory_of_the_environment(home):
    assert find_address(environ={"BATUTA_HOME": str(home)}).home == home


def test_the_token_is_not_shown(home):
    assert "secret" not in repr(find_address(home=home, environ={}))


def test_no_server_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BATUTA_HOME", raising=False)
    with pytest.raises(NoServerError) as caught:
        find_address(environ={})
    assert str(caught.value) == "no server is running for ~/.batuta: start one with `batuta up`"
    with pytest.raises(NoServerError, match="`batuta up --home ~/other`"):
        find_address(home=tmp_path / "other", environ={})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": 3}'])
def test_a_broken_server_file_is_no_server(tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    with pytest.raises(NoServerError):
        find_address(home=tmp_path, environ={})


@pytest.mark.parametrize("text", ["ftp://x", "http://", "http://host:port", "http://[::1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ClientError, match="is not the address of a server"):
        find_address(text, environ={})


def test_homes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_home(environ={}) == tmp_path / ".batuta"
    assert find_home("~/x", {}) == tmp_path / "x"
    assert show_path(tmp_path / "x") == "~/x"
    assert show_path(Path("/var/x")) == "/var/x"


def test_a_unix_socket_is_named_as_a_server_and_needs_no_token(tmp_path: Path) -> None:
    found = find_address(environ={"BATUTA_SERVER": "unix:///run/x.sock"})
    assert (found.socket, found.token, found.name) == (Path("/run/x.sock"), "", "unix:///run/x.sock")
    with pytest.raises(ClientError, match="not the address of a socket"):
        find_address("unix://x.sock")


def test_a_user_without_a_server_asks_that_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "batuta.sock"
    monkeypatch.setattr("batuta.client.address.DEFAULT_SOCKET", path)
    environ = {"HOME": str(tmp_path)}
    monkeypatch.setattr("batuta.client.address.DEFAULT_HOME", str(tmp_path / "home"))
    with pytest.raises(NoServerError):
        find_address(environ=environ)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert find_address(environ=environ).socket == path
        with pytest.raises(NoServerError):  # that one was meant
            find_address(home=tmp_path / "home", environ=environ)
