"""A refresh token gives new id tokens: from a provider over HTTP, and they are kept for other programs."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.errors import AccessError
from tests.unit.backends.kube.client.configs import config, find, header, write


def id_token(expires_in_s: float, name: str = "me") -> str:
    claims = json.dumps({"exp": int(time.time() + expires_in_s), "sub": name}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


def user(**settings: str) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": {"client-id": "kube", **settings}}}


@asynccontextmanager
async def provider(answer: Callable[[dict[str, Any]], web.Response]) -> AsyncIterator[str]:
    """An identity provider on this machine; its address."""

    async def settings(request: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"http://{request.host}/token"})

    async def token(request: web.Request) -> web.Response:
        return answer(dict(await request.post()))

    app = web.Application()
    app.add_routes([web.get("/.well-known/openid-configuration", settings), web.post("/token", token)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_good_id_token_is_used_as_it_is(tmp_path: Path) -> None:
    token = id_token(3600.0)
    assert header(find(write(tmp_path / "config", config(user(**{"id-token": token}))))) == f"Bearer {token}"


def test_an_expired_one_is_replaced_and_the_new_tokens_are_kept(tmp_path: Path) -> None:
    fresh = id_token(3600.0, "fresh")
    asked: list[dict[str, Any]] = []

    def answer(form: dict[str, Any]) -> web.Response:
        asked.append(form)
        return web.json_response({"id_token": fresh, "refresh_token": "r2"})

    async def story() -> None:
        async with provider(answer) as issuer:
            tokens = {"id-token": id_token(-10.0), "refresh-token": "r1", "client-secret": "s"}
            path = write(tmp_path / "config", config(user(**tokens, **{"idp-issuer-url": issuer})))
            path.chmod(0o600)
            access = await find_access(path)
            assert await access.credentials.authorization() == f"Bearer {fresh}"
        assert (asked[0]["refresh_token"], asked[0]["client_secret"], len(asked)) == ("r1", "s", 1)
        kept = yaml.safe_load(path.read_text())
        settings = kept["users"][0]["user"]["auth-provider"]["config"]
        assert (settings["id-token"], settings["refresh-token"]) == (fresh, "r2")
        assert path.stat().st_mode & 0o777 == 0o600
        assert [each.name for each in tmp_path.iterdir()] == ["config"]

    asyncio.run(story())


def test_a_refusal_is_told_in_the_words_of_the_provider(tmp_path: Path) -> None:
    def answer(form: dict[str, Any]) -> web.Response:
        return web.json_response({"error": "invalid_grant", "error_description": "too old"}, status=400)

    async def story() -> None:
        async with provider(answer) as issuer:
            settings = {"refresh-token": "r1", "idp-issuer-url": issuer}
            with pytest.raises(AccessError, match="refused to renew the login: too old"):
                await find_access(write(tmp_path / "config", config(user(**settings))))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "no refresh token; log in again"),
        ({"refresh-token": "r"}, "has no 'idp-issuer-url'"),
        (
            {"refresh-token": "r", "idp-issuer-url": "http://127.0.0.1:1"},
            "cannot renew the login of user 'one'",
        ),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(AccessError, match=complaint):
        find(write(tmp_path / "config", config(user(**settings))))
