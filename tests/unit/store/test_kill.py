"""kill -9 at any instant: what was committed is there, whole, in order, and the World can be made of it."""

import subprocess
import sys
import time
from itertools import accumulate, islice
from pathlib import Path
from random import Random

import pytest

from batuta.core.apply import apply
from batuta.core.world import World
from batuta.store.sqlite_store import SqliteStore
from tests.support.deep import deep
from tests.support.stories import Story
from tests.unit.store.killed_writer import batches

REPO = Path(__file__).resolve().parents[3]
KILLS = 25


def run_and_kill(path: Path, seed: int, chance: Random) -> int:
    """Lets a writer run for a while and kills it; returns the last number that it said was durable."""
    command = [sys.executable, "-m", "tests.unit.store.killed_writer", str(path), str(seed)]
    writer = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    said = [b"0"]
    if chance.random() < 0.2:
        # While it starts: it may be loading, migrating, recovering or writing by then.
        time.sleep(chance.uniform(0.05, 1.0))
    else:
        for _ in range(chance.randrange(1, 60)):
            said.append(writer.stdout.readline())
            assert said[-1], f"the writer died by itself: {writer.wait()}"
        time.sleep(chance.expovariate(500))
    writer.kill()
    said += writer.stdout.read().split(b"\n")[:-1]
    assert writer.wait() == -9
    writer.stdout.close()
    return int(said[-1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_that_was_acknowledged_is_lost(tmp_path, seed):
    path, chance = tmp_path / "journal.db", Random(seed)
    seq, kills_while_writing = 0, 0
    for _ in range(KILLS):
        acknowledged = run_and_kill(path, seed, chance)
        kills_while_writing += acknowledged > 0
        with SqliteStore(path) as store:
            durable = store.journal.durable_seq
            assert durable >= max(acknowledged, seq)
            ends = accumulate(batches(seed, seq), initial=seq)
            assert durable in set(islice(ends, durable - seq + 1)), "a commit was cut in two"
            first = store.journal.first_seq
            seqs = [row[0] for row in store.database.rows("SELECT seq FROM events ORDER BY seq")]
            assert seqs == list(range(first, durable + 1))
            assert store.results.get("last") == (str(durable) if durable else None)
            assert not store.recover().unusable
            seq = durable
    assert kills_while_writing >= KILLS // 2
    with SqliteStore(path) as store:
        world = World()
        for number, event in enumerate(islice(Story(seed), seq), 1):
            apply(world, event)
            if number >= store.journal.first_seq:
                (entry,) = store.journal.read(number, 1)
                assert deep(entry.event) == deep(event)
        found = store.recover()
        assert found.seq == seq
        assert deep(found.world) == deep(world)
        assert store.database.rows("PRAGMA integrity_check") == [("ok",)]
