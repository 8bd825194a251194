"""A connection to the Kubernetes API server for synchronous code, with its errors translated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from batuta.backends.kube.client import errors as kube
from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.transport import Limits
from batuta.client.errors import ApiError, ClientError, NoServerError
from batuta.spec.problem import Problem

T = TypeVar("T")

MANAGER = "batuta-cli"  # whose fields they are that a verb writes
LIMITS = Limits(connect_s=5.0, request_s=20.0, attempts=3, in_flight=8)  # a person waits: three tries, then the reason
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

        with translated_errors():
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
            self.run(lambda _: asyncio.wait((fetching,)))

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


NO_DEFINITION = "this cluster does not know UnifiedJobs: `batuta install --apply` installs Batuta there"


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of the Kubernetes client as the errors that the command line shows."""
    try:
        yield
    except kube.AccessError as error:
        raise NoServerError(str(error)) from error
    except kube.Unavailable as error:
        raise NoServerError(error.message) from error
    except kube.Forbidden as error:
        raise ApiError(403, "forbidden", _forbidden(error)) from error
    except kube.NotFound as error:
        raise ClientError(_missing(error)) from error
    except kube.Invalid as error:
        causes = [f"{cause.field}: {cause.message}".removeprefix(": ") for cause in error.causes if cause.message]
        raise ApiError(422, "refused", error.message, list(map(Problem, causes))) from error
    except kube.Conflict as error:
        raise ClientError(f"it was changed meanwhile, try again: {error.message}") from error
    except kube.ApiError as error:
        raise ClientError(error.message) from error


def _forbidden(error: kube.Forbidden) -> str:
    """The server's sentence names the user, the verb and the place; the way out is ours."""
    where = "-n NAMESPACE names one where you may, or " if "cluster scope" in error.message else ""
    return f"{error.message} ({where}ask for the role batuta-view or batuta-edit)"


def _missing(error: kube.NotFound) -> str:
    if not error.details.kind:
        return NO_DEFINITION  # no such path at all
    if error.details.kind == "namespaces":
        return f"there is no namespace {error.details.name}"
    return error.message
