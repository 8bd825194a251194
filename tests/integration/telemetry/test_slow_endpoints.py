"""Who takes traces, scrapes metrics or keeps logs may hang: the cycles of a real server do not notice."""

import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest

from batuta.client.loki import Loki, LokiAddress, LokiError
from tests.support.loki_stand_in import LokiStandIn
from tests.support.observed_load import ObservedServer, observed_server
from tests.support.otlp_receiver import receiving, refusing_url

CHANGES = 24
SCRAPERS = 8
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only")


class Cycles(NamedTuple):
    """What a server says of its cycles."""

    decided: float
    total_s: float
    slow: float
    """Of more than a second; each wait for an endpoint is ten."""

    def since(self, before: "Cycles") -> "Cycles":
        return Cycles(*(now - then for now, then in zip(self, before, strict=True)))


def cycles_of(server: ObservedServer) -> Cycles:
    with urlopen(f"{server.url}/metrics", timeout=20) as answer:
        text = answer.read().decode()

    def value(name: str) -> float:
        (found,) = re.findall(rf"^batuta_cycle_seconds_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found)

    count = value("count")
    return Cycles(count, value("sum"), count - value('bucket{le="1.0"}'))


def work(server: ObservedServer) -> Cycles:
    """Has the engine decide again and again; how long that took."""
    before = cycles_of(server)
    job = server.client.submit({"run": "exec sleep 1000", "num_nodes": 2}).id
    for _ in range(CHANGES // 2):
        server.client.cordon("node-1")
        server.client.uncordon("node-1")
    server.client.cancel(job)
    return cycles_of(server).since(before)


@contextmanager
def hanging_scrapers(url: str) -> Iterator[None]:
    """Ask for metrics, and read nothing of the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        for _ in range(SCRAPERS):
            own = stack.enter_context(closing(socket.socket()))
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            own.connect((host, int(port)))
            for _ in range(50):
                own.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        yield


@pytest.mark.slow
def test_endpoints_that_hang_or_are_away_slow_no_cycle(tmp_path: Path):
    """Given servers with the same work to do, one of them in bad company, their cycles take as long."""
    with ExitStack() as stack:
        # given a collector that takes connections and never answers, one that is away, and none
        hanging = stack.enter_context(receiving(hangs=True))
        words = {"bad": ("--otlp", hanging.url), "away": ("--otlp", refusing_url()), "plain": ()}
        servers: dict[str, ObservedServer] = {}
        for name, told in words.items():
            (tmp_path / name).mkdir()
            servers[name] = stack.enter_context(observed_server(tmp_path / name, *told))
        # and Prometheuses that do not read what they have asked for
        stack.enter_context(hanging_scrapers(servers["bad"].url))
        for server in servers.values():
            work(server)  # the first cycles load what others find loaded
        assert hanging.wait_for(1)
        # when all work in turns, so that whatever else this machine does meets them alike
        done = [{name: work(server) for name, server in servers.items()} for _ in range(3)]
    # then no cycle has waited for anybody
    for turn in done:
        for cycles in turn.values():
            assert cycles.decided >= CHANGES // 4
            assert cycles.slow == 0

    def usual_s(name: str) -> float:
        return sorted(turn[name].total_s / turn[name].decided for turn in done)[1]

    assert max(usual_s("bad"), usual_s("away")) < 3 * usual_s("plain") + 0.005


def test_a_loki_that_hangs_holds_up_only_who_asks_it(tmp_path: Path):
    """Given somebody who waits for old logs, the cycles go on, and the question ends in time."""
    stall = threading.Event()
    with LokiStandIn(stall=stall) as loki, observed_server(tmp_path) as server:
        told: list[Exception] = []

        def ask() -> None:
            try:
                with Loki(LokiAddress.of(loki.url), timeout_s=3.0) as asked:
                    asked.page('{service_name="a"}', 0, 1, limit=10)
            except LokiError as error:
                told.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        cycles = work(server)
        assert cycles.decided >= CHANGES // 4
        assert cycles.slow == 0
        asking.join(20.0)
        stall.set()
        assert not asking.is_alive()
        assert len(told) == 1
