"""What an operator that does not lead does with questions: it passes them on to the one that leads.

A Service spreads requests over all operators, and only the leader knows the answers. Where it is, the cluster
says: its Lease names who leads, and that is the name of a pod, with the number of its process behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx2
from starlette.types import Receive, Scope, Send

from batuta.api.door import MOST_BODY_BYTES
from batuta.api.problems import Refusal
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError
from batuta.backends.kube.client.kinds import POD

RELAYED = b"batuta-relayed"
"""A header of requests that were passed on: once is enough."""
_CONNECT_S = 5.0
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"content-length"),
    )
)


class Relay:
    """An ASGI application. `leader` names who leads, as the Lease has it; empty while nobody is known."""

    def __init__(self, api: Api, namespace: str, port: int, leader: Callable[[], str]) -> None:
        self._api = api
        self._namespace = namespace
        self._port = port
        self._leader = leader
        self._found: tuple[str, str] = ("", "")
        """Who led when it was looked for last, and its address."""
        # It answers as long as it likes: a stream of events has no end.
        limits = httpx2.Timeout(None, connect=_CONNECT_S)
        self._http = httpx2.AsyncClient(timeout=limits, trust_env=False, follow_redirects=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(name == RELAYED for name, _ in scope["headers"]):
            raise _nobody("this operator does not lead any more")
        url = await self._url_of(scope)
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
        body = await _body(receive)
        asked = self._http.build_request(
            scope["method"], url, headers=[*headers, (RELAYED, b"1")], content=body or None
        )
        passing = asyncio.create_task(self._pass_on(asked, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            # Who does not listen any more is not sent a stream that never ends.
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            for task in (passing, leaving):
                task.cancel()

    async def _pass_on(self, asked: httpx2.Request, send: Send) -> None:
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx2.TransportError as error:
            self._found = ("", "")
            raise _nobody(f"{self._leader()} leads, and does not answer") from error
        try:
            await _pass_back(answer, send)
        finally:
            await answer.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    async def _url_of(self, scope: Scope) -> str:
        path, query = scope["raw_path"].decode("ascii"), scope["query_string"].decode("ascii")
        return f"http://{await self._address()}:{self._port}{path}{'?' if query else ''}{query}"

    async def _address(self) -> str:
        leader = self._leader()
        if not leader:
            raise _nobody("no operator leads yet")
        if self._found[0] != leader:
            self._found = (leader, await self._look_up(leader))
        return self._found[1]

    async def _look_up(self, leader: str) -> str:
        pod = leader.rpartition("-")[0]
        try:
            address = (await self._api.get(POD, pod, self._namespace)).status.pod_ip if pod else ""
        except ApiError as error:
            raise _nobody(f"{leader} leads, and cannot be found: {error}") from error
        if not address:
            raise _nobody(f"{leader} leads, and has no address")
        return f"[{address}]" if ":" in address else address


def _nobody(why: str) -> Refusal:
    return Refusal(503, why, headers={"Retry-After": "2"})


async def _body(receive: Receive) -> bytes:
    """All of it, if it is not larger than the leader would have it."""
    pieces, size, has_more = list[bytes](), 0, True
    while has_more:
        message = await receive()
        if message["type"] != "http.request":
            break
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > MOST_BODY_BYTES:
            raise Refusal(413, f"a request has at most {MOST_BODY_BYTES >> 20} MiB")
        has_more = message.get("more_body", False)
    return b"".join(pieces)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _pass_back(answer: httpx2.Response, send: Send) -> None:
    headers = [(name.lower(), value) for name, value in answer.headers.raw]
    headers = [
        (name, value) for name, value in headers if name not in _HOP_BY_HOP or name == b"content-length"
    ]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    with suppress(httpx2.TransportError):  # a leader that goes leaves an answer without an end
        async for piece in answer.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
