"""The port of an operator: probes and metrics from the first moment on, and the API once it leads."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from batuta.api.problems import Refusal, response_of

_GRACE_S = 3
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class Front:
    """Answers probes itself, metrics by a function; everything else is for the API."""

    def __init__(
        self,
        healthy: Callable[[], str],
        metrics: Callable[[Scope], Awaitable[str]],
        find_app: Callable[[], Awaitable[ASGIApp]],
    ) -> None:
        """`healthy` says what is wrong; empty when nothing is. The others may refuse."""
        self._healthy = healthy
        self._metrics = metrics
        self._find_app = find_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            match scope["path"]:
                case "/healthz":
                    trouble = self._healthy()
                    await _answer(send, 503 if trouble else 200, trouble or "ok")
                case "/readyz":
                    await _answer(send, 200, "ok")
                case "/metrics":
                    await _answer(send, 200, await self._metrics(scope), _METRICS)
                case _:
                    app = await self._find_app()
                    await app(scope, receive, send)
        except Refusal as refusal:
            await response_of(refusal)(scope, receive, send)


async def _answer(send: Send, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
    headers = [(b"content-type", kind.encode())]
    start: MutableMapping[str, Any] = {"type": "http.response.start", "status": status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})


class FrontServer(uvicorn.Server):
    """Leaves signals to the operator."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def front_server(front: Front, host: str, port: int) -> tuple[FrontServer, socket.socket]:
    """A server and its socket, bound at once: a port that is taken is found out before anything else."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    listener.listen(128)
    config = uvicorn.Config(
        front,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return FrontServer(config), listener
