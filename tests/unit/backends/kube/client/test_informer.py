"""Servers that behave badly do not make an informer ask in a hot loop, nor do they stop it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from batuta.backends.kube.client.access import Access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.informer import Informer, WatchTiming
from batuta.backends.kube.client.kinds import JOB, NODE, PRIORITY_CLASS, Kind
from tests.unit.backends.kube.client.serving import serving

LIST = b'{"metadata":{"resourceVersion":"5"},"items":[]}'
GONE = b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","reason":"Expired","code":410}}\n'
TIMING = WatchTiming(first_retry_s=0.1, longest_retry_s=1.0)


def watch_for(
    seconds: float, kind: Kind[Any], lines: Callable[[web.StreamResponse], Awaitable[None]]
) -> tuple[Informer[Any], Counter[str]]:
    """Runs an informer against a server whose list is empty and whose watch says this; requests it made."""
    asked: Counter[str] = Counter()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked["watch" if "watch" in request.query else "list"] += 1
        if "watch" not in request.query:
            return web.Response(body=LIST)
        response = web.StreamResponse()
        await response.prepare(request)
        await lines(response)
        return response

    async def run() -> Informer[Any]:
        async with serving(answer) as url, Api(Access(url)) as api:
            informer = Informer(api, kind, lambda changes: None, timing=TIMING)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await informer.run()
            return informer

    return asyncio.run(run()), asked


@pytest.mark.parametrize("kind", [NODE, PRIORITY_CLASS], ids=str)  # a Status may pass for the second one
def test_a_server_that_has_always_forgotten_is_asked_ever_less_often(kind: Kind[Any]) -> None:
    async def gone(response: web.StreamResponse) -> None:
        await response.write(GONE)

    _, asked = watch_for(3.0, kind, gone)
    assert asked["list"] >= 2
    assert asked.total() <= 16


def test_a_server_that_ends_every_watch_at_once_is_asked_ever_less_often() -> None:
    async def nothing(response: web.StreamResponse) -> None:
        return

    _, asked = watch_for(3.0, NODE, nothing)
    assert asked["list"] == 1
    assert asked["watch"] >= 2
    assert asked.total() <= 10


def test_lines_in_pieces_and_rubbish_between_them(caplog: pytest.LogCaptureFixture) -> None:
    async def pieces(response: web.StreamResponse) -> None:
        await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"n')
        await asyncio.sleep(0.05)
        await response.write(b'1","resourceVersion":"6"}}}\n{"type":"ADDED","object":{"metadata":7}}\n')
        await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"n2","resourceVersion":"7"}}}\n<html>\n')

    informer, asked = watch_for(1.0, NODE, pieces)
    assert set(informer.objects) == {"n1", "n2"}
    assert informer.resource_version == "7"
    assert "is malformed and left out" in caplog.text
    assert asked["list"] == 1


@pytest.mark.parametrize("in_list", [True, False], ids=["list", "watch"])
def test_an_object_that_is_too_deep_for_the_decoder_hides_no_other(in_list: bool) -> None:
    deep = b'{"metadata":{"name":"deep","resourceVersion":"6"},"spec":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001
    good = b'{"metadata":{"name":"good","resourceVersion":"7"}}'
    listed = b'{"metadata":{"resourceVersion":"5"},"items":[%b]}' % (b",".join([deep, good]) if in_list else b"")
    found: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(body=listed)
        response = web.StreamResponse()
        await response.prepare(request)
        if not in_list:
            await response.write(b'{"type":"ADDED","object":%b}\n{"type":"ADDED","object":%b}\n' % (deep, good))
        await asyncio.sleep(1)
        return response

    async def run() -> Informer[Any]:
        async with serving(answer) as url, Api(Access(url)) as api:
            api.malformed.on_malformed = lambda kind, meta, why, is_gone: found.append(f"{meta.name}: {why}")
            informer = Informer(api, JOB, lambda changes: None, timing=TIMING)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await informer.run()
            return informer

    assert set(asyncio.run(run()).objects) == {"good"}
    assert found == ["deep: it is nested more than 128 levels deep"]
