"""What every request passes first: is it meant for this server, is it too large? And headers of answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.api.problems import Refusal, response_of

MOST_BODY_BYTES = 1 << 20
_TOO_LARGE = f"a request has at most {MOST_BODY_BYTES >> 20} MiB"
_CLOSE = {"Connection": "close"}
"""The rest of the body is not read, so the connection cannot be used again."""
_EVERYWHERE = frozenset(("0.0.0.0", "::"))
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Door:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)
        self._endings = tuple(host for host in self._hosts if host.startswith("."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            _check_length(headers)
        except Refusal as refusal:
            await response_of(refusal)(scope, receive, _with_headers(send, scope["path"]))
            return
        await self._app(scope, _Body(receive).receive, _with_headers(send, scope["path"]))

    def _check_host(self, headers: Headers) -> None:
        """A name that another page's DNS leads here (rebinding) is not one of ours."""
        host = headers.get("host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            name = ""
        if not name or not (_is_loopback(name) or self._is_own(name)):
            raise Refusal(421, f"this server is not {host[:100] or 'without a name'}; ask for localhost")

    def _is_own(self, name: str) -> bool:
        if name in self._hosts or name.endswith(self._endings):
            return True
        return bool(self._hosts & _EVERYWHERE) and _address(name) is not None


class _Body:
    """Counts a request's body while it comes in."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > MOST_BODY_BYTES:
                # Of a kind that FastAPI does not take for an error of its own.
                raise HTTPException(413, _TOO_LARGE, _CLOSE)
        return message


def _check_length(headers: Headers) -> None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MOST_BODY_BYTES:
        raise Refusal(413, _TOO_LARGE, headers=_CLOSE)


def _with_headers(send: Send, path: str) -> Send:
    is_private = path.startswith("/api/") or path == "/login"

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message["headers"])
            headers += _HEADERS
            if is_private and not any(name == b"cache-control" for name, _ in headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await send(message)

    return guarded


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
