"""Answers are read as they come, in any pieces; a connection is used again, and never by two at once."""

import asyncio
import gc
import random
import shutil
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from batuta.backends.kube.client.access import Access
from batuta.backends.kube.client.http1 import HttpPool, MalformedResponse, parse_response
from batuta.backends.kube.client.transport import Transport
from tests.support.kube.certificates import Authority

WITH_LENGTH = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
IN_CHUNKS = (
    b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\nRetry-After: 3\r\n\r\n"
    b"6;note=1\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"
)
ANNOUNCED = b"HTTP/1.1 100 Continue\r\n\r\n" + WITH_LENGTH
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (WITH_LENGTH, 201, b"hello"),
        (IN_CHUNKS, 409, b"hello world"),
        (ANNOUNCED, 201, b"hello"),
        (EMPTY, 204, b""),
    ],
)
def test_an_answer_is_read_when_all_of_it_is_here(data: bytes, status: int, body: bytes) -> None:
    for cut in range(len(data)):
        assert parse_response(data[:cut]) is None
    read = parse_response(data)
    assert read is not None
    answer, stays, length = read
    assert (answer.status, answer.body, stays, length) == (status, body, True, len(data))


def test_headers_have_lower_names_and_say_whether_the_connection_stays() -> None:
    read = parse_response(WITH_LENGTH.replace(b"Content-Type: application/json", b"Connection: close"))
    assert read is not None
    assert read[1] is False
    chunked = parse_response(IN_CHUNKS)
    assert chunked is not None
    assert chunked[0].headers["retry-after"] == "3"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        IN_CHUNKS.replace(b"6;note=1", b"7"),
        b"x" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_response(data)


def tell(
    handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    story: Callable[[HttpPool], Awaitable[None]],
    most: int = 4,
) -> None:
    async def run() -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        exchanges = HttpPool(f"http://127.0.0.1:{port}/prefix", None, None, most, connect_s=5.0)
        try:
            async with asyncio.timeout(30.0):
                await story(exchanges)
        finally:
            await exchanges.close()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(0.05)

    asyncio.run(run())


async def heard(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The first line of the next request and its body; the first is empty when there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return "", b""
    length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
    return head.partition("\r\n")[0], await reader.readexactly(length)


class Echo:
    """Answers with the body that it got, after it waited; counts its connections."""

    def __init__(self, wait_s: float = 0.0, closes: bool = False) -> None:
        self.connections, self.starts = 0, set[str]()
        self.wait_s, self.closes = wait_s, closes

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            start, body = await heard(reader)
            if not start:
                break
            self.starts.add(start)
            await asyncio.sleep(self.wait_s)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            if self.closes:
                break
        writer.close()


def test_connections_are_used_again_and_no_more_of_them_than_allowed() -> None:
    echo = Echo(wait_s=0.01)

    async def story(exchanges: HttpPool) -> None:
        bodies = [b"%d" % number for number in range(40)]
        answers = await asyncio.gather(*(exchanges.send("POST", "/x", b"", body) for body in bodies))
        assert [answer.body for answer in answers] == bodies

    tell(echo, story, most=4)
    assert echo.connections == 4
    assert echo.starts == {"POST /prefix/x HTTP/1.1"}


def test_an_answer_that_nobody_waits_for_any_more_is_never_given_to_another() -> None:
    async def story(exchanges: HttpPool) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await exchanges.send("POST", "/x", b"", b"first")
        assert (await exchanges.send("POST", "/x", b"", b"second")).body == b"second"

    tell(Echo(wait_s=0.2), story, most=1)


def test_a_connection_that_the_server_closed_while_idle_is_not_used() -> None:
    echo = Echo(closes=True)

    async def story(exchanges: HttpPool) -> None:
        for number in range(3):
            assert (await exchanges.send("POST", "/x", b"", b"%d" % number)).status == 200
            await asyncio.sleep(0.05)

    tell(echo, story)
    assert echo.connections == 3


def test_a_connection_that_breaks_ends_its_request() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.transport.abort()

    async def story(exchanges: HttpPool) -> None:
        with pytest.raises(ConnectionError):
            await exchanges.send("POST", "/x", b"", b"")

    tell(slam, story)


def test_rubbish_ends_its_request() -> None:
    async def rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard(reader)
        writer.write(b"220 smtp ready\r\n\r\n")
        await heard(reader)
        writer.close()

    async def story(exchanges: HttpPool) -> None:
        with pytest.raises(MalformedResponse, match="smtp"):
            await exchanges.send("POST", "/x", b"", b"")

    tell(rubbish, story)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/é"])
def test_a_path_cannot_smuggle_anything(path: str) -> None:
    async def story(exchanges: HttpPool) -> None:
        with pytest.raises(ValueError, match="not an encoded path"):
            await exchanges.send("POST", path, b"", b"")

    tell(Echo(), story)


@contextmanager
def secure_server(folder: Path) -> Iterator[str]:
    """Shakes hands and says nothing, in threads of its own; its address."""
    pair = Authority(folder).server("server", ["127.0.0.1"], [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def listen_to(plain: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(plain, server_side=True) as secure:
            while secure.recv(4096):
                pass

    def accept() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listener.accept()
                threading.Thread(target=listen_to, args=(plain,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10.0)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")
def test_a_secure_connection_is_closed_whenever_it_is_given_up(tmp_path: Path) -> None:
    """Given requests that are cancelled at any moment, and a loop that ends then, nothing stays open."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def give_up(exchanges: HttpPool, after_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                await exchanges.send("POST", "/x", b"", b"")

    async def run(address: str, chance: random.Random) -> None:
        exchanges = HttpPool(address, trusting, None, most=64, connect_s=5.0)
        await asyncio.gather(*(give_up(exchanges, chance.uniform(0.0, 0.06)) for _ in range(12)))
        await exchanges.close()

    with (
        warnings.catch_warnings(record=True) as left_open,
        secure_server(tmp_path / "certificates") as address,
    ):
        warnings.simplefilter("always")
        for seed in range(14):
            asyncio.run(run(address, random.Random(seed)))
        gc.collect()
    assert [str(one.message) for one in left_open if one.category is ResourceWarning] == []


async def read(transport: Transport) -> None:
    await transport.request("get", "GET", "/x")


async def follow(transport: Transport) -> None:
    async with transport.stream("watch", "/x") as answer:
        await answer.read()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")
@pytest.mark.parametrize("ask", [read, follow])
def test_what_is_cancelled_before_its_answer_begins_leaves_no_socket_open(
    ask: Callable[[Transport], Awaitable[None]], tmp_path: Path
) -> None:
    """Given reads and watches that are cancelled in each turn of the loop that connecting takes."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def run(address: str, turns: int) -> None:
        async with Transport(Access(address, trusting)) as transport:
            asked = [asyncio.ensure_future(ask(transport)) for _ in range(4)]
            for one in asked:
                for _ in range(turns):
                    await asyncio.sleep(0)
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    with (
        warnings.catch_warnings(record=True) as left_open,
        secure_server(tmp_path / "certificates") as address,
    ):
        warnings.simplefilter("always")
        for turns in range(16):
            asyncio.run(run(address, turns))
        gc.collect()
    assert [str(one.message) for one in left_open if one.category is ResourceWarning] == []
