"""Logging in by a program of the user's choice, as the `exec` part of a kubeconfig says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from batuta.backends.kube.client import NEEDS_EXTRA
from batuta.backends.kube.client.credentials import Grant
from batuta.backends.kube.client.errors import AccessError
from batuta.backends.kube.client.tls import show_certificate

_LONGEST_S: Final = 60.0


def login_by(
    plugin: Mapping[str, Any], user: str, context: ssl.SSLContext | None
) -> Callable[[], Awaitable[Grant]]:
    """How to run this plugin. A certificate that it gives goes into the TLS context."""

    async def fetch() -> Grant:
        given = await _run(plugin, user)
        if (certificate := given.get("clientCertificateData")) and context is not None:
            show_certificate(context, certificate.encode(), given.get("clientKeyData", "").encode(), user)
        elif not given.get("token"):
            raise AccessError(f"{_named(plugin, user)} gave neither a token nor a certificate")
        token = given.get("token")
        return Grant(f"Bearer {token}" if token else "", _moment(given.get("expirationTimestamp")))

    return fetch


async def _run(plugin: Mapping[str, Any], user: str) -> dict[str, Any]:
    try:
        from kubernetes_asyncio.config import ConfigException
        from kubernetes_asyncio.config.exec_provider import ExecProvider
        from kubernetes_asyncio.config.kube_config import ConfigNode
    except ImportError as error:
        raise AccessError(NEEDS_EXTRA) from error
    try:
        async with asyncio.timeout(_LONGEST_S):
            given: dict[str, Any] = await ExecProvider(ConfigNode("exec", dict(plugin))).run()
    except FileNotFoundError as error:
        hint = plugin.get("installHint")
        raise AccessError(f"{_named(plugin, user)} is not installed{f': {hint}' if hint else ''}") from error
    except TimeoutError as error:
        raise AccessError(f"{_named(plugin, user)} took more than {_LONGEST_S:.0f} s") from error
    except (ConfigException, OSError) as error:
        raise AccessError(f"{_named(plugin, user)} failed: {error}") from error
    return given


def _named(plugin: Mapping[str, Any], user: str) -> str:
    return f"the login program {plugin.get('command')!r} of {user}"


def _moment(timestamp: str | None) -> float | None:
    if not timestamp:
        return None
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
