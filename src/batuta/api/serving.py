"""The app on a socket: uvicorn, told about our limits, and how long-lived answers end."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from batuta.api.desk import end_streams

_HEADERS_BYTES = 32 << 10
_GRACE_S = 3


class ApiServer(uvicorn.Server):
    """Ends streams of events and logs first: uvicorn waits for answers that would never end."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                access_log=False,
                log_config=None,
                server_header=False,
                h11_max_incomplete_event_size=_HEADERS_BYTES,
                timeout_graceful_shutdown=_GRACE_S,
                lifespan="on",
            )
        )
        self._api = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_streams(self._api)
        await super().shutdown(sockets)
