"""Async stories told to a real API server: with a client, within a time, and to the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.informer import Change
from batuta.backends.kube.client.transport import DEFAULT_LIMITS, Limits

WITHIN_S = 120.0


def tell(story: Callable[[Api], Awaitable[None]], kubeconfig: Path, limits: Limits = DEFAULT_LIMITS) -> None:
    """Runs the story with a client for this kubeconfig."""

    async def run() -> None:
        async with asyncio.timeout(WITHIN_S), Api(await find_access(kubeconfig), limits) as api:
            await story(api)

    asyncio.run(run())


async def until(look: Callable[[], Any], what: str, within_s: float = 60.0) -> None:
    """Returns when this is so."""
    try:
        async with asyncio.timeout(within_s):
            while not look():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {within_s} s for {what}") from None


class Heard:
    """Everything that an informer told, in order."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Change[Any]]] = []

    def __call__(self, changes: Sequence[Change[Any]]) -> None:
        self.batches.append(changes)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(change.did.value, change.object.metadata.name) for batch in self.batches for change in batch]


class running:  # noqa: N801  (used as a function)
    """Runs something in the background for as long as the block lasts; what it raises is raised here."""

    def __init__(self, *endless: Awaitable[None]) -> None:
        self._endless = endless

    async def __aenter__(self) -> list["asyncio.Task[None]"]:
        self._tasks = [asyncio.ensure_future(each) for each in self._endless]
        return self._tasks

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for end in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(end, Exception):
                logging.getLogger(__name__).error("in the background", exc_info=end)
                raise end


def config_map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def pod(name: str, **labels: str) -> dict[str, Any]:
    """A pod that some scheduler should bind."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"schedulerName": "batuta", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}
