"""What is tried again, how often and when: against a server that answers as it is told to."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from batuta.backends.kube.client.access import Access, Credentials, FixedCredentials
from batuta.backends.kube.client.errors import (
    Conflict,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from batuta.backends.kube.client.transport import Limits, RateLimit, Transport
from tests.unit.backends.kube.client.serving import serving

Answer = tuple[int, dict[str, str], bytes]
OK: Answer = (200, {}, b"{}")
FAST = Limits(attempts=3)


@dataclass
class Server:
    """Answers with what it was given, in this order; its last answer for ever."""

    answers: list[Answer]
    seen: list[web.BaseRequest] = field(default_factory=list)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(request)
        status, headers, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=status or 500, headers=headers, body=body)


def tell(
    server: Server,
    story: Callable[[Transport], Awaitable[None]],
    credentials: Credentials = FixedCredentials(),  # noqa: B008  (frozen)
    limits: Limits = FAST,
    rate: RateLimit | None = None,
) -> None:
    async def run() -> None:
        async with (
            asyncio.timeout(30.0),
            serving(server) as url,
            Transport(Access(url, credentials=credentials), limits, rate) as transport,
        ):
            await story(transport)

    asyncio.run(run())


@pytest.mark.parametrize("failure", [429, 500, 503, 504, 0])
def test_a_read_is_tried_again(failure: int) -> None:
    server = Server([(failure, {}, b""), OK])

    async def story(transport: Transport) -> None:
        assert await transport.request("get", "GET", "/x") == b"{}"

    tell(server, story)
    assert len(server.seen) == 2


def test_it_is_not_tried_for_ever() -> None:
    server = Server([(503, {}, b"out of order")])

    async def story(transport: Transport) -> None:
        with pytest.raises(Unavailable, match="out of order"):
            await transport.request("get", "GET", "/x")
        assert transport.requests == {("get", 503): 3}

    tell(server, story)


@pytest.mark.parametrize("failure", [500, 0])
def test_a_write_that_may_have_happened_is_not_repeated(failure: int) -> None:
    server = Server([(failure, {}, b""), OK])

    async def story(transport: Transport) -> None:
        with pytest.raises(Unavailable):
            await transport.request("create", "POST", "/x", b"{}")

    tell(server, story)
    assert len(server.seen) == 1


def test_a_write_that_may_happen_twice_is_repeated() -> None:
    server = Server([(0, {}, b""), (503, {}, b""), OK])

    async def story(transport: Transport) -> None:
        assert await transport.request("bind", "POST", "/x", b"{}", again=True) == b"{}"

    tell(server, story)


def test_a_busy_server_did_not_even_try_so_everything_is_repeated_when_it_says() -> None:
    server = Server([(429, {"Retry-After": "1"}, b""), OK])

    async def story(transport: Transport) -> None:
        begun_s = asyncio.get_running_loop().time()
        await transport.request("create", "POST", "/x", b"{}")
        assert asyncio.get_running_loop().time() - begun_s >= 1.0

    tell(server, story)


def test_a_disruption_budget_is_an_answer_and_not_a_moment_of_stress() -> None:
    body = b'{"details":{"causes":[{"reason":"DisruptionBudget"}]}}'
    server = Server([(429, {}, body)])

    async def story(transport: Transport) -> None:
        with pytest.raises(TooManyRequests):
            await transport.request("evict", "POST", "/x", b"{}")

    tell(server, story)
    assert len(server.seen) == 1


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (409, Conflict)])
def test_a_refusal_is_final(status: int, error: type[Exception]) -> None:
    server = Server([(status, {}, b'{"reason":"because"}')])

    async def story(transport: Transport) -> None:
        with pytest.raises(error, match="because"):
            await transport.request("get", "GET", "/x")

    tell(server, story)
    assert len(server.seen) == 1


class Fresh:
    """Credentials of which the second is good."""

    def __init__(self) -> None:
        self.value = "Bearer stale"

    async def authorization(self) -> str:
        return self.value

    def reject(self, value: str) -> None:
        assert value == self.value
        self.value = "Bearer fresh"


def test_refused_credentials_are_renewed_once_for_every_verb() -> None:
    server = Server([(401, {}, b""), OK])

    async def story(transport: Transport) -> None:
        await transport.request("create", "POST", "/x", b"{}")

    tell(server, story, Fresh())
    assert [seen.headers["Authorization"] for seen in server.seen] == ["Bearer stale", "Bearer fresh"]


def test_credentials_that_stay_refused_are_an_error_that_says_whose() -> None:
    server = Server([(401, {}, b"")])

    async def story(transport: Transport) -> None:
        with pytest.raises(Unauthorized, match="does not accept the credentials"):
            await transport.request("get", "GET", "/x")

    tell(server, story)
    assert len(server.seen) == 2


def test_an_answer_that_does_not_come_is_given_up() -> None:
    async def silent(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(3600.0)
        raise AssertionError

    async def run() -> None:
        async with serving(silent) as url, Transport(Access(url)) as transport:
            with pytest.raises(Unavailable, match="no answer in time"):
                await transport.request("get", "GET", "/x", limit_s=0.2)

    asyncio.run(run())


def test_a_flood_is_slowed_down() -> None:
    server = Server([OK])
    rate = RateLimit(per_s=20.0, burst=5)

    async def story(transport: Transport) -> None:
        begun_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(transport.request("get", "GET", "/x") for _ in range(15)))
        assert asyncio.get_running_loop().time() - begun_s >= 0.45
        assert rate.waited_s > 0.0

    tell(server, story, rate=rate)


def test_every_request_says_who_asks_and_what_it_takes() -> None:
    server = Server([OK])

    async def story(transport: Transport) -> None:
        await transport.request("get", "GET", "/api/v1/x?labelSelector=a%3Db")
        await transport.request("apply", "PATCH", "/y", b"{}", content_type="application/apply-patch+yaml")

    tell(server, story)
    read, write = server.seen
    assert read.path_qs == "/api/v1/x?labelSelector=a%3Db"
    assert read.headers["User-Agent"].startswith("batuta/")
    assert read.headers["Accept-Encoding"] == "identity"  # it is on this machine
    assert write.headers["Content-Type"] == "application/apply-patch+yaml"
