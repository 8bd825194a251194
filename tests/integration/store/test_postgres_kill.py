"""The server dies, the line breaks, the writer dies, at random moments: the journal tells the same story."""

import os
import signal
import time
from contextlib import closing, suppress
from random import Random

import psycopg
import pytest

from batuta.store.postgres import PostgresDatabase
from batuta.store.store import open_store
from tests.support.killed_writers import KilledWriter, check_aftermath, check_story
from tests.support.postgres import PostgresServer

BLOWS = 12
PATIENCE_S = 20.0


def kill_server(server: PostgresServer, writer: KilledWriter) -> None:
    server.kill()
    server.start()


def restart_server(server: PostgresServer, writer: KilledWriter) -> None:
    server.restart()


def kill_session(server: PostgresServer, writer: KilledWriter) -> None:
    """kill -9 of the one process that serves the writer: the server ends all others and recovers."""
    pids = sessions(server, writer)[:1]
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        give_up_s = time.monotonic() + PATIENCE_S
        with suppress(psycopg.OperationalError):
            while pids:
                admin.execute("SELECT 1")
                assert time.monotonic() < give_up_s, "the server takes no notice"


def end_sessions(server: PostgresServer, writer: KilledWriter) -> None:
    for pid in sessions(server, writer):
        os.kill(pid, signal.SIGTERM)


def sessions(server: PostgresServer, writer: KilledWriter) -> list[int]:
    assert server.answers()
    with psycopg.connect(server.admin_url) as admin:
        found = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s ORDER BY pid",
            [f"batuta % pid {writer.pid}"],
        )
        return [pid for (pid,) in found]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_writer_outlives_its_server(server, seed):
    """The same writer goes on after every blow, and what it says is true."""
    url, chance = server.url(), Random(seed)
    with KilledWriter(url, seed) as writer:
        for _ in range(BLOWS):
            writer.hear(chance.randrange(1, 40))
            time.sleep(chance.expovariate(500))
            chance.choice((kill_server, restart_server, kill_session, end_sessions))(server, writer)
        assert server.answers()
        with closing(PostgresDatabase(url, read_only=True)) as reader:
            (durable,) = reader.rows("SELECT max(seq) FROM events")[0]
        while writer.said <= durable:
            writer.hear(1)
        acknowledged = writer.kill()
    with open_store(url) as store:
        assert check_aftermath(store, seed, 0, acknowledged) > BLOWS
        check_story(store, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_writer_and_server_die_together(server, seed):
    url, chance, seq = server.url(), Random(seed), 0
    for _ in range(BLOWS // 2):
        with KilledWriter(url, seed) as writer:
            writer.hear(chance.randrange(1, 40))
            time.sleep(chance.expovariate(500))
            server.kill()
            acknowledged = writer.kill()
        server.start()
        with open_store(url) as store:
            seq = check_aftermath(store, seed, seq, acknowledged)
    with open_store(url) as store:
        check_story(store, seed)
