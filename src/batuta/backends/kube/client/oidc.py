"""Logging in with OpenID Connect, as the `auth-provider` part of a kubeconfig says: by a refresh token."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp

from batuta.backends.kube.client.credentials import Grant
from batuta.backends.kube.client.errors import AccessError
from batuta.backends.kube.client.tls import trusting

_LONGEST: Final = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)


def login_with(
    config: Mapping[str, str], user: str, keep: Callable[[Mapping[str, str]], None]
) -> Callable[[], Awaitable[Grant]]:
    """How to get an id token. The first time it is the one in the file, if it is still good.

    `keep` gets new tokens: an issuer may allow each refresh token once, and other programs need them too.
    """
    tokens = {name: config[name] for name in ("id-token", "refresh-token") if config.get(name)}
    first = True

    async def fetch() -> Grant:
        nonlocal first
        held = tokens.get("id-token", "")
        ends_at_s = _expiry(held)
        if not first or not held or (ends_at_s is not None and ends_at_s - time.time() < 30.0):
            tokens.update(await _refresh(config, tokens, user))
            keep(tokens)
            held = tokens["id-token"]
        first = False
        return Grant(f"Bearer {held}", _expiry(held))

    return fetch


async def _refresh(config: Mapping[str, str], tokens: Mapping[str, str], user: str) -> dict[str, str]:
    if not tokens.get("refresh-token"):
        raise AccessError(f"the id token of {user} is expired, and there is no refresh token; log in again")
    try:
        issuer, client = config["idp-issuer-url"].rstrip("/"), config["client-id"]
    except KeyError as error:
        raise AccessError(f"the oidc auth-provider of {user} has no {error.args[0]!r}") from error
    form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh-token"], "client_id": client}
    if secret := config.get("client-secret"):
        form["client_secret"] = secret
    try:
        connector = aiohttp.TCPConnector(ssl=trusting(_authorities(config)))
        async with aiohttp.ClientSession(connector=connector, timeout=_LONGEST) as session:
            async with session.get(f"{issuer}/.well-known/openid-configuration") as answer:
                endpoint = (await _json(answer, issuer))["token_endpoint"]
            async with session.post(endpoint, data=form) as answer:
                given = await _json(answer, issuer)
    except (aiohttp.ClientError, OSError, TimeoutError, KeyError) as error:
        raise AccessError(f"cannot renew the login of {user} at {issuer}: {error}") from error
    if not given.get("id_token"):
        raise AccessError(f"{issuer} gave no id token for {user}; log in again")
    renewed = {"id-token": given["id_token"], "refresh-token": given.get("refresh_token")}
    return {name: value for name, value in renewed.items() if value}


async def _json(answer: aiohttp.ClientResponse, issuer: str) -> dict[str, Any]:
    text = await answer.text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if answer.status != 200 or not isinstance(found, dict):
        said = found.get("error_description") or found.get("error") if isinstance(found, dict) else ""
        raise AccessError(f"{issuer} refused to renew the login: {said or f'HTTP {answer.status}'}")
    return found


def _authorities(config: Mapping[str, str]) -> str | None:
    if data := config.get("idp-certificate-authority-data"):
        return base64.b64decode(data).decode()
    if path := config.get("idp-certificate-authority"):
        with open(path, encoding="utf-8") as file:
            return file.read()
    return None


def _expiry(token: str) -> float | None:
    """When a JSON web token expires; it is the API server that checks it, so nothing is verified here."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
