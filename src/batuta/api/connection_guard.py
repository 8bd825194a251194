"""Bounds the connections of the HTTP server in number and in time, so that the engine has descriptors left.

A connection that never sends a whole request costs its client nothing and the server a descriptor. uvicorn bounds
neither their number (its `limit_concurrency` answers 503 to requests, and accepts every connection) nor the time for a
first request. So at the limit the connection that has kept the server waiting for the longest time makes room for a
new one, and each has a deadline for its headers and one for the rest of its request. Answers are never cut off: what
streams events or logs for hours has sent its request.

With TLS all of it begins before the handshake, for which a client has as long as for its headers. asyncio tells a
protocol of a connection after the handshake, which it lets take a minute.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADERS_WITHIN_S: Final = 10.0
BODY_WITHIN_S: Final = 60.0
HEADERS_BYTES: Final = 32 << 10
_TOO_LARGE: Final = "Headers are too large."
ACCEPTED_AT_ONCE: Final = 16
"""asyncio accepts as many connections as the backlog in one go, before any of them can be counted."""
_MOST: Final = 10_000
_RESERVED: Final = 128
_FEWEST: Final = 8
PEER_UID: Final = "batuta.peer_uid"
"""In the scope of a request that came over a unix socket: the user id of the process at its other end."""
_PEER_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid and gid, as unix(7) has them
_GOODBYE_WITHIN_S: Final = 3.0  # for a client to answer that the connection ends, as TLS asks it to


class _Connection(Protocol):
    def drop(self) -> None:
        """Ends it at once, without an answer."""


def most_connections(descriptors: int) -> int:
    """Return how many connections a process with this limit may have: the engine keeps a quarter, and at least 128."""
    return max(_FEWEST, min(_MOST, descriptors - max(_RESERVED, descriptors // 4)))


@dataclass(slots=True)
class ConnectionGuard:
    """The connections of one server. For its event loop alone."""

    most: int
    headers_within_s: float = HEADERS_WITHIN_S
    body_within_s: float = BODY_WITHIN_S
    _open: set[_Connection] = field(default_factory=set)
    _waiting: dict[_Connection, None] = field(default_factory=dict)  # without a whole request; the oldest is first

    def protocol(self, tls: ssl.SSLContext | None = None) -> Callable[..., asyncio.Protocol]:
        """Return what uvicorn makes for each connection. uvicorn itself is not told of `tls`."""
        return partial(GuardedProtocol, self) if tls is None else partial(Handshake, self, tls)

    def opened(self, one: _Connection) -> None:
        self._open.add(one)
        if len(self._open) > self.most:
            # One that waits for its next request has been served before, but is as good as any other now.
            (next(iter(self._waiting), one)).drop()

    def waits(self, one: _Connection) -> None:
        self._waiting[one] = None

    def has_request(self, one: _Connection) -> None:
        self._waiting.pop(one, None)

    def closed(self, one: _Connection) -> None:
        self._open.discard(one)
        self._waiting.pop(one, None)


class _Part(Enum):
    """What a parser reads of a request."""

    HEADERS = "headers"
    BODY = "body"
    DONE = "done"


class GuardedProtocol(HttpToolsProtocol):
    """One connection that has to send whole requests in time."""

    def __init__(self, guard: ConnectionGuard, **settings: Any) -> None:
        super().__init__(**settings)
        self._guard = guard
        self._part = _Part.HEADERS  # the part of a request that the parser reads next
        self._incomplete_bytes = 0  # received since the last part of a request that was whole
        self._unanswered = 0  # requests whose headers have come
        self._awaited: _Part | None = None  # the part that the client owes, and that has a deadline
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family == socket.AF_UNIX:
            self.app = with_peer(self.app, peer_uid(connected))
        self._guard.opened(self)
        if not transport.is_closing():
            self._look()

    def data_received(self, data: bytes) -> None:
        self._incomplete_bytes += len(data)
        super().data_received(data)
        # Headers, trailers and extensions of chunks are kept until they are whole.
        if self._incomplete_bytes > HEADERS_BYTES and not self.transport.is_closing():
            self.send_400_response(_TOO_LARGE)
        self._look()

    def on_message_begin(self) -> None:
        self._part = _Part.HEADERS
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._part, self._incomplete_bytes = _Part.BODY, 0
        hosts = size = 0
        for name, value in self.headers:
            hosts += name == b"host"
            size += len(name) + len(value) + 4  # ": " and the end of the line
        # Raised here, an error becomes the answer 400. Of two hosts, a proxy may have believed the other.
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise ValueError("a request names one host")
        if size + len(self.url) > HEADERS_BYTES:
            raise ValueError(_TOO_LARGE)
        self._unanswered += 1
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is _Part.HEADERS:  # trailers are of no use to an application that has begun
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._incomplete_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._incomplete_bytes = _Part.DONE, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Ends it at once, without an answer."""
        self._forget()
        if not self.transport.is_closing():
            self.transport.abort()

    def _look(self) -> None:
        """Begins a deadline when the client owes a part of a request, and ends it when the part has come."""
        awaited = None if self.transport.is_closing() else self._owed()
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if awaited is None:
            self._guard.has_request(self)
            return
        self._guard.waits(self)
        within_s = self._guard.body_within_s if awaited is _Part.BODY else self._guard.headers_within_s
        self._deadline = self.loop.call_later(within_s, self.drop)

    def _owed(self) -> _Part | None:
        """Return the part of a request that the server waits for; None while it has one to answer."""
        if self._part is _Part.BODY:
            return _Part.BODY if self._unanswered <= 1 else None  # of one behind another, nothing more is read
        return None if self._unanswered else _Part.HEADERS

    def _forget(self) -> None:
        self._guard.closed(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Handshake(asyncio.Protocol):
    """One connection until its TLS handshake is done; then a GuardedProtocol takes its place."""

    def __init__(self, guard: ConnectionGuard, tls: ssl.SSLContext, **settings: Any) -> None:
        self._guard, self._tls = guard, tls
        self._make_protocol = partial(GuardedProtocol, guard, **settings)
        self._connections = settings["server_state"].connections  # those that uvicorn ends at a shutdown
        self._early = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)
        self._guard.opened(self)
        if transport.is_closing():
            self._connections.discard(self)
        else:
            self._guard.waits(self)
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def data_received(self, data: bytes) -> None:
        """Keeps what came with the end of the handshake, before the task of it has its turn."""
        self._early += data

    def drop(self) -> None:
        """Ends it at once, without an answer."""
        self._guard.closed(self)
        self._transport.abort()

    shutdown = drop

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        secured = None
        try:
            if transport.is_closing():
                return  # dropped since: asyncio would wait for ever for a handshake to end
            with suppress(OSError):  # the client left, was too slow, or does not speak TLS
                secured = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=self._guard.headers_within_s,
                    ssl_shutdown_timeout=_GOODBYE_WITHIN_S,
                )
        finally:
            self._guard.closed(self)
            self._connections.discard(self)
        if secured is None or secured.is_closing():  # it is None where the connection was aborted meanwhile
            return
        protocol = self._make_protocol()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early and not secured.is_closing():
            protocol.data_received(self._early)


def peer_uid(connected: socket.socket) -> int:
    """Return who had made a connection over a unix socket when it was made: the kernel says so, not the peer."""
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    return int(_PEER_CREDENTIALS.unpack(packed)[1])


def with_peer(app: ASGIApp, uid: int) -> ASGIApp:
    """Return the application with the peer's user id in the scope of each request."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, PEER_UID: uid}, receive, send)

    return named
