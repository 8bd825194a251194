"""ASGI middleware: host and size checks, security headers, and encoded slashes in paths."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes, urlsplit

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.api.responses import HttpProblem, problem_response

MOST_BODY_BYTES = 1 << 20
_TOO_LARGE = f"a request has at most {MOST_BODY_BYTES >> 20} MiB"
_CLOSE = {"Connection": "close"}  # the rest of the body is not read, so the connection cannot be used again
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))  # the usual names: to read an address takes longer
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


class SecurityMiddleware:
    """Refuses requests for other hosts and bodies that are too large; adds security headers."""

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
            length = headers.get("content-length", "0")
            if length.isdecimal() and int(length[:20]) > MOST_BODY_BYTES:
                raise HttpProblem(413, _TOO_LARGE, headers=_CLOSE)
        except HttpProblem as problem:
            await problem_response(problem)(scope, receive, _with_headers(send, scope["path"]))
            return
        await self._app(scope, _limited(receive), _with_headers(send, scope["path"]))

    def _check_host(self, headers: Headers) -> None:
        """Raise HttpProblem for a host that is not ours: another site's DNS may point here (rebinding)."""
        host = headers.get("host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            name = ""
        if not name or not (_is_loopback(name) or self._is_own(name)):
            raise HttpProblem(421, f"this server is not {host[:100] or 'without a name'}; ask for localhost")

    def _is_own(self, name: str) -> bool:
        if name in self._hosts or name.endswith(self._endings):
            return True
        return bool(self._hosts & _EVERYWHERE) and _address(name) is not None


def _limited(receive: Receive) -> Receive:
    """Limit the size of a request's body while it comes in."""
    size = 0

    async def limited() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > MOST_BODY_BYTES:
                # A type of error that FastAPI passes on.
                raise HTTPException(413, _TOO_LARGE, _CLOSE)
        return message

    return limited


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
    if name in _LOOPBACK or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


_SLASH_PLACEHOLDER = "\x1f"  # not part of any name


class EncodedSlashMiddleware:
    """Keeps an encoded slash (%2F) in a path segment: a cluster's job has the id `namespace/name`.

    The framework decodes paths before it matches routes, and would take such a slash for a separator. So it
    is replaced by another character until the route is found.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and b"%2f" in raw.lower():
            parts = (unquote_to_bytes(part).decode("utf-8", "replace") for part in raw.split(b"?")[0].split(b"/"))
            scope = {**scope, "path": "/".join(part.replace("/", _SLASH_PLACEHOLDER) for part in parts)}
        await self._app(scope, receive, send)


def decode_slashes(name: object) -> object:
    """Return a path segment with its slashes."""
    return name.replace(_SLASH_PLACEHOLDER, "/") if isinstance(name, str) else name
