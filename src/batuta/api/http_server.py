"""The HTTP server of every process of Batuta that serves: local server, operator and agent.

Its connections are bounded (`connection_guard.py`), with TLS as without.
"""

from __future__ import annotations

import resource
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import uvicorn
from starlette.types import ASGIApp

from batuta.api.connection_guard import ACCEPTED_AT_ONCE, ConnectionGuard, most_connections

_BACKLOG: Final = 1024
_GRACE_S: Final = 3
STALLED_AFTER_S: Final = 60.0
"""How long a client may leave unread what was sent to it: then its connection is ended. A stream of events is
resumed with `Last-Event-ID`. Until then it holds a chunk or two in memory, however much happens meanwhile."""


class HttpServer(uvicorn.Server):
    """Leaves signals to its caller.

    Its connections leave descriptors for the engine: by default as many as the limit of this process asks for.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        guard: ConnectionGuard | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        lifespan: Literal["on", "off"] = "off",
    ) -> None:
        """With `tls` it speaks HTTPS alone. The context may be given another certificate while it serves."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        guard = guard or ConnectionGuard(most_connections(soft))
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                access_log=False,
                log_config=None,
                server_header=False,
                http=guard.protocol(tls),  # type: ignore[arg-type]  # it wants a class, and calls it
                backlog=ACCEPTED_AT_ONCE,
                timeout_graceful_shutdown=_GRACE_S,
                lifespan=lifespan,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)  # what waits in the kernel costs no descriptor
        if sys.platform == "linux":
            for listener in (one for server in self.servers for one in server.sockets):
                if listener.family != socket.AF_UNIX:
                    # Connections inherit it. The kernel ends one whose client has read nothing for so long.
                    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED_AFTER_S * 1000))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def load_certificate(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Has a context show a certificate; raises OSError for one that cannot be used, and then shows the last one."""
    with tempfile.TemporaryDirectory() as folder:  # the ssl module takes files alone
        files = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for file, pem in zip(files, (chain, key), strict=True):
            file.touch(mode=0o600)
            file.write_bytes(pem)
        # A pair that does not fit would leave the context with half of it, so it is tried on another one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*files, password=_no_password)
        context.load_cert_chain(*files, password=_no_password)


def _no_password() -> str:
    raise OSError("the private key has a password: store one without")
