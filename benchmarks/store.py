"""The journal: a start after a million events, room per event, appends a second, plans of 10,000 jobs.

Bars: a start from a snapshot takes at most a fifth of a replay; appending in groups of 100 takes at most four
times what the JSON of the events costs; the decisions of a plan for 10,000 jobs take at most a tenth of what
they would take as JSON objects, a change of them at most a hundredth. BATUTA_BENCH_EVENTS sets the number of
events.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from batuta.core.apply import apply
from batuta.core.event import Event, JobSubmitted, NodeAdded
from batuta.core.plan import Decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.store.codec import decode, dumps, encode, pack_decision_change, pack_decisions, unpack_decisions
from batuta.store.journal import JournalWriter
from batuta.store.snapshots import decode_world, encode_world
from batuta.store.store import SqliteStore
from benchmarks.measure import cpu_s, median_cpu_s, no_collection, show, times
from tests.support.stored_form import empty_log
from tests.support.stories import Story
from tests.support.worlds import make_job, make_nodes

EVENTS = int(os.environ.get("BATUTA_BENCH_EVENTS", "1000000"))
START_BAR, APPEND_BAR, PLAN_BAR, CHANGE_BAR = 0.2, 4.0, 0.1, 0.01
GROUPS = (1, 10, 100, 1000)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batuta-store-") as folder:
        measure_start(Path(folder) / "start.db")
        measure_appends(Path(folder))
    measure_codec()
    measure_plans()
    measure_snapshot()


def wall_s(work: Callable[[], object]) -> float:
    """Seconds by the clock: disks are waited for."""
    with no_collection():
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


def measure_start(path: Path) -> None:
    with SqliteStore(path) as store:
        world, since = World(), EVENTS - EVENTS // 100
        for seq, event in enumerate(islice(Story(1), EVENTS), 1):
            store.journal.append(event)
            apply(world, event)
            if seq % 100 == 0 or seq == since:
                store.journal.commit()
            if seq == since:
                store.save_snapshot(world, seq)
        store.journal.commit()
        size = empty_log(path)
        parts = store_parts(store)
    opened = wall_s(lambda: SqliteStore(path).close())
    unchecked = wall_s(lambda: SqliteStore(path, check=False).close())
    with SqliteStore(path, check=False) as store:
        snapshot = cpu_s(store.recover)
        store.database.write_now([("DELETE FROM snapshots", ())])
        replay = cpu_s(store.recover)
    show(
        f"Start after {EVENTS:,} events ({len(world.past):,} jobs over, {world.jobs.n} alive), CPU seconds",
        ("", "s", "of a replay"),
        [
            ("replay of all events", replay, "1"),
            (f"snapshot and the last {EVENTS // 100:,}", snapshot, times(snapshot / replay, START_BAR)),
            ("opening, with quick_check (wall)", opened, times(opened / replay)),
            ("opening, without (wall)", unchecked, times(unchecked / replay)),
        ],
    )
    show(
        f"On disk: {size / 2**20:.0f} MiB, {size / EVENTS:.0f} bytes an event",
        ("part", "bytes an event"),
        [(name, f"{own / EVENTS:.1f}") for name, own in parts],
    )


def store_parts(store: SqliteStore) -> list[tuple[str, int]]:
    """What each table and index takes; nothing where SQLite was built without the table that knows."""
    try:
        rows = store.database.rows("SELECT name, sum(pgsize) FROM dbstat GROUP BY name ORDER BY 2 DESC LIMIT 6")
    except Exception:
        return []
    return [(str(name), int(own)) for name, own in rows]


def measure_appends(folder: Path) -> None:
    events = list(islice(Story(2), 20_000))
    texts = median_cpu_s(lambda: [encode(event) for event in events], 3) / len(events)
    rows = []
    for group in GROUPS:
        own = events[: min(len(events), 300 * group)]

        def write(own: Sequence[Event] = own, group: int = group) -> None:
            with SqliteStore(folder / f"append-{group}.db") as store:
                write_in_groups(store.journal, own, group)

        spent: list[float] = []
        elapsed = wall_s(lambda write=write, spent=spent: spent.append(cpu_s(write))) / len(own)  # type: ignore[misc]
        ratio = times(spent[0] / len(own) / texts, APPEND_BAR if group == 100 else None)
        rows.append((f"{group} a commit", f"{1 / elapsed:,.0f}", f"{spent[0] / len(own) * 1e6:.0f}", ratio))
    show(
        f"Appends, durable at every commit (the JSON of an event: {texts * 1e6:.0f} µs)",
        ("", "events/s (wall)", "CPU µs an event", "of the JSON"),
        rows,
    )


def write_in_groups(journal: JournalWriter, events: Sequence[Event], group: int) -> None:
    for k, event in enumerate(events, 1):
        journal.append(event)
        if k % group == 0:
            journal.commit()
    journal.commit()


def measure_codec() -> None:
    by_type: dict[str, list[Event]] = {}
    for event in islice(Story(3), 5_000):
        by_type.setdefault(type(event).__name__, []).append(event)
    rows = []
    for name, events in by_type.items():
        own = events[:500]
        texts = [encode(event) for event in own]
        write = median_cpu_s(lambda own=own: [encode(event) for event in own], 3) / len(own)  # type: ignore[misc]
        read = median_cpu_s(lambda texts=texts: [decode(text) for text in texts], 3) / len(own)  # type: ignore[misc]
        size = sum(map(len, texts)) / len(own)
        rows.append((name, f"{size:.0f}", f"{write * 1e6:.0f}", f"{read * 1e6:.0f}"))
    counts = Counter(type(event).__name__ for event in islice(Story(3), 5_000))
    rows.sort(key=lambda row: -counts[row[0]])
    show("Events as JSON (plans with all decisions)", ("type", "bytes", "write µs", "read µs"), rows)


def measure_plans() -> None:
    rows = []
    for jobs in (1_000, 10_000):
        before, after = decisions_of(jobs, 0), decisions_of(jobs, 1)
        plain = len(dumps([[d.job, d.gpus, d.reason.name, list(d.evidence)] for d in before]))
        full, change = pack_decisions(before), pack_decision_change(before, after)
        assert change is not None
        for name, block, work, back in (
            ("all columns", full, lambda b=before: pack_decisions(b), lambda f=full: unpack_decisions(f)),
            (
                "a change",
                change,
                lambda b=before, a=after: pack_decision_change(b, a),
                lambda c=change, b=before: unpack_decisions(c, b),
            ),
        ):
            rows.append(
                (
                    f"{jobs:,} jobs, {name}",
                    f"{len(block):,}",
                    times(len(block) / plain, PLAN_BAR if block is full else CHANGE_BAR),
                    f"{median_cpu_s(work, 3) * 1e3:.2f}",
                    f"{median_cpu_s(back, 3) * 1e3:.2f}",
                )
            )
        rows.append((f"{jobs:,} jobs, JSON objects", f"{plain:,}", "1", "", ""))
    show("The decisions of one plan", ("", "bytes", "of JSON objects", "write ms", "read ms"), rows)


def decisions_of(jobs: int, cycle: int) -> Decisions:
    """Random ids, one in twenty rows with numbers of its own; from cycle to cycle two jobs go, two come."""
    chance, rng = Random(1), np.random.default_rng(1)
    names = [f"{chance.randrange(16**10):010x}" for _ in range(jobs + 10)]
    sizes, gpus = rng.integers(1, 17, jobs + 10), rng.integers(0, 17, jobs + 10)
    gpus[rng.integers(0, jobs, 20 * cycle)] += 1
    rows = slice(2 * cycle, jobs + 2 * cycle)
    special = {
        row: (
            Reason.CHANGE_DOES_NOT_PAY,
            (("wanted", 8), ("gain_s", chance.random() * 1e4), ("cost_s", 30.0)),
        )
        for row in range(jobs // 20)
    }
    own, high = sizes[rows], sizes[rows] * 2
    return Decisions(tuple(names[rows]), gpus[rows], None, own, own, high, None, (4 * jobs,), (3,), dict(special))


def measure_snapshot() -> None:
    world = World()
    for node in make_nodes(*[8] * 2000):
        apply(world, NodeAdded(0.0, node))
    for k in range(10_000):
        apply(world, JobSubmitted(float(k), make_job(f"job-{k:06d}", 4, max=8, submit_s=float(k))))
    image = encode_world(world)
    fork, save, load = (
        median_cpu_s(work, 3, 0.0) for work in (world.fork, lambda: encode_world(world), lambda: decode_world(image))
    )
    show(
        f"A World of 10,000 living jobs on 2,000 nodes: an image of {len(image) / 1e6:.2f} MB",
        ("", "CPU ms"),
        [
            ("fork, which the engine waits for", f"{fork * 1e3:.0f}"),
            ("drawing the image, in another thread", f"{save * 1e3:.0f}"),
            ("restoring it", f"{load * 1e3:.0f}"),
        ],
    )


if __name__ == "__main__":
    main()
