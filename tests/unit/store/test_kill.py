"""kill -9 at any instant: what was committed is there, whole, in order, and the World can be made of it."""

import time
from random import Random

import pytest

from tests.support.killed_writers import KilledWriter, check_aftermath, check_story

KILLS = {"sqlite": 25, "postgres": 8}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_that_was_acknowledged_is_lost(place, seed):
    chance, kills = Random(seed), KILLS["sqlite" if place.is_file else "postgres"]
    seq, kills_while_writing = 0, 0
    for _ in range(kills):
        with KilledWriter(place.address, seed) as writer:
            if chance.random() < 0.2:
                # While it starts: it may be opening, migrating, recovering or writing by then.
                time.sleep(chance.uniform(0.0, 0.25))
            else:
                writer.hear(chance.randrange(1, 60))
                time.sleep(chance.expovariate(500))
            acknowledged = writer.kill()
        kills_while_writing += acknowledged > 0
        with place.open() as store:
            seq = check_aftermath(store, seed, seq, acknowledged)
    assert kills_while_writing >= kills // 2
    with place.open() as store:
        check_story(store, seed)
        if place.is_file:
            assert store.database.rows("PRAGMA integrity_check") == [("ok",)]
