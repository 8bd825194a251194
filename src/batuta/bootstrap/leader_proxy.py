"""Passes requests on to the operator that leads.

A Service spreads requests over all operators, and only the leader has the answers. The Lease names the
leader's pod, with the number of its process behind it. With TLS the pod has to show the certificate that operators
share before it is sent anything: the address alone proves nothing, and requests carry tokens.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing, suppress

import httpx2
from starlette.types import Receive, Scope, Send

from batuta.api.middleware import MOST_BODY_BYTES
from batuta.api.responses import HttpProblem
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import POD
from batuta.bootstrap.operator_tls import ServerTls

PROXIED = b"batuta-relayed"  # a header of requests that were passed on: once is enough
_CONNECT_S = 5.0
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"content-length"),
    )
)


class LeaderProxy:
    """An ASGI application. `leader` returns the Lease's holder; empty while it is not known."""

    def __init__(
        self, api: Api, namespace: str, port: int, leader: Callable[[], str], tls: ServerTls | None = None
    ) -> None:
        self._api, self._namespace, self._port, self._leader, self._tls = api, namespace, port, leader, tls
        self._found = ("", "")  # the leader when it was looked for last, and its address
        self._clients = AsyncExitStack()
        self._http: httpx2.AsyncClient | None = None
        self._trust: ssl.SSLContext | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == PROXIED for name, _ in scope["headers"]):
            raise _no_leader("this operator does not lead any more")
        url = await self._url_of(scope)
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
        body = await _body(receive)
        http = await self._client()
        asked = http.build_request(
            scope["method"],
            url,
            headers=[*headers, (PROXIED, b"1")],
            content=body or None,
            # The leader is known by the name of the Service, and found by the address of its pod.
            extensions={} if self._tls is None else {"sni_hostname": self._tls.server_name},
        )
        passing = asyncio.create_task(self._pass_on(http, asked, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            # Who does not listen any more is not sent a stream that never ends.
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, leaving):
                task.cancel()

    async def _client(self) -> httpx2.AsyncClient:
        """The client that believes whom this operator believes now. Answers of the last one go on."""
        trust = None if self._tls is None else self._tls.trust
        if self._http is None or trust is not self._trust:
            # It answers as long as it likes: a stream of events has no end.
            limits = httpx2.Timeout(None, connect=_CONNECT_S)
            http = httpx2.AsyncClient(timeout=limits, trust_env=False, verify=trust or False)  # False: it is plain HTTP
            self._http, self._trust = await self._clients.enter_async_context(http), trust
        return self._http

    async def _pass_on(self, http: httpx2.AsyncClient, asked: httpx2.Request, send: Send) -> None:
        try:
            answer = await http.send(asked, stream=True)
        except httpx2.TransportError as error:
            self._found = ("", "")
            why = ", and does not answer"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                why = f", and another program answers at its address, or one that this operator does not know: {error}"
            raise _no_leader(f"{self._leader()} leads{why}") from error
        async with aclosing(answer):
            headers = [(name.lower(), value) for name, value in answer.headers.raw]
            headers = [one for one in headers if one[0] not in _HOP_BY_HOP or one[0] == b"content-length"]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            with suppress(httpx2.TransportError):  # a leader that goes leaves an answer without an end
                async for piece in answer.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        await self._clients.aclose()

    async def _url_of(self, scope: Scope) -> str:
        leader = self._leader()
        if not leader:
            raise _no_leader("no operator leads yet")
        if self._found[0] != leader:
            self._found = (leader, await self._look_up(leader))
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self._found[1]}:{self._port}{path}{'?' if query else ''}{query}"

    async def _look_up(self, leader: str) -> str:
        pod = leader.rpartition("-")[0]
        try:
            address = (await self._api.get(POD, pod, self._namespace)).status.pod_ip if pod else ""
        except ApiError as error:
            raise _no_leader(f"{leader} leads, and cannot be found: {error}") from error
        if not address:
            raise _no_leader(f"{leader} leads, and has no address")
        return f"[{address}]" if ":" in address else address


def _no_leader(why: str) -> HttpProblem:
    return HttpProblem(503, why, headers={"Retry-After": "2"})


async def _body(receive: Receive) -> bytes:
    """All of it, if it is not larger than the leader would have it."""
    body, has_more = bytearray(), True
    while has_more and (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise HttpProblem(413, f"a request has at most {MOST_BODY_BYTES >> 20} MiB")
        has_more = message.get("more_body", False)
    return bytes(body)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
