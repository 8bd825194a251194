"""How much room a journal takes in a file, and that a job's events are found without reading all of it."""

from itertools import islice

import pytest

from batuta.core.apply import apply
from batuta.core.event import JobProgressed
from batuta.core.world import World
from batuta.store.store import SqliteStore
from tests.support.stored_form import empty_log
from tests.support.stories import Story


@pytest.fixture
def store(tmp_path):
    with SqliteStore(tmp_path / "journal.db") as store:
        yield store


def write(store: SqliteStore, events) -> None:
    for event in events:
        store.journal.append(event)
    store.journal.commit()


def test_events_of_a_job_are_found_by_an_index(store):
    write(store, islice(Story(1), 50))
    rows = store.database.rows(
        "EXPLAIN QUERY PLAN SELECT seq, body FROM events WHERE job = ? AND seq > ? UNION ALL "
        "SELECT seq, body FROM plan_jobs JOIN events USING (seq) WHERE plan_jobs.job = ? AND seq > ? "
        "ORDER BY seq",
        *("j", 0, "j", 0),
    )
    text = " ".join(row[-1] for row in rows)
    assert "events_by_job" in text
    assert "plan_jobs_by_job" in text
    assert "SCAN" not in text


def test_events_of_users_are_found_by_an_index(store):
    rows = store.database.rows("EXPLAIN QUERY PLAN SELECT seq FROM events WHERE actor IS NOT NULL ORDER BY seq DESC")
    assert "events_by_actor" in " ".join(row[-1] for row in rows)


def test_pruning_gives_room_back(store):
    world = World()
    for seq, event in enumerate(islice(Story(1), 6000), 1):
        store.journal.append(event)
        apply(world, event)
        if seq in (5000, 5900):
            store.save_snapshot(world, store.journal.commit())
    store.journal.commit()
    before = empty_log(store.database.path)
    store.journal.prune(before_seq=5000)
    assert empty_log(store.database.path) < before * 0.6


def test_progress_is_small(store):
    write(store, [JobProgressed(float(k), f"job-{k % 50:06d}", k / 7) for k in range(5000)])
    assert empty_log(store.database.path) / 5000 < 235
