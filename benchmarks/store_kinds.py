"""The journal in SQLite and in PostgreSQL side by side: appends a second, and a start.

Both wait for the disk at every commit; the server is one of our own, on this machine, behind a socket.
Measured by the clock: much of it is waiting for a disk and another process. BATUTA_BENCH_EVENTS sets how many
events a start has to replay (50,000 by default).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from batuta.core.apply import apply
from batuta.core.event import Event
from batuta.core.world import World
from batuta.store.store import open_store
from benchmarks.measure import DataMissing, show, times
from benchmarks.store import wall_s, write_in_groups
from tests.support.postgres import MISSING, PostgresServer, find_program
from tests.support.stories import Story

EVENTS = int(os.environ.get("BATUTA_BENCH_EVENTS", "50000"))
GROUPS = (1, 10, 100, 1000)
COMMITS, MOST = 200, 20_000


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-store-") as folder, running_server() as server:
        measure_appends(Path(folder), server)
        measure_start(Path(folder), server)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    if find_program("initdb") is None:
        raise DataMissing(MISSING)
    server = PostgresServer(is_durable=True)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.remove()


def measure_appends(folder: Path, server: PostgresServer) -> None:
    events = list(islice(Story(2), MOST))
    rows = []
    for group in GROUPS:
        own = events[: COMMITS * group]
        file_s = append_s(str(folder / f"append-{group}.db"), own, group)
        server_s = append_s(server.url(), own, group)
        rows.append(
            (
                f"{group} a commit",
                *(f"{len(own) / spent_s:,.0f}" for spent_s in (file_s, server_s)),
                times(file_s / server_s),
            )
        )
    show(
        "Appends, durable at every commit, events/s (wall)",
        ("", "SQLite", "PostgreSQL", "PostgreSQL / SQLite"),
        rows,
    )


def append_s(address: str, events: Sequence[Event], group: int) -> float:
    with open_store(address) as store:
        return wall_s(lambda: write_in_groups(store.journal, events, group))


def measure_start(folder: Path, server: PostgresServer) -> None:
    file, remote = (start_s(address) for address in (str(folder / "start.db"), server.url()))
    names = ("opening", "replay of all events", f"snapshot and the last {EVENTS // 100:,}")
    show(
        f"Start after {EVENTS:,} events, seconds (wall)",
        ("", "SQLite", "PostgreSQL", "PostgreSQL / SQLite"),
        [(name, own, its, times(its / own)) for name, own, its in zip(names, file, remote, strict=True)],
    )


def start_s(address: str) -> tuple[float, float, float]:
    """Seconds for opening, for a replay of everything and for a start from a snapshot."""
    with open_store(address) as store:
        world, since = World(), EVENTS - EVENTS // 100
        for seq, event in enumerate(islice(Story(1), EVENTS), 1):
            store.journal.append(event)
            apply(world, event)
            if seq % 100 == 0 or seq == since:
                store.journal.commit()
            if seq == since:
                store.save_snapshot(world, seq)
        store.journal.commit()
    opened = wall_s(lambda: open_store(address, check=False).close())
    with open_store(address, check=False) as store:
        snapshot = wall_s(store.recover)
        store.database.write_now([("DELETE FROM snapshots", ())])
        replay = wall_s(store.recover)
    return opened, replay, snapshot


if __name__ == "__main__":
    main()
