"""Finds the server and its token: from arguments, then the environment, then the state directory.

`$BATUTA_SERVER` and `$BATUTA_TOKEN` name a server anywhere, and `$BATUTA_CA_FILE` the authority that has signed its
certificate, where the system does not know that. Without them it is the one of the state directory
(`$BATUTA_HOME`, by default ~/.batuta), which writes its address to `server.json` and its token to `token`.
If `server.json` is lost, the lock of a server that runs says the same. A user who has no server of their own asks
the one of the whole machine, at its unix socket (`unix:///run/batuta/batuta.sock`): it needs no token, for the
kernel tells it who asks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from batuta.client.errors import ClientError, NoServerError

SERVER_VARIABLE, TOKEN_VARIABLE, HOME_VARIABLE = "BATUTA_SERVER", "BATUTA_TOKEN", "BATUTA_HOME"
CA_FILE_VARIABLE = "BATUTA_CA_FILE"
SERVER_FILE, LOCK_FILE, TOKEN_FILE = "server.json", "lock", "token"
DEFAULT_HOME = "~/.batuta"
DEFAULT_SOCKET = Path("/run/batuta/batuta.sock")  # of a server for all users of this machine
_UNIX = "unix://"


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the token that it knows us by."""

    url: str
    token: str = field(default="", repr=False)
    home: Path | None = None  # its state directory, when it was found through that
    pid: int | None = None
    secret: str = field(default="", repr=False)  # what a server of that state directory knows, and no other does
    socket: Path | None = None  # the unix socket at which it is asked; None: over TCP
    ca_file: Path | None = None  # certificates of whom to believe alone; None: those that the system believes

    @property
    def name(self) -> str:
        if self.socket is not None:
            return f"{_UNIX}{self.socket}"
        return show_path(self.home) if self.home is not None else self.url


def find_address(
    server: str | None = None,
    token: str | None = None,
    home: Path | str | None = None,
    environ: Mapping[str, str] = os.environ,
    ca_file: Path | str | None = None,
) -> Address:
    """The server that is meant. Raises NoServerError when its state directory names none."""
    server = server or (environ.get(SERVER_VARIABLE) if home is None else None)
    if server:
        given = token if token is not None else environ.get(TOKEN_VARIABLE, "")
        if server.startswith(_UNIX):
            return _at_socket(Path(server.removeprefix(_UNIX)), given)
        authority = ca_file or environ.get(CA_FILE_VARIABLE)
        return Address(
            _checked_url(server, is_to_prove_itself=bool(authority)),
            given,
            ca_file=Path(authority).expanduser() if authority else None,
        )
    folder = find_home(home, environ)
    facts = read_server_file(folder)
    url = facts.get("url")
    if not isinstance(url, str) or not url:
        if home is None and HOME_VARIABLE not in environ and DEFAULT_SOCKET.is_socket():
            return _at_socket(DEFAULT_SOCKET, "" if token is None else token)
        raise no_server(folder)
    pid = facts.get("pid")
    secret = _read_token(folder)
    found = token if token is not None else secret
    return Address(_checked_url(url), found, folder, pid if isinstance(pid, int) else None, secret)


def _at_socket(path: Path, token: str) -> Address:
    if not path.is_absolute():
        raise ClientError(f"{_UNIX}{path} is not the address of a socket: write it like {_UNIX}{DEFAULT_SOCKET}")
    return Address("http://localhost", token, socket=path)


def find_home(home: Path | str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    try:
        return Path(home or environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()
    except RuntimeError:
        raise ClientError(f"there is no home directory: set {HOME_VARIABLE} or use --home") from None


def read_server_file(home: Path) -> dict[str, object]:
    """What the last server wrote about itself; empty when there was none."""
    return _read_facts(home, SERVER_FILE) or _read_facts(home, LOCK_FILE)


def _read_facts(home: Path, name: str) -> dict[str, object]:
    try:
        facts = json.loads((home / name).read_text(encoding="utf-8"))
    except PermissionError:
        raise ClientError(f"{show_path(home)} cannot be read: it belongs to another user") from None
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def no_server(home: Path) -> NoServerError:
    option = "" if home == find_home() else f" --home {show_path(home)}"
    return NoServerError(f"no server is running for {show_path(home)}: start one with `batuta up{option}`")


def show_path(path: Path) -> str:
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)


def _read_token(home: Path) -> str:
    try:
        return (home / TOKEN_FILE).read_text(encoding="utf-8").strip()
    except OSError:
        return ""  # the server says what it thinks of that


def parse_url(text: str) -> SplitResult | None:
    """The parts of a URL, with http:// where it has no scheme; None when it is not that of a server."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return None
    return parts if is_sound else None


def _checked_url(text: str, *, is_to_prove_itself: bool = False) -> str:
    parts = parse_url(text)
    if parts is None:
        raise ClientError(f"{text!r} is not the address of a server: write it like http://127.0.0.1:7077")
    if is_to_prove_itself and parts.scheme != "https":
        raise ClientError(
            f"{text} has no certificate that ${CA_FILE_VARIABLE} could be for: write https://{parts.netloc}, "
            f"or unset ${CA_FILE_VARIABLE} to talk to it in clear"
        )
    return parts.geturl().rstrip("/").removesuffix("/api/v1")
