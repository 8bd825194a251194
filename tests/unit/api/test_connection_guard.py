"""Connections that send no whole request make room, in time and in number, with TLS as without."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

import pytest

from batuta.api.connection_guard import ConnectionGuard, most_connections
from batuta.api.http_server import HttpServer
from tests.support.certificates import client_context, server_context

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
Test = Callable[[int], Awaitable[None]]


async def app(scope, receive, send) -> None:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    await app_answer(send, 0.6 if scope["path"] == "/slow" else 0.0)


async def app_answer(send, after_s: float = 0.0) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await asyncio.sleep(after_s)
    await send({"type": "http.response.body", "body": b"ok"})


def serve(guard: ConnectionGuard, test: Test, tls: ssl.SSLContext | None = None, application=app) -> None:
    async def run() -> None:
        server = HttpServer(application, guard=guard, tls=tls)
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            await asyncio.wait_for(test(server.servers[0].sockets[0].getsockname()[1]), 20.0)
        finally:
            while _OPENED:
                _OPENED.pop().close()
            server.should_exit = True
            await running

    asyncio.run(run())


_OPENED: list[asyncio.StreamWriter] = []


async def connect(port: int, tls: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    _OPENED.append(writer)
    return reader, writer


async def ask(port: int, tls: ssl.SSLContext | None = None, request: bytes = REQUEST) -> bytes:
    reader, writer = await connect(port, tls)
    writer.write(request)
    answer = await reader.readexactly(15)
    writer.close()
    return answer


async def is_dropped(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_connection_without_headers_is_closed_in_time():
    async def test(port: int) -> None:
        silent, _ = await connect(port)
        half, writer = await connect(port)
        writer.write(REQUEST[:10])
        assert await is_dropped(silent)
        assert await is_dropped(half)

    serve(ConnectionGuard(10, headers_within_s=0.2), test)


def test_request_whose_body_does_not_come_is_closed_in_time():
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\nab")
        assert await is_dropped(reader)

    serve(ConnectionGuard(10, headers_within_s=60.0, body_within_s=0.2), test)


def test_oldest_connection_without_a_request_makes_room():
    async def test(port: int) -> None:
        for _ in range(40):
            await connect(port)
        assert await ask(port) == b"HTTP/1.1 200 OK"

    serve(ConnectionGuard(4, headers_within_s=60.0), test)


def test_answer_under_way_is_not_cut_off_by_new_connections():
    async def test(port: int) -> None:
        slow, writer = await connect(port)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.2)
        for _ in range(40):
            await connect(port)
        assert (await slow.read()).endswith(b"ok")

    serve(ConnectionGuard(4, headers_within_s=0.1, body_within_s=0.1), test)


def test_connection_that_is_kept_serves_request_after_request():
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        for _ in range(5):
            writer.write(REQUEST)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.1)
        writer.close()

    serve(ConnectionGuard(4, headers_within_s=0.3), test)


def test_client_that_begins_no_handshake_is_dropped_in_time():
    async def test(port: int) -> None:
        silent, _ = await connect(port)
        half, writer = await connect(port)
        writer.write(b"\x16\x03\x01\x02\x00\x01\x00")  # a ClientHello begins like this
        assert await is_dropped(silent)
        assert await is_dropped(half)

    serve(ConnectionGuard(10, headers_within_s=0.2), test, server_context())


def test_client_that_shakes_hands_and_asks_nothing_is_dropped_in_time():
    async def test(port: int) -> None:
        silent, _ = await connect(port, client_context())
        assert await is_dropped(silent)

    serve(ConnectionGuard(10, headers_within_s=0.2), test, server_context())


@pytest.mark.parametrize("shakes_hands", [False, True])
def test_oldest_connection_makes_room_before_its_handshake_as_after(shakes_hands: bool):
    async def test(port: int) -> None:
        first, _ = await connect(port, client_context() if shakes_hands else None)
        for _ in range(40):
            await connect(port, client_context() if shakes_hands else None)
        assert await is_dropped(first)
        assert await ask(port, client_context()) == b"HTTP/1.1 200 OK"

    serve(ConnectionGuard(4, headers_within_s=60.0), test, server_context())


def test_plain_request_to_a_tls_port_is_refused_and_costs_nothing():
    async def test(port: int) -> None:
        for _ in range(10):
            reader, writer = await connect(port)
            writer.write(REQUEST)
            assert await is_dropped(reader)
        assert await ask(port, client_context()) == b"HTTP/1.1 200 OK"

    guard = ConnectionGuard(2, headers_within_s=60.0)
    serve(guard, test, server_context())


def test_request_that_comes_with_the_end_of_the_handshake_is_answered():
    """The client's last message of the handshake and its request are one packet."""

    async def test(port: int) -> None:
        for _ in range(20):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await connect(port)
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
            client.write(REQUEST)
            writer.write(outgoing.read())
            answer = b""
            while not answer.startswith(b"HTTP/1.1 200"):
                incoming.write(await reader.read(1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):  # tickets of the session come before the answer
                    answer += client.read()

    serve(ConnectionGuard(50, headers_within_s=5.0), test, server_context())


def test_answer_over_tls_is_not_cut_off_by_new_connections():
    async def test(port: int) -> None:
        slow, writer = await connect(port, client_context())
        writer.write(b"GET /slow HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        await asyncio.sleep(0.2)
        for _ in range(40):
            await connect(port)
        assert (await slow.read()).endswith(b"ok")

    serve(ConnectionGuard(4, headers_within_s=0.1, body_within_s=0.1), test, server_context())


CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 40_000, id="a header that does not end"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", id="a long header"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\n" + b"X: x\r\n" * 10_000 + b"\r\n", id="many headers"),
        pytest.param(b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n", id="a long path"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: here\r\nHost: there\r\n\r\n", id="two hosts"),
        pytest.param(CHUNKED[:-2] + b"Content-Length: 3\r\n\r\nabc", id="two lengths"),
        pytest.param(CHUNKED.replace(b"chunked", b"gzip"), id="an encoding without an end"),
        pytest.param(CHUNKED + b"3;" + b"x" * 300_000, id="an extension of a chunk"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\nX: " + b"x" * 300_000, id="a long trailer"),
        pytest.param(CHUNKED + b"zz\r\n", id="no length of a chunk"),
        pytest.param(b"GET / HTTP/1.1\nHost: here\n\r\n", id="lines without a return"),
    ],
)
def test_malformed_or_overlong_request_is_refused_and_its_connection_ended(request_: bytes):
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(request_)
        assert await reader.readexactly(12) == b"HTTP/1.1 400"
        assert await is_dropped_after_answer(reader)

    serve(ConnectionGuard(4, headers_within_s=60.0), test)


