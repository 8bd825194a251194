"""A server that does nothing but write its journal, until somebody kills it: python -m … ADDRESS SEED.

After every commit it says so on standard output: the number of the last event that is durable, a line each.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from random import Random

from batuta.core.apply import apply
from batuta.engine.ports import JournalUnavailable
from batuta.engine.service import RetryingJournal
from batuta.store.store import open_store
from tests.support.stories import Story


def batches(seed: int, start: int) -> Iterator[int]:
    """How many events each commit has when the writer begins after event `start`."""
    chance = Random(f"{seed} {start}")
    while True:
        yield chance.choice((1, 1, 1, 2, 5, 30))


def main(address: str, seed: int) -> None:
    store = open_store(address)
    journal = RetryingJournal(store.journal)
    found = store.recover()
    world, story = found.world, iter(Story(seed))
    for _ in islice(story, found.seq):
        pass
    chance = Random()
    for size in batches(seed, found.seq):
        for event in islice(story, size):
            apply(world, event)
            journal.append(event)
        # The result of what is done; the task of who is submitted: in the same transaction as the event.
        store.results.stage("last", str(store.journal.last_seq))
        seq = journal.commit()
        os.write(1, f"{seq}\n".encode())
        # A server that is away is for the next commit to wait for.
        with suppress(JournalUnavailable):
            if chance.random() < 0.05:
                store.save_snapshot(world, seq)
            if chance.random() < 0.03:
                store.journal.prune(before_seq=seq - 200)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
