"""A token in a file is the one that stands there now."""

import asyncio
import os
from pathlib import Path

import pytest

from batuta.backends.kube.client import credentials
from batuta.backends.kube.client.credentials import IssuedToken, RefreshingToken, TokenFile
from batuta.backends.kube.client.errors import AccessError, Unauthorized
from tests.unit.backends.kube.client.configs import write


def replace(path: Path, text: str) -> None:
    """As the kubelet does it: another file takes the place of the old one."""
    write(path.with_suffix(".new"), text)
    os.replace(path.with_suffix(".new"), path)


def test_a_file_that_changes_gives_the_new_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_LOOK_EVERY_S", 0.0)
    path = write(tmp_path / "token", "one")

    async def story() -> None:
        token = TokenFile(path)
        assert await token.authorization() == "Bearer one"
        replace(path, "two")
        assert await token.authorization() == "Bearer two"
        path.unlink()
        assert await token.authorization() == "Bearer two"  # better than none

    asyncio.run(story())


def test_a_refused_token_is_looked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "_LOOK_EVERY_S", 3600.0)
    path = write(tmp_path / "token", "one")

    async def story() -> None:
        token = TokenFile(path)
        await token.authorization()
        replace(path, "two")
        assert await token.authorization() == "Bearer one"
        token.reject("Bearer one")
        assert await token.authorization() == "Bearer two"

    asyncio.run(story())


def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="there is no token in"):
        TokenFile(write(tmp_path / "token", "\n"))


def test_a_login_that_fails_later_keeps_what_there_is_until_the_server_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(credentials, "_LEAST_BETWEEN_S", 0.0)
    grants = [IssuedToken("Bearer one", expires_at_s=0.0)]

    async def fetch() -> IssuedToken:
        if not grants:
            raise AccessError("the provider is away")
        return grants.pop()

    async def story() -> None:
        renewed = RefreshingToken(fetch)
        assert await renewed.authorization() == "Bearer one"
        assert await renewed.authorization() == "Bearer one"
        renewed.reject("Bearer one")
        with pytest.raises(Unauthorized, match="the provider is away"):
            await renewed.authorization()

    asyncio.run(story())
