"""Small parts: sessions, ids, sizes, curves, times of cycles, the door."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batuta.api import auth as sessions_module
from batuta.api import event_feed as feed_module
from batuta.api.auth import CODE_S, SESSION_S, Sessions
from batuta.api.cluster_metrics import job_metrics
from batuta.api.dependencies import MAX_JOB_SERIES
from batuta.api.event_feed import EventFeed, EventFilter, read_page
from batuta.api.middleware import SecurityMiddleware
from batuta.api.operations import JobIdAllocator, TaskSizes, patched_job
from batuta.api.request_models import JobPatch
from batuta.api.responses import HttpProblem
from batuta.api.routes.events import stream_events
from batuta.api.routes.jobs import MAX_PROGRESS_BYTES, read_progress_curve, thin
from batuta.api.scheduler_counters import CYCLE_BUCKETS_S, SchedulerCounters
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Placement, Span
from batuta.core.decide import decide
from batuta.core.job import Progress
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.utilisation import IdleRules
from batuta.core.world import World
from batuta.spec.problem import InputError
from batuta.store.errors import StoreBusyError
from batuta.store.store import SqliteStore
from tests.support.fixed_policy import rules_that_give
from tests.support.snapshots import snapshot_of
from tests.support.worlds import carry_out, make_job, make_nodes, make_world


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "journal.db") as opened:
        yield opened


# ------------------------------------------------------------------------------------------------- sessions


def test_a_code_works_once_within_a_minute(store: SqliteStore) -> None:
    now = [1000.0]
    sessions = Sessions(store.settings, lambda: now[0])
    first, second = sessions.new_code("t"), sessions.new_code("t")
    cookie = sessions.use_code(first)
    assert cookie is not None
    assert sessions.use_code(first) is None
    assert sessions.token_of(cookie) == "t"
    now[0] += CODE_S
    assert sessions.use_code(second) is None
    assert sessions.use_code("") is None
    now[0] += SESSION_S
    assert sessions.token_of(cookie) is None


def test_codes_do_not_pile_up(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_MAX_CODES", 5)
    sessions = Sessions(store.settings, lambda: 1000.0)
    codes = [sessions.new_code("t") for _ in range(8)]
    assert [sessions.use_code(code) is not None for code in codes] == [False] * 3 + [True] * 5


def test_the_key_is_kept(store: SqliteStore) -> None:
    first = Sessions(store.settings, lambda: 1000.0)
    cookie = first.use_code(first.new_code("t"))
    assert cookie is not None
    assert Sessions(store.settings, lambda: 1000.0).token_of(cookie) == "t"
    store.settings.remove("session-key")
    assert Sessions(store.settings, lambda: 1000.0).token_of(cookie) is None


# ------------------------------------------------------------------------------------------------------ ids


def test_numbers_go_on_after_the_largest(store: SqliteStore) -> None:
    world = make_world(make_nodes(1), jobs=[make_job("7"), make_job("x9"), make_job("²")])
    assert JobIdAllocator(store).next(world) == 8
    store.tasks.stage("41", "{}")
    store.journal.append(ev.TimePassed(1.0))
    store.journal.commit()
    numbers = JobIdAllocator(store)
    assert [numbers.next(world), numbers.next(world)] == [42, 43]
    assert JobIdAllocator(store).next(World()) == 42


# ---------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("patch", "legal", "expected"),
    [
        ({"nodes": 3}, None, (3, 3, 3)),
        ({"min_nodes": 1}, None, (1, 2, 4)),
        ({"max_nodes": 8}, None, (2, 2, 8)),
        ({"min_nodes": 3}, None, (3, 3, 4)),
        ({"max_nodes": 2}, None, (2, 2, 2)),
        ({"nodes": 4, "min_nodes": 1, "max_nodes": 8}, None, (1, 4, 8)),
        ({"nodes": 4}, (2, 4), (4, 4, 4)),
        ({"min_nodes": 2, "max_nodes": 8}, (1, 2, 8), (2, 2, 8)),
        ({"priority": 5, "queue": "q"}, (1,), (2, 2, 4)),
        ({"auto": True}, None, (2, 2, 4)),
    ],
)
def test_other_sizes(patch: dict[str, Any], legal: tuple[int, ...] | None, expected: tuple[int, int, int]) -> None:
    job = make_job("a", 4, min=4, max=8, gpus_per_replica=2)
    changed = patched_job(job, JobPatch(**patch), TaskSizes(2, 2, 4, legal))
    assert (changed.min, changed.size, changed.max) == tuple(2 * n for n in expected)
    assert not changed.faults()
    assert changed.priority == patch.get("priority", 0)
    assert len(changed.curve.speeds) > changed.max
    assert changed.curve.speeds[:9] == job.curve.speeds


@pytest.mark.parametrize("patch", [{"nodes": 3}, {"min_nodes": 3}, {"min_nodes": 9}, {"nodes": 8, "max_nodes": 4}])
def test_sizes_that_are_none(patch: dict[str, Any]) -> None:
    job = make_job("a", 2, min=1, max=4, sizes=(1, 2, 4))
    with pytest.raises((HttpProblem, InputError)):
        patched_job(job, JobPatch(**patch), TaskSizes(1, 2, 4, (1, 2, 4)))


# ------------------------------------------------------------------------------------------------- progress

LINES = 150_000


def write(path: Path, reports: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(report) + "\n" for report in reports))
    return path


def test_a_curve_is_of_one_rank(tmp_path: Path) -> None:
    reports = [{"rank": rank, "step": step, "time": step} for step in range(3) for rank in (1, 0)]
    points = read_progress_curve(write(tmp_path / "p", reports), 100)
    assert [point["step"] for point in points] == [0, 1, 2]


def test_speed_is_measured_within_one_run(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = [
        {"time": 0, "samples": 0, "restart": 0},
        {"time": 10, "samples": 100, "restart": 0},
        {"time": 100, "samples": 100, "restart": 1},
        {"time": 110, "samples": 300, "restart": 1},
        {"time": 105, "samples": 400, "restart": 1},
    ]
    points = read_progress_curve(write(tmp_path / "p", reports), 100)
    assert [point["samples_per_s"] for point in points] == [None, 10.0, None, 20.0, 60.0]


def test_checkpoints_and_garbage_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "p", [{"step": 1}, {"event": "checkpoint", "path": "/x", "step": 1}, {"step": 2}])
    with path.open("a") as file:
        file.write('garbage\n{"step": "x"}\n{"step": 3, "loss": NaN}\n{"st')
    points = read_progress_curve(path, 100)
    assert [(point["step"], point["loss"]) for point in points] == [(1, None), (2, None), (3, None)]
    assert read_progress_curve(tmp_path / "none", 10) == []


def test_what_was_rotated_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "p.1", [{"step": 1}])
    assert [point["step"] for point in read_progress_curve(write(tmp_path / "p", [{"step": 2}]), 9)] == [1, 2]


def test_a_long_file_is_read_in_places(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text(
        "".join(f'{{"time": {k}, "step": {k}, "samples": {2 * k}, "loss": 0.123456789}}\n' for k in range(LINES))
    )
    assert path.stat().st_size > 2 * MAX_PROGRESS_BYTES
    points = read_progress_curve(path, 500)
    steps = [point["step"] for point in points]
    assert (len(steps), steps[0], steps[-1]) == (500, 0, LINES - 1)
    assert steps == sorted(steps)
    assert max(b - a for a, b in pairwise(steps)) < 2000
    assert {point["samples_per_s"] for point in points[1:]} == {2.0}


@pytest.mark.parametrize(("count", "points"), [(0, 5), (1, 1), (5, 5), (10, 1), (10, 2), (10, 3), (7, 6)])
def test_thinning_keeps_the_ends(count: int, points: int) -> None:
    found = thin(range(count), points)
    assert len(found) == min(count, points)
    assert found == sorted(set(found))
    if count:
        assert found[-1] == count - 1
        assert points == 1 or found[0] == 0


# ------------------------------------------------------------------------------------------------ the others


def test_times_of_cycles_are_counted() -> None:
    watch = SchedulerCounters()
    for _ in range(3):
        watch.deciding()
        watch.decided(World(), Plan(0, 0.0, "x", (), (), no_decisions()))
        watch.saw(World(), ev.TimePassed(1.0))
        watch.postponed(World())
    assert watch.count == sum(watch.times.buckets) == 3
    assert 0 <= watch.last_s <= watch.times.total_s
    assert len(watch.times.buckets) == len(CYCLE_BUCKETS_S) + 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:99", 200),
        ("127.0.0.1", 200),
        ("[::1]:5", 200),
        ("own.example", 200),
        ("", 421),
        ("[::1", 421),
        ("localhost.", 421),
        ("user@localhost@evil", 421),
        ("evil", 421),
    ],
)
def test_the_door_knows_its_names(host: str, status: int) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {"type": "http", "path": "/", "headers": [(b"host", host.encode())]}
    asyncio.run(SecurityMiddleware(app, ["own.example"])(scope, receive, send))
    assert sent[0]["status"] == status
    assert b"nosniff" in dict(sent[0]["headers"]).values()


def test_only_some_jobs_have_metrics_of_their_own() -> None:
    jobs = [make_job(f"{k:03}") for k in range(80)]
    world = make_world(make_nodes(80), jobs=jobs)
    for k, job in enumerate(jobs):
        carry_out(world, [Start(job.id, Placement((Span("n0", (k,)),)), Reason.ADMITTED)], 1.0)
        apply(world, ev.JobStarted(1.0, job.id))
        apply(world, ev.JobProgressed(2.0, job.id, 5.0, progress=Progress(samples_per_s=1.0 if k else None)))
    families = {family.name: family for family in job_metrics(snapshot_of(world))}
    shown = [sample.labels["job_id"] for sample in families["batuta_job_samples_per_second"].samples]
    assert shown == [f"{k:03}" for k in range(1, MAX_JOB_SERIES)]
    assert not families["batuta_job_progress_ratio"].samples


def test_idle_jobs_have_a_metric() -> None:
    # given two jobs, of which one leaves its GPU idle for longer than it should
    world = make_world(make_nodes(2), {"a": "n0:0", "b": "n0:1"}, [make_job("a"), make_job("b")])
    for time_s in (2000.0, 2100.0):
        apply(world, ev.GpusUsed(time_s, "n0", (0.0, 0.9)))
    plan = decide(world, 2100.0, replace(rules_that_give(a=1, b=1), idle=IdleRules(after_s=60.0)))
    # then Prometheus is told for how long
    families = {family.name: family for family in job_metrics(snapshot_of(world, plan))}
    (sample,) = families["batuta_job_idle_seconds"].samples
    assert (sample.labels["job_id"], sample.value) == ("a", 100.0)


def test_a_journal_that_cannot_be_read_for_a_moment(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [StoreBusyError("busy")]

    def read_or_fail(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return read_page(*arguments)

    monkeypatch.setattr(feed_module, "read_page", read_or_fail)
    monkeypatch.setattr(feed_module, "_RETRY_S", 0.01)

    async def go() -> None:
        feed = EventFeed(store.journal)
        task = asyncio.create_task(feed.run())
        store.journal.append(ev.TimePassed(1.0))
        store.journal.commit()
        assert await feed.wait(5)
        assert [told.type for told in await feed.after(0)] == ["TimePassed"]
        assert not failures
        task.cancel()

    asyncio.run(go())


def test_the_feed_has_no_gaps(store: SqliteStore) -> None:
    """A reader at any place gets all that comes after it, whether it is kept or has to be read again."""

    def write_events(first: int, count: int) -> None:
        for k in range(first, first + count):
            store.journal.append(ev.TimePassed(float(k)))
        store.journal.commit()

    async def go() -> None:
        feed = EventFeed(store.journal)
        task = asyncio.create_task(feed.run())
        write_events(1, 700)
        await feed.wait(5)
        while feed.last_seq < 700:
            await asyncio.sleep(0.01)
        for at in (0, 350, 699):
            feed._recent = type(feed._recent)(list(feed._recent)[-400:], maxlen=400)
            frames = [frame async for frame in stream_events(feed, store.journal, at, EventFilter(), follow=False)]
            ids = [line for line in b"".join(frames).decode().split("\n") if line.startswith("id: ")]
            assert ids == [f"id: {k}" for k in range(at, 701)]
        feed.close()
        assert await feed.wait(5)
        task.cancel()

    asyncio.run(go())
