"""Servers that do nothing but write their journal, until somebody kills them: python -m … SOCKET.

All are forked from one process, which has imported what they need. A line comes in and a line goes out:

    [ADDRESS, SEED]   with a file   a child writes there    its pid
    PID                             it has ended            its exit code

After every commit a writer says so to that file: the number of the last event that is durable, a line each.
"""

import gc
import importlib
import json
import os
import socket
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


def take_requests(door: socket.socket) -> None:
    """Until the other side is gone. There is one thread: it may fork."""
    while True:
        line, files, _, _ = socket.recv_fds(door, 4096, 1)
        if not line:
            return
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        else:
            answer = os.fork()
            if not answer:
                door.close()
                os.dup2(files[0], 1)
                os.close(files[0])
                main(*asked)
            os.close(files[0])
        door.sendall(f"{answer}\n".encode())


if __name__ == "__main__":
    with suppress(ImportError):
        importlib.import_module("batuta.store.postgres")  # an optional dependency, imported when it is first needed
    gc.freeze()
    take_requests(socket.socket(fileno=int(sys.argv[1])))
