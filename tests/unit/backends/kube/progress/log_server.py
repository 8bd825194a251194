"""The log endpoint of an API server, and a reader of it: what is printed, cut and refused is up to a test."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from batuta.backends.kube import names
from batuta.backends.kube.client.access import Access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.progress.log_lines import LogReport, LogSource, TrainingReport
from batuta.backends.kube.progress.log_reader import LogReaders, ReadingPace
from tests.unit.backends.kube.client.serving import serving

QUICK = ReadingPace(pause_s=0.0, again_s=0.01, retry_s=0.01, rest_s=0.01, longest_s=0.05, last_pause_s=0.01)


def log_of(pod: str = "train-0", *, is_over: bool = False) -> LogSource:
    return LogSource(f"default/{pod}", "default", pod, f"uid-{pod}", "main", is_over)


def report(step: int) -> bytes:
    return b'%s{"step":%d,"total_steps":100}' % (names.REPORT_PREFIX.encode(), step)


@dataclass
class Logs:
    """Serves logs as a kubelet does. The number of a line is its second: time is no matter of chance."""

    lines: dict[str, list[bytes]] = field(default_factory=dict)
    refusals: list[int] = field(default_factory=list)
    """HTTP statuses with which the next requests are refused."""
    cuts: list[int] = field(default_factory=list)
    """After so many bytes the next answers break off."""
    asked: list[dict[str, str]] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def print(self, *texts: bytes, pod: str = "train-0") -> None:
        async with self.news:
            own = self.lines.setdefault(pod, [])
            for text in texts:
                second = len(own)
                stamp = b"2026-05-01T10:%02d:%02d.000000000Z " % divmod(second, 60)
                own.append(stamp + text + b"\n")
            self.news.notify_all()

    async def end(self, pod: str = "train-0") -> None:
        async with self.news:
            self.ended.add(pod)
            self.news.notify_all()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        pod = request.path.split("/")[-2]
        self.asked.append(dict(request.query))
        if self.refusals:
            status = self.refusals.pop(0)
            return web.json_response({"kind": "Status", "message": "no", "code": status}, status=status)
        return await self._answer(request, pod)

    async def _answer(self, request: web.BaseRequest, pod: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        left = self.cuts.pop(0) if self.cuts else 2**40
        at = self._begin(pod, request.query)
        while True:
            own = self.lines.get(pod, [])
            data, at = b"".join(own[at:])[:left], len(own)
            left -= len(data)
            with suppress(ConnectionError):
                await answer.write(data) if data else None
            if not left:
                assert request.transport is not None
                request.transport.abort()
                return answer
            if "follow" not in request.query or pod in self.ended:
                return answer
            async with self.news:
                await self.news.wait_for(lambda: len(self.lines.get(pod, [])) > at or pod in self.ended)  # noqa: B023

    def _begin(self, pod: str, query: Mapping[str, str]) -> int:
        own = self.lines.get(pod, [])
        if "sinceTime" in query:
            since = query["sinceTime"][:19].encode()
            return next((k for k, line in enumerate(own) if line[:19] >= since), len(own))
        return max(0, len(own) - int(query.get("tailLines", len(own))))


class CountingApi(Api):
    """Knows how many logs are read at once."""

    now = most = 0

    async def logs(self, *what: Any, **how: Any) -> AsyncGenerator[bytes, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            async with aclosing(super().logs(*what, **how)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self.now -= 1


class Ears:
    """What was heard so far."""

    def __init__(self) -> None:
        self.heard: list[LogReport] = []
        self.most_at_once = lambda: 0
        self._news = asyncio.Event()

    def __call__(self, heard: LogReport) -> None:
        self.heard.append(heard)
        self._news.set()

    def steps(self, pod: str = "train-0") -> list[int | None]:
        return [
            one.report.step
            for heard in self.heard
            if heard.uid == f"uid-{pod}"
            for one in heard.said
            if isinstance(one, TrainingReport)
        ]

    @property
    def refused(self) -> int:
        return sum(heard.refused for heard in self.heard)

    def has_all(self, pod: str = "train-0") -> bool:
        return any(heard.is_all for heard in self.heard if heard.uid == f"uid-{pod}")

    async def wait_for(self, *steps: int, pod: str = "train-0") -> None:
        """Until these steps were heard, and no others."""
        while set(self.steps(pod)) < set(steps):
            self._news.clear()
            await self._news.wait()
        assert self.steps(pod) == list(steps)

    async def wait_for_all(self, pod: str = "train-0") -> None:
        while not self.has_all(pod):
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def listening(
    logs: Logs, most: int = 8, turn_s: float = 0.01, pace: ReadingPace = QUICK
) -> AsyncIterator[tuple[LogReaders, Ears]]:
    """Listeners at such a server, for as long as a test may take."""
    ears = Ears()
    async with asyncio.timeout(30.0), serving(logs) as url, CountingApi(Access(url)) as api:
        ears.most_at_once = lambda: api.most
        listeners = LogReaders(api, ears, most, turn_s, pace)
        running = asyncio.create_task(listeners.run())
        await asyncio.sleep(0)
        try:
            yield listeners, ears
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
