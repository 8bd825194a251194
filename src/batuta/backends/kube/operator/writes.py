"""Writes to the API server: asked for by the engine's side, done by the other, one per object at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Unavailable
from batuta.backends.kube.operator.inbox import Inbox, Written

Doing: TypeAlias = Callable[[Api], Awaitable[Any]]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0


@dataclass(slots=True)
class _Trouble:
    """A write that failed, and when it may be tried again."""

    pause_s: float
    due_s: float


class Writes:
    """The engine's side. Whoever finds something to write asks again and again; it is done when it can be."""

    def __init__(self, post: Callable[[list[tuple[str, Doing]]], None], seed: int = 0) -> None:
        self._post = post
        self._under_way: set[str] = set()
        self._trouble: dict[str, _Trouble] = {}
        self._waiting: dict[str, float] = {}
        """By key: when it may be tried again, until somebody was told."""
        self._asked: list[tuple[str, Doing]] = []
        self._random = random.Random(seed)
        self.failed = 0

    def ask(self, key: str, do: Doing, now_s: float) -> bool:
        """Begins with a write, unless one of the same key is under way or has just failed."""
        if key in self._under_way:
            return False
        trouble = self._trouble.get(key)
        if trouble is not None and now_s < trouble.due_s:
            return False
        self._under_way.add(key)
        self._asked.append((key, do))
        return True

    def is_under_way(self, key: str) -> bool:
        return key in self._under_way

    def send(self) -> None:
        """Hands over what was asked for since the last time, all at once."""
        if self._asked:
            asked, self._asked = self._asked, []
            self._post(asked)

    def heard(self, written: Written, now_s: float) -> None:
        """Takes in an answer. What failed may be tried again after a pause that grows."""
        self._under_way.discard(written.key)
        if written.error is None:
            self._trouble.pop(written.key, None)
            return
        self.failed += 1
        before = self._trouble.get(written.key)
        pause_s = min(before.pause_s * 2, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
        due_s = now_s + pause_s * self._random.uniform(0.8, 1.2)
        self._trouble[written.key] = _Trouble(pause_s, due_s)
        self._waiting[written.key] = due_s

    def forget(self, key: str) -> None:
        """The object is gone, and so is the trouble with it."""
        self._trouble.pop(key, None)
        self._waiting.pop(key, None)

    def next_s(self) -> float:
        """When the first write that failed may be tried again."""
        return min(self._waiting.values(), default=float("inf"))

    def due(self, now_s: float) -> list[str]:
        """Writes that failed and may be tried again now, each once: whoever wants them asks again."""
        due = [key for key, due_s in self._waiting.items() if due_s <= now_s]
        for key in due:
            del self._waiting[key]
        return due


class Clerks:
    """The other side: some coroutines that take writes one by one, so that so many are in flight at most."""

    def __init__(self, api: Api, inbox: Inbox, hands: int = 32) -> None:
        self._api = api
        self._inbox = inbox
        self._hands = hands
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Queue[tuple[str, Doing]] = asyncio.Queue()

    def post(self, asked: list[tuple[str, Doing]]) -> None:
        """Takes writes over from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._take, asked)

    def _take(self, asked: list[tuple[str, Doing]]) -> None:
        for one in asked:
            self._waiting.put_nowait(one)

    async def run(self) -> None:
        """Works until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._hands):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key, do = await self._waiting.get()
            try:
                await do(self._api)
            except ApiError as error:
                self._inbox.put(Written(key, error))
            except (TimeoutError, OSError) as error:
                self._inbox.put(Written(key, Unavailable(str(error) or repr(error))))
            else:
                self._inbox.put(Written(key, None))
