"""How a server begins and ends, without one that listens."""

import time
from pathlib import Path

import pytest

from batuta.bootstrap.local_server import UpOptions, built
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.wish import Wish
from batuta.store.sqlite_store import SqliteStore
from tests.support.worlds import make_job


@pytest.fixture
def options(tmp_path: Path) -> UpOptions:
    return UpOptions(home=tmp_path / "home", nodes=1, gpus=2, virtual=True)


def test_a_server_that_was_never_started_ends_as_well(options: UpOptions):
    with pytest.raises(ZeroDivisionError), built(options):
        raise ZeroDivisionError("no port is free, say")
    with built(options) as server:
        assert server.world.nodes.nodes[0].gpus == 2


def test_the_world_of_an_engine_that_died_is_not_kept(options: UpOptions):
    """It may have died halfway through an event: only the journal knows what has happened."""
    with built(options) as server:
        server.service.start()
        apply(server.world, ev.TimePassed(server.world.now_s + 1e6))
        server.service.failure = ZeroDivisionError()
    with SqliteStore(server.state.journal) as store:
        found = store.recover()
        assert found.snapshot_seq == 0
        assert found.world.now_s < time.time() + 1e5


def test_what_a_new_server_finds_is_of_now_however_long_nobody_was_there(options: UpOptions):
    with built(options) as server:
        server.service.start()
        server.service.ask(
            lambda world: [
                ev.JobSubmitted(world.now_s, make_job("a", 1)),
                ev.JobWished(world.now_s, "a", Wish.PARK),
            ]
        )
        long_ago_s = server.world.now_s
    with built(options) as server:
        assert server.world.now_s > long_ago_s
        server.service.start()
