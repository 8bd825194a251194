"""Writers that are killed, and what has to hold for the journal that they leave behind."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from types import TracebackType

from batuta.core.apply import apply
from batuta.core.world import World
from batuta.store.store import Store
from tests.support.deep import deep
from tests.support.stories import Story
from tests.unit.store.killed_writer import batches

REPO = Path(__file__).resolve().parents[2]
_PATIENCE_S = 120.0


class WriterServer:
    """The process that all writers are forked from: what they import is imported once."""

    def __init__(self) -> None:
        self._door, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.unit.store.killed_writer", str(theirs.fileno())]
            self._process = subprocess.Popen(command, cwd=REPO, pass_fds=(theirs.fileno(),))
        self._answers = self._door.makefile("r")
        atexit.register(self._close)

    def start(self, address: str, seed: int, stdout: int) -> int:
        """Forks a writer that speaks to `stdout`; returns its pid."""
        socket.send_fds(self._door, [f"{json.dumps([address, seed])}\n".encode()], [stdout])
        return int(self._answers.readline())

    def wait(self, pid: int) -> int:
        """How a writer ended; until somebody asks, its pid is its own."""
        self._door.sendall(f"{pid}\n".encode())
        return int(self._answers.readline())

    def _close(self) -> None:
        """It ends as soon as its door is closed; so it does when this process is killed."""
        self._answers.close()
        self._door.close()
        self._process.wait()


@cache
def writer_server() -> WriterServer:
    return WriterServer()


class KilledWriter:
    """A process that writes a story and says after each commit how far it is."""

    def __init__(self, address: str, seed: int) -> None:
        reading, writing = os.pipe()
        self._said = os.fdopen(reading, "rb")
        self.pid = writer_server().start(address, seed, writing)
        os.close(writing)
        # One that hangs is a failure, and not a test that never ends.
        self._watchdog = threading.Timer(_PATIENCE_S, os.kill, (self.pid, signal.SIGKILL))
        self._watchdog.daemon = True
        self._watchdog.start()
        self.said = 0
        """The last number that it said was durable."""

    def hear(self, lines: int) -> None:
        """Waits for so many commits."""
        for _ in range(lines):
            line = self._said.readline()
            assert line, "the writer died by itself"
            self.said = int(line)

    def kill(self) -> int:
        """kill -9; returns the last number that it said was durable."""
        os.kill(self.pid, signal.SIGKILL)
        whole = self._said.read().split(b"\n")[:-1]
        self._watchdog.cancel()
        assert writer_server().wait(self.pid) == -signal.SIGKILL
        self._said.close()
        self.said = int(whole[-1]) if whole else self.said
        return self.said

    def __enter__(self) -> KilledWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._said.closed:
            self.kill()


def check_aftermath(store: Store, seed: int, before: int, acknowledged: int) -> int:
    """Checks what a writer that began after event `before` has left; returns its last event."""
    durable = store.journal.durable_seq
    assert durable >= max(acknowledged, before), "something that was acknowledged is lost"
    ends = accumulate(batches(seed, before), initial=before)
    assert durable in set(islice(ends, durable - before + 1)), "a commit was cut in two"
    seqs = [row[0] for row in store.database.rows("SELECT seq FROM events ORDER BY seq")]
    assert seqs == list(range(store.journal.first_seq, durable + 1)), "there is a gap, or one too many"
    assert store.results.get("last") == (str(durable) if durable else None)
    assert not store.recover().unusable
    return durable


def check_story(store: Store, seed: int) -> None:
    """Checks that the journal tells the story, event for event, and that the World comes of it."""
    world, first, found = World(), store.journal.first_seq, store.recover()
    kept = {entry.seq: entry.event for entry in store.journal.all_after()}
    for number, event in enumerate(islice(Story(seed), store.journal.durable_seq), 1):
        apply(world, event)
        if number >= first:
            assert deep(kept[number]) == deep(event)
    assert found.seq == store.journal.durable_seq
    assert deep(found.world) == deep(world)
