"""Sends requests to one API server: pooled connections, limits, retries with backoff, counters."""

from __future__ import annotations

import asyncio
import math
import random
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from batuta.backends.kube.client.access import USER_AGENT, Access
from batuta.backends.kube.client.errors import ApiError, TooManyRequests, Unauthorized, Unavailable, error_of
from batuta.backends.kube.client.http1 import HttpPool

JSON: Final = "application/json"
_READS: Final = frozenset({"GET", "HEAD"})
_LOOPBACK: Final = ("127.", "localhost", "::1")
_SOCKETS_OF_REQUEST: Final[ContextVar[list[socket.socket]]] = ContextVar("sockets of the request")
_CLOSED_WITHIN_S: Final = 1.0


class RateLimit:
    """Lets `burst` requests through at once and `per_s` a second in the long run.

    The defaults are generous: they only keep a bug of ours from flooding the API server.
    """

    def __init__(self, per_s: float = 1000.0, burst: float = 5000.0) -> None:
        if per_s <= 0 or burst < 1:
            raise ValueError("a rate limit needs a positive rate and a burst of at least one")
        self.per_s = per_s
        self.burst = burst
        self.waited_s = 0.0  # how long requests have waited because of it, in all
        self._left = burst
        self._counted_at_s = -math.inf

    async def take(self, count: float = 1.0) -> None:
        """Returns when the next request (or so many bytes) may be sent, in the order of the calls."""
        self._refill(time.monotonic())
        self._left -= count
        if self._left < 0.0:
            wait_s = -self._left / self.per_s
            self.waited_s += wait_s
            await asyncio.sleep(wait_s)

    def may(self, now_s: float) -> bool:
        """Whether one more request may be sent now; if so, it counts."""
        self._refill(now_s)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def _refill(self, now_s: float) -> None:
        self._left = min(self.burst, self._left + max(0.0, now_s - self._counted_at_s) * self.per_s)
        self._counted_at_s = now_s


def backoff_delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """How long to wait after so many failures in a row: twice as long after each.

    It is drawn at random from the upper half of its range, so that many clients do not come back together.
    """
    top_s = min(longest_s, first_s * 2.0 ** min(failures - 1, 30))
    return top_s * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Backoff:
    """Counts failures in a row, and waits longer after each."""

    first_s: float = 0.2
    longest_s: float = 10.0
    failures: int = 0

    def next_s(self) -> float:
        self.failures += 1
        return backoff_delay_s(self.failures, self.first_s, self.longest_s)

    def reset(self) -> None:
        self.failures = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, and how many at once."""

    connect_s: float = 5.0
    request_s: float = 30.0
    list_s: float = 120.0
    in_flight: int = 64
    attempts: int = 4


DEFAULT_LIMITS: Final = Limits()


class _GivenUp:
    """Closes the sockets of requests that are given up before their answer begins.

    asyncio loses sight of a connection whose making is cancelled, or takes leave politely of a server that
    need not answer: its socket would stay open. So the socket is shut down here, and its transport, which
    sees that, closes it.
    """

    def __init__(self) -> None:
        self._closing: list[socket.socket] = []

    @staticmethod
    def make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        _SOCKETS_OF_REQUEST.get([]).append(made)
        return made

    @contextmanager
    def closed(self) -> Iterator[None]:
        """While an answer is waited for; a connection that was there before is no concern of this."""
        made: list[socket.socket] = []
        token = _SOCKETS_OF_REQUEST.set(made)
        try:
            yield
        except BaseException:
            for one in made:
                with suppress(OSError):  # it is not connected, or closed already
                    one.shutdown(socket.SHUT_RDWR)
            self._closing = [one for one in (*self._closing, *made) if one.fileno() >= 0]
            raise
        finally:
            _SOCKETS_OF_REQUEST.reset(token)

    async def wait_closed(self) -> None:
        """Returns when all are closed, which takes a turn or two of the event loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSED_WITHIN_S):
                while any(one.fileno() >= 0 for one in self._closing):
                    await asyncio.sleep(0)
        self._closing.clear()


