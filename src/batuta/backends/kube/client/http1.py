"""Short requests with the least CPU: plain HTTP/1.1 on asyncio's transports, one at a time on a connection.

A bind through here takes less than half of the CPU that it takes through aiohttp. It knows what an API server
does and no more: answers with a length or in chunks, no redirects, no compression, no proxy. Everything else
(large answers, streams, proxies) goes through aiohttp.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Final, NamedTuple
from urllib.parse import urlsplit

_IDLE_S: Final = 60.0
"""An API server closes connections that were idle for 90 s; one that we are about to use should not be."""
_LONGEST_HEAD: Final = 65_536


class HttpResponse(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class MalformedResponse(ConnectionError):
    """What came back is not HTTP as we know it."""


class _Connection(asyncio.Protocol):
    """One connection. `answer` is the request that waits, if any."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[HttpResponse] | None = None
        self.used_at_s = 0.0
        self._buffer = b""

    @property
    def open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        if self.answer is None:  # there was no request
            self.abort()
            return
        try:
            read = parse_response(self._buffer)
        except (ValueError, IndexError) as error:
            self._end(MalformedResponse(f"not an answer of an API server: {error}"))
            return
        if read is None:
            return
        answer, stays, length = read
        if not stays or length != len(self._buffer):
            self.abort()
        self._buffer = b""
        waiting, self.answer = self.answer, None
        if not waiting.done():
            waiting.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the API server closed the connection"))

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _end(self, error: Exception) -> None:
        self.abort()
        waiting, self.answer = self.answer, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)


class HttpPool:
    """Connections to one server, at most so many at once."""

    def __init__(
        self, server: str, tls: ssl.SSLContext | None, tls_name: str | None, most: int, connect_s: float
    ) -> None:
        parts = urlsplit(server)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if tls else 80)
        self._prefix = parts.path.rstrip("/")
        self._host_line = f"Host: {parts.netloc.rpartition('@')[2]}\r\n".encode()
        self._tls = tls
        self._tls_name = (tls_name or self._host) if tls else None
        self._connect_s = connect_s
        self._room = asyncio.Semaphore(most)
        self._idle: list[_Connection] = []

    async def send(self, method: str, path: str, head: bytes, body: bytes) -> HttpResponse:
        """The answer to a request. `head` are header lines, each with its end."""
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"not an encoded path: {path!r}")
        start = f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode()
        length = f"Content-Length: {len(body)}\r\n\r\n".encode()
        async with self._room:
            connection = self._waiting() or await self._connect()
            assert connection.transport is not None
            connection.answer = asyncio.get_running_loop().create_future()
            connection.transport.write(b"".join((start, self._host_line, head, length, body)))
            try:
                answer = await connection.answer
            except BaseException:  # its answer may still come, and must not be taken for another's
                connection.abort()
                raise
            if connection.open:
                connection.used_at_s = time.monotonic()
                self._idle.append(connection)
            else:
                connection.abort()  # the server takes its leave, and waits for ours
            return answer

    async def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close in the next turn of the loop

    def _waiting(self) -> _Connection | None:
        """The connection that was used last: those that are not needed any more grow old."""
        oldest_s = time.monotonic() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.used_at_s >= oldest_s:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        """Makes the socket's transport first and adds TLS to it: so it is in our hands at any moment.

        asyncio's own way loses sight of it when it is cancelled between the two, or takes leave politely of
        a server that need not answer; the socket is not closed then.
        """
        loop, connection = asyncio.get_running_loop(), _Connection()
        try:
            async with asyncio.timeout(self._connect_s):
                plain, _ = await loop.create_connection(lambda: connection, self._host, self._port)
                if self._tls is not None:
                    secure = await loop.start_tls(plain, connection, self._tls, server_hostname=self._tls_name)
                    connection.transport = secure
        except BaseException:
            connection.abort()
            raise
        return connection


def parse_response(data: bytes) -> tuple[HttpResponse, bool, int] | None:
    """The answer at the beginning, whether its connection stays open, and its length; None: there is more."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > _LONGEST_HEAD:
            raise ValueError("its head does not end")
        return None
    head = data[:end].decode("latin-1")
    start, _, lines = head.partition("\r\n")
    version, status_text = start[:9], start[9:12]
    if version != "HTTP/1.1 ":
        raise ValueError(start[:40])
    status, begin = int(status_text), end + 4
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines.split("\r\n"))}
    stays = headers.get("connection", "").lower() != "close"
    if 100 <= status < 200:  # only announces the answer
        read = parse_response(data[begin:])
        return None if read is None else (read[0], read[1], read[2] + begin)
    if status in (204, 304):
        return HttpResponse(status, headers, b""), stays, begin
    if "chunked" in headers.get("transfer-encoding", "").lower():
        chunks = _chunks(data, begin)
        return None if chunks is None else (HttpResponse(status, headers, chunks[0]), stays, chunks[1])
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if length < 0:
        raise ValueError("it has no length")
    if len(data) < begin + length:
        return None
    return HttpResponse(status, headers, data[begin : begin + length]), stays, begin + length


def _chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    """A body in chunks, and where it ends; None: not all is here."""
    found: list[bytes] = []
    while (line := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line].partition(b";")[0], 16)
        at = line + 2 + size
        if len(data) < at + 2:
            return None
        if data[at : at + 2] != b"\r\n":
            raise ValueError("a chunk has another length than it says")
        if size == 0:
            return b"".join(found), at + 2
        found.append(data[line + 2 : at])
        at += 2
    return None
