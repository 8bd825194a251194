"""An API server for ordinary code: an event loop that turns while somebody waits for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.find import find_access
from batuta.backends.kube.client.transport import Limits
from batuta.client.kube.faults import said_plainly

T = TypeVar("T")

MANAGER = "batuta-cli"
"""Whose fields they are that a verb writes."""
LIMITS = Limits(connect_s=5.0, request_s=20.0, attempts=3, in_flight=8)
"""A person waits: three tries, then the reason."""
_AHEAD = 64


class Session:
    """Opens nothing before it is used. For one thread."""

    def __init__(self, kubeconfig: Path | None, context: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._runner = asyncio.Runner()
        self._api: Api | None = None

    def close(self) -> None:
        if self._api is not None:
            api, self._api = self._api, None
            self._runner.run(api.__aexit__(None, None, None))
        self._runner.close()

    def run(self, ask: Callable[[Api], Awaitable[T]]) -> T:
        """The answer. Ctrl-C ends the question, and is raised here."""

        async def asked() -> T:
            return await ask(await self._open())

        with said_plainly():
            return self._runner.run(asked())

    def stream(self, pieces: Callable[[Api], AsyncIterator[T]]) -> Iterator[T]:
        """The pieces as they come. Nothing is read ahead of a slow reader but a few of them."""
        arrived: asyncio.Queue[T] = asyncio.Queue(_AHEAD)

        async def fetch(api: Api) -> None:
            async for piece in pieces(api):
                await arrived.put(piece)

        async def start(api: Api) -> asyncio.Task[None]:
            return asyncio.create_task(fetch(api))

        fetching = self.run(start)
        try:
            while True:
                found = self.run(lambda _: _next(arrived, fetching))
                if not found:
                    return
                yield from found
        finally:
            fetching.cancel()
            self.run(lambda _: _ended(fetching))

    async def _open(self) -> Api:
        if self._api is None:
            access = await find_access(self._kubeconfig, self._context)
            self._api = await Api(access, LIMITS, manager=MANAGER).__aenter__()
        return self._api


async def _next(arrived: asyncio.Queue[T], fetching: asyncio.Task[None]) -> list[T]:
    """The next piece; nothing after the last one. Raises what ended the stream."""
    if arrived.empty() and not fetching.done():
        getting = asyncio.ensure_future(arrived.get())
        try:
            await asyncio.wait((getting, fetching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not getting.done():
                getting.cancel()
        if getting.done() and not getting.cancelled():
            return [getting.result()]
    if not arrived.empty():
        return [arrived.get_nowait()]
    await fetching
    return []


async def _ended(fetching: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError, Exception):
        await fetching
