"""A program of the user's choice logs in: it is run when it must be, and its failures are told."""

import asyncio
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from batuta.backends.kube.client import credentials
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.errors import AccessError
from tests.unit.backends.kube.client.configs import config, find, header, write

API_VERSION = "client.authentication.k8s.io/v1"


def plugin(folder: Path, status: dict[str, Any] | None = None, then: str = "") -> dict[str, Any]:
    """A login program that counts how often it runs; `{n}` in what it says is that number."""
    said = json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status or {}})
    write(
        folder / "login.py",
        "import os, pathlib, sys\n"
        f"runs = pathlib.Path({str(folder / 'runs')!r})\n"
        "runs.write_text(runs.read_text() + '.' if runs.exists() else '.')\n"
        f"{then}\n"
        f"print({said!r}.replace('{{n}}', str(len(runs.read_text()))))\n",
    )
    program = write(folder / "bin" / "login", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return {"exec": {"apiVersion": API_VERSION, "command": "bin/login", "args": [str(folder / "login.py")]}}


def expiry(in_s: float) -> str:
    return datetime.fromtimestamp(time.time() + in_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text())


def test_its_token_is_used_until_it_expires(tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "t{n}", "expirationTimestamp": expiry(3600.0)})
    access = find(write(tmp_path / "config", config(user)))
    assert [header(access) for _ in range(3)] == ["Bearer t1"] * 3
    assert runs(tmp_path) == 1


def test_a_token_that_is_about_to_expire_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_LEAST_BETWEEN_S", 0.0)
    user = plugin(tmp_path, {"token": "t{n}", "expirationTimestamp": expiry(0.0)})
    access = find(write(tmp_path / "config", config(user)))
    assert header(access) == "Bearer t2"


def test_a_token_that_the_server_refuses_is_replaced_but_not_in_a_hot_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = plugin(tmp_path, {"token": "t{n}"})
    path = write(tmp_path / "config", config(user))

    async def story() -> None:
        access = await find_access(path)
        access.credentials.reject("Bearer t1")
        assert await access.credentials.authorization() == "Bearer t1"  # it was fetched a moment ago
        monkeypatch.setattr(credentials, "_LEAST_BETWEEN_S", 0.0)
        assert await access.credentials.authorization() == "Bearer t2"
        access.credentials.reject("Bearer t1")  # the answer to a request from before
        assert await access.credentials.authorization() == "Bearer t2"

    asyncio.run(story())


def test_many_requests_at_once_log_in_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = plugin(tmp_path, {"token": "t{n}"})
    path = write(tmp_path / "config", config(user))

    async def story() -> None:
        access = await find_access(path)
        monkeypatch.setattr(credentials, "_LEAST_BETWEEN_S", 0.0)
        access.credentials.reject("Bearer t1")
        got = await asyncio.gather(*(access.credentials.authorization() for _ in range(20)))
        assert got == ["Bearer t2"] * 20

    asyncio.run(story())
    assert runs(tmp_path) == 2


def test_its_environment_is_the_one_of_the_file(tmp_path: Path) -> None:
    user = plugin(tmp_path, {"token": "none"}, then="assert os.environ['REALM'] == 'a'")
    user["exec"]["env"] = [{"name": "REALM", "value": "a"}]
    assert header(find(write(tmp_path / "config", config(user)))) == "Bearer none"


@pytest.mark.parametrize(
    ("status", "then", "complaint"),
    [
        ({}, "", "gave neither a token nor a certificate"),
        ({"token": "a"}, "sys.exit('who are you?')", r"failed: .*who are you\?"),
        ({"token": "a"}, "print('hello')", "failed: .*decode"),
    ],
)
def test_its_failures_are_told(tmp_path: Path, status: dict[str, Any], then: str, complaint: str) -> None:
    path = write(tmp_path / "config", config(plugin(tmp_path, status, then)))
    with pytest.raises(AccessError, match=f"the login program .* of user 'one' in .* {complaint}"):
        find(path)


def test_a_program_that_is_not_there_is_named_with_its_hint(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": API_VERSION, "command": "no-such-login", "installHint": "ask the team"}}
    with pytest.raises(AccessError, match=r"'no-such-login' of user 'one' .* is not installed: ask the team"):
        find(write(tmp_path / "config", config(user)))