async def is_dropped_after_answer(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionResetError):
        while await reader.read(4096):
            pass
    return True


def test_trailers_do_not_become_headers():
    headers: list[bytes] = []

    async def show(scope, receive, send) -> None:
        while (await receive()).get("more_body"):
            pass
        headers.extend(name for name, _ in scope["headers"])
        await app_answer(send)

    async def test(port: int) -> None:
        body = b"1\r\na\r\n0\r\nAuthorization: Bearer made-up\r\n\r\n"
        assert await ask(port, request=CHUNKED + body) == b"HTTP/1.1 200 OK"
        assert headers == [b"host", b"transfer-encoding"]

    serve(ConnectionGuard(4), test, application=show)


def test_requests_behind_one_another_are_answered_in_order():
    async def test(port: int) -> None:
        reader, writer = await connect(port)
        # The third is not whole before the first two are answered.
        writer.write(REQUEST.replace(b"/ ", b"/slow ") + REQUEST + REQUEST[:20])
        await asyncio.sleep(0.4)
        writer.write(REQUEST[20:])
        for _ in range(3):
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")

    serve(ConnectionGuard(4, headers_within_s=0.3), test)


def test_request_that_offers_another_protocol_is_answered_in_this_one():
    async def test(port: int) -> None:
        offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
        assert await ask(port, request=b"POST / HTTP/1.1\r\nHost: here\r\n" + offer) == b"HTTP/1.1 200 OK"

    serve(ConnectionGuard(4, body_within_s=0.3), test)


@pytest.mark.parametrize(("descriptors", "most"), [(64, 8), (256, 128), (1024, 768), (20_000, 10_000), (2**30, 10_000)])
def test_engine_keeps_descriptors(descriptors: int, most: int):
    assert most_connections(descriptors) == most