class Transport:
    """One API server, many requests. An async context manager; for one event loop."""

    def __init__(self, access: Access, limits: Limits = DEFAULT_LIMITS, rate: RateLimit | None = None) -> None:
        self.access = access
        self.limits = limits
        self.rate = rate or RateLimit()
        self.requests: Counter[tuple[str, int]] = Counter()
        """Answers by verb and HTTP status; status 0 is a request without an answer."""
        self.date = ""  # the server's time, as its last answer to a read had it
        self._heads: dict[str | None, bytes] = {}
        self._authorization = ""
        # Large answers come compressed, unless the API server is on this machine.
        is_near = (urlsplit(access.server).hostname or "").startswith(_LOOPBACK)
        self._encoding = "identity" if is_near else "gzip"
        self._exchanges: HttpPool | None = None
        self._sessions: list[aiohttp.ClientSession] = []
        self._given_up = _GivenUp()

    async def __aenter__(self) -> Self:
        limits, access = self.limits, self.access
        if access.proxy is None:
            self._exchanges = HttpPool(
                access.server, access.ssl, access.tls_server_name, limits.in_flight, limits.connect_s
            )
        no_limit = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=limits.connect_s)
        # Streams have connections of their own: watches that last for minutes must not use up the pool.
        for in_flight, buffer in ((limits.in_flight, 2**16), (0, 2**18)):
            self._sessions.append(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        limit=in_flight,
                        ssl=access.ssl or True,
                        keepalive_timeout=60.0,
                        ttl_dns_cache=30,
                        socket_factory=self._given_up.make_socket,
                    ),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=no_limit,
                    read_bufsize=buffer,
                )
            )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._exchanges is not None:
            await self._exchanges.close()
        for session in self._sessions:
            await session.close()
        self._sessions.clear()
        await self._given_up.wait_closed()

    async def request(
        self,
        verb: str,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str | None = JSON,
        again: bool | None = None,
        limit_s: float | None = None,
    ) -> bytes:
        """The body of a successful answer. `path` may carry a query, and is encoded already.

        `again`: whether doing it twice is as good as once (by default: when it only reads). Then failures are
        tried again; a request that the server refused because it is busy is tried again in any case.
        """
        if again is None:
            again = method in _READS
        try:
            async with asyncio.timeout(limit_s or self.limits.request_s):
                return await self._tried(verb, method, path, body, content_type, again)
        except TimeoutError as error:
            self.requests[verb, 0] += 1
            raise Unavailable(f"{self._named(method, path)}: no answer in time") from error

    @asynccontextmanager
    async def stream(self, verb: str, path: str, silence_s: float | None = None) -> AsyncIterator[aiohttp.StreamReader]:
        """The body of an answer as it comes. Ends with `Unavailable` after `silence_s` without a byte."""
        await self.rate.take()
        await self._refresh_headers()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_s, sock_read=silence_s)
        try:
            async with await self._begin(self._sessions[1], "GET", path, timeout=timeout) as answer:
                self.requests[verb, answer.status] += 1
                if answer.status != 200:
                    raise self._refused(answer.status, await answer.read(), answer.headers.get("Retry-After"))
                try:
                    yield answer.content
                finally:
                    _drop(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not isinstance(error, aiohttp.ClientPayloadError):
                self.requests[verb, 0] += 1
            raise self._unanswered("GET", path, error) from error

    async def _tried(
        self, verb: str, method: str, path: str, body: bytes | None, content_type: str | None, again: bool
    ) -> bytes:
        failures = 0
        while True:
            try:
                return await self._once(verb, method, path, body, content_type)
            except (Unauthorized, TooManyRequests, Unavailable) as error:
                failures += 1
                if not self._worth_another(error, failures, again):
                    raise
                # A refused credential is tried again at once: by now there may be a fresh one.
                wait_s = 0.0 if isinstance(error, Unauthorized) else backoff_delay_s(failures, 0.1, 5.0)
                await asyncio.sleep(max(wait_s, error.retry_after_s or 0.0))

    def _worth_another(self, error: ApiError, failures: int, again: bool) -> bool:
        if isinstance(error, Unauthorized):
            return failures == 1
        if isinstance(error, TooManyRequests):  # the server did not even try
            again = not error.has_cause("DisruptionBudget")
        return failures < self.limits.attempts and again

    async def _once(self, verb: str, method: str, path: str, body: bytes | None, content_type: str | None) -> bytes:
        await self.rate.take()
        await self._refresh_headers()
        try:
            if body is not None and self._exchanges is not None:
                head = self._head_for(content_type)
                status, headers, got = await self._exchanges.send(method, path, head, body)
                retry_after = headers.get("retry-after")
            else:
                status, retry_after, got = await self._by_aiohttp(method, path, body, content_type)
        except (aiohttp.ClientError, OSError) as error:
            self.requests[verb, 0] += 1
            raise self._unanswered(method, path, error) from error
        self.requests[verb, status] += 1
        if status >= 300:
            raise self._refused(status, got, retry_after)
        return got

    async def _by_aiohttp(
        self, method: str, path: str, body: bytes | None, content_type: str | None
    ) -> tuple[int, str | None, bytes]:
        sent: dict[str, Any] = {} if body is None else {"data": body, "content_type": content_type}
        async with await self._begin(self._sessions[0], method, path, **sent) as answer:
            got = await answer.read()
        self.date = answer.headers.get("Date", "")
        return answer.status, answer.headers.get("Retry-After"), got

    async def _begin(
        self, session: aiohttp.ClientSession, method: str, path: str, content_type: str | None = None, **options: Any
    ) -> aiohttp.ClientResponse:
        with self._given_up.closed():
            return await session.request(
                method,
                URL(f"{self.access.server}{path}", encoded=True),
                headers=self._headers_for(content_type),
                proxy=self.access.proxy,
                server_hostname=self.access.tls_server_name,
                allow_redirects=False,
                **options,
            )

    async def _refresh_headers(self) -> None:
        authorization = await self.access.credentials.authorization()
        if authorization != self._authorization:
            self._heads.clear()
            self._authorization = authorization

    def _headers_for(self, content_type: str | None) -> CIMultiDict[str]:
        headers = CIMultiDict(self.access.headers)
        headers["Accept"] = JSON
        headers["Accept-Encoding"] = self._encoding
        headers["User-Agent"] = USER_AGENT
        if content_type:
            headers["Content-Type"] = content_type
        if self._authorization:
            headers["Authorization"] = self._authorization
        return headers

    def _head_for(self, content_type: str | None) -> bytes:
        """The same headers as lines, for a request whose answer is small and comes as it is.

        They are made once for each content type, until the credentials change.
        """
        head = self._heads.get(content_type)
        if head is None:
            headers = {**self._headers_for(content_type), "Accept-Encoding": "identity"}
            for name, value in headers.items():
                if not f"{name}{value}".isprintable():
                    raise Unauthorized(f"the header {name} would have more than one line")
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
            self._heads[content_type] = head
        return head

    def _refused(self, status: int, body: bytes, retry_after: str | None) -> ApiError:
        error = error_of(status, body, retry_after)
        if isinstance(error, Unauthorized):
            self.access.credentials.reject(self._authorization)
            error.message = f"the API server at {self.access.server} does not accept the credentials"
            if self.access.source:
                error.message += f" of {self.access.source}"
            error.args = (error.message,)
        return error

    def _unanswered(self, method: str, path: str, error: Exception) -> Unavailable:
        what = str(error) or type(error).__name__
        certificate = getattr(error, "certificate_error", error)
        if isinstance(certificate, ssl.SSLCertVerificationError):
            reason = certificate.verify_message or what
            text = f"the certificate of {self.access.server} is not accepted: {reason}"
        elif isinstance(error, aiohttp.ClientConnectorError | ssl.SSLError | ConnectionRefusedError | socket.gaierror):
            text = f"cannot reach the API server at {self.access.server}: {what}"
        else:
            text = f"{self._named(method, path)}: the connection broke: {what}"
        return Unavailable(text)

    def _named(self, method: str, path: str) -> str:
        return f"{method} {self.access.server}{path.partition('?')[0]}"


def _drop(answer: aiohttp.ClientResponse) -> None:
    """Ends a connection in the middle of an answer, without the farewell of TLS that may take its time."""
    connection = answer.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
