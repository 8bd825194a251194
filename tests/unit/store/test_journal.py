import json
import re
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from batuta.core.apply import apply
from batuta.core.event import ActionTaken, JobEnded, JobStarted, JobSubmitted, JobWished, Planned, TimePassed
from batuta.core.job import DesiredState, Job, JobState
from batuta.core.plan import Decisions, Plan, Preempt, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.engine.ports import Journal
from batuta.engine.profile import profile_for
from batuta.store import journal as journal_module
from batuta.store.codec import JournalEntry, decode, without_decisions
from batuta.store.errors import CodecError, DamagedRowError, UnknownEventError
from batuta.store.journal import JournalWriter
from batuta.store.store import SqliteStore, recover
from tests.support.deep import deep
from tests.support.memory_journal import replay
from tests.support.store_places import rewrite_event
from tests.support.stories import Story
from tests.support.walks import Walk
from tests.support.worlds import make_job


@pytest.fixture
def journal(store):
    return store.journal


@pytest.fixture
def reopen(place):
    """Closes a journal and opens it again, as the next server does."""
    return lambda journal: journal.close() or place.open().journal


def events_of(journal: JournalWriter, job: str) -> list[JournalEntry]:
    return [JournalEntry(text.seq, decode(text.json)) for text in journal.texts_of_job(job)]


def write(journal: JournalWriter, events, batch: int = 10) -> list:
    events = list(events)
    for k, event in enumerate(events, 1):
        journal.append(event)
        if k % batch == 0:
            journal.commit()
    journal.commit()
    return events


def test_it_is_what_the_engine_wants(journal):
    port: Journal = journal
    port.append(TimePassed(1.0))
    assert journal.commit() == 1


def test_events_are_numbered_and_there_after_the_commit(journal):
    assert (journal.last_seq, journal.durable_seq, journal.first_seq) == (0, 0, 1)
    journal.append(JobStarted(1.0, "a"))
    journal.append(JobStarted(2.0, "b"))
    assert (journal.last_seq, journal.durable_seq) == (2, 0)
    assert journal.read() == []
    assert journal.commit() == 2
    assert (journal.last_seq, journal.durable_seq) == (2, 2)
    assert [(entry.seq, entry.event.time_s) for entry in journal.read()] == [(1, 1.0), (2, 2.0)]
    assert journal.commit() == 2


def test_what_is_not_committed_is_forgotten(journal, reopen):
    write(journal, islice(Story(1), 20))
    journal.append(TimePassed(99.0))
    with closing(reopen(journal)) as again:
        assert again.last_seq == 20
        again.append(TimePassed(5.0))
        assert again.commit() == 21


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_comes_back_and_every_plan_is_decided_again(journal, reopen, seed, monkeypatch):
    monkeypatch.setattr(journal_module, "_FEW", 0)
    walk = Walk(seed).go(200)
    write(journal, walk.events)
    with closing(reopen(journal)) as again:
        events = [entry.event for entry in again.all_after()]
        assert deep(events) == deep(walk.events)
        assert deep(replay(events, profile_for("fifo"))) == deep(walk.world)


def test_pages(journal):
    events = write(journal, islice(Story(1), 2500), batch=500)
    assert len(journal.read()) == 1000
    assert [entry.seq for entry in journal.read(2499, limit=10)] == [2499, 2500]
    assert [entry.seq for entry in journal.read(2499)] == [2499, 2500]
    assert journal.read(2501) == []
    assert [entry.event for entry in journal.all_after(1200)] == events[1200:]


def test_texts_are_for_passing_on(journal):
    events = write(journal, islice(Story(1), 100))
    texts = journal.texts_after(40, limit=50)
    assert [text.seq for text in texts] == list(range(41, 91))
    for text, event in zip(texts, events[40:], strict=False):
        data = json.loads(text.json)
        assert data["type"] == type(event).__name__
        assert decode(text.json) == (without_decisions(event) if isinstance(event, Planned) else event)


def test_events_of_one_job_with_the_plans_that_touch_it(journal):
    events = write(journal, islice(Story(1), 600))
    for job in ("job-000000", "job-000007", "job-000031"):
        found = events_of(journal, job)
        wanted = [
            seq
            for seq, event in enumerate(events, 1)
            if (isinstance(event, Planned) and any(command.job == job for command in event.plan.commands))
            or getattr(event, "job", None) == job
            or getattr(getattr(event, "job", None), "id", None) == job
        ]
        assert [entry.seq for entry in found] == wanted
        assert isinstance(found[0].event, JobSubmitted)
        assert any(isinstance(entry.event, Planned) for entry in found)
        assert [text.seq for text in journal.texts_of_job(job, after=wanted[2], limit=2)] == wanted[3:5]
    assert events_of(journal, "nobody") == []


def test_jobs_that_only_change_their_tier_are_found_too(journal):
    plan = Plan(0, 1.0, "t", (Preempt("a", Reason.PREEMPTED),), (("b", 1), ("a", 2)), no_decisions())
    write(journal, [Planned(1.0, plan)])
    assert [entry.seq for entry in events_of(journal, "b")] == [entry.seq for entry in events_of(journal, "a")] == [1]


def test_odd_names(journal):
    for name in ("\ud800", "\N{OWL}", "a\x00b", "x' OR '1'='1", ""):
        journal.append(JobStarted(1.0, name))
    journal.commit()
    for seq, name in enumerate(("\ud800", "\N{OWL}", "a\x00b", "x' OR '1'='1", ""), 1):
        assert [(entry.seq, entry.event) for entry in events_of(journal, name)] == [(seq, JobStarted(1.0, name))]


def test_times_that_are_no_numbers(journal):
    write(journal, [TimePassed(float("nan")), TimePassed(float("inf")), TimePassed(np.float64(2.5))])
    assert [repr(float(entry.event.time_s)) for entry in journal.read()] == ["nan", "inf", "2.5"]


def test_the_last_event_before_a_time(journal):
    assert journal.seq_at(5.0) == 0
    write(journal, [TimePassed(t) for t in (1.0, 2.0, 2.0, float("nan"), 3.0)])
    assert [journal.seq_at(t) for t in (0.0, 1.0, 1.5, 2.5, 9.0)] == [0, 0, 1, 4, 5]


def test_listeners_hear_of_commits(journal):
    heard: list[tuple[int, int]] = []
    stop = journal.on_commit(lambda seq: heard.append((seq, journal.durable_seq)))
    write(journal, islice(Story(1), 20), batch=8)
    journal.commit()
    assert heard == [(8, 8), (16, 16), (20, 20)]
    stop()
    write(journal, [TimePassed(1.0)])
    assert len(heard) == 3


def test_what_a_job_runs_is_kept_beside_its_event(journal, monkeypatch):
    """JobSubmitted may bring a task with it; this version of it may not know that yet."""
    if "task" not in JobSubmitted.__slots__:
        monkeypatch.setattr(JobSubmitted, "task", '{"run":"python train.py"}', raising=False)
        event = JobSubmitted(1.0, Job("a", 1.0))
    else:
        event = JobSubmitted(1.0, Job("a", 1.0), task='{"run":"python train.py"}')  # type: ignore[call-arg,unused-ignore]
    journal.append(event)
    assert journal.database.rows("SELECT job_id, task_json FROM tasks") == []
    journal.commit()
    assert journal.database.rows("SELECT job_id, task_json FROM tasks") == [("a", '{"run":"python train.py"}')]


# ----------------------------------------------------------------------------------------- decisions of plans


def plans(count: int, jobs: int):
    """A cluster on which one job comes, one goes and some get other GPUs from plan to plan."""
    chance = np.random.default_rng(5)
    for k in range(count):
        ids = tuple(f"job-{j:05d}" for j in range(k, k + jobs))
        gpus = np.arange(k, k + jobs) % 5
        gpus[chance.integers(0, jobs, 3)] = 8
        fixed = np.full(jobs, 8)
        decisions = Decisions(ids, gpus, None, fixed, fixed, fixed, None, (100,), (k,), {k: (Reason.QUEUE_HELD, ())})
        yield Planned(float(k), Plan(k, float(k), "p", (), (("x", k),), decisions))


def test_most_plans_are_written_as_changes_and_read_in_any_order(journal):
    events = write(journal, plans(60, 500))
    bases = [base for (base,) in journal.database.rows("SELECT base FROM plans ORDER BY seq")]
    assert 2 <= bases.count(0) <= 20
    assert bases[0] == 0
    for seq in (60, 1, 33, 34, 2, 59):
        assert deep(journal.read(seq, 1)[0].event) == deep(events[seq - 1])
    assert len(journal.read(decisions=False)[7].event.plan.decisions) == 0
    full, changes = (
        journal.database.rows(f"SELECT avg(length(decisions)) FROM plans WHERE base {sign} 0")[0][0] for sign in "=>"
    )
    assert changes < full / 2


def test_the_first_plan_after_a_start_needs_no_other(journal, reopen):
    write(journal, plans(3, 1000))
    with closing(reopen(journal)) as again:
        write(again, plans(3, 1000))
        assert [row[0] for row in again.database.rows("SELECT base FROM plans ORDER BY seq")] == [
            0,
            1,
            1,
            0,
            4,
            4,
        ]


def test_who_changes_arrays_afterwards_spoils_nothing(journal):
    one, other = (event.plan.decisions for event in plans(2, 100))
    before, later = deep(one), deep(other)
    journal.append(Planned(0.0, Plan(0, 0.0, "p", (), (), one)))
    one.gpus[:] = 77
    journal.append(Planned(0.0, Plan(0, 0.0, "p", (), (), other)))
    journal.commit()
    assert [deep(entry.event.plan.decisions) for entry in journal.read()] == [before, later]


# ----------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("sql", "kind", "message"),
    [
        ("DELETE FROM plans", CodecError, "the decisions of plan"),
        ("UPDATE plans SET decisions = ''", CodecError, "damaged"),
    ],
)
def test_decisions_that_cannot_be_read_are_named(journal, sql, kind, message):
    write(journal, islice(Story(1), 60))
    journal.database.write_now([(sql, ())])
    with pytest.raises(kind, match=message):
        journal.read()


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("{", CodecError, "event 3 of .*journal.*: not JSON"),
        ('{"v":1,"type":"Q"}', UnknownEventError, "event 3 .*'Q'"),
    ],
)
def test_an_event_of_another_form_is_named(journal, body, kind, message):
    write(journal, islice(Story(1), 60))
    rewrite_event(journal.database, 3, body)
    with pytest.raises(kind, match=message):
        journal.read()


DAMAGE = {
    "another time": "UPDATE events SET time_s = time_s + 1 WHERE seq = 30",
    "another job": "UPDATE events SET job = 'other' WHERE seq = 30",
    "another number": "UPDATE events SET seq = 1000 WHERE seq = 30",
    "one character": "UPDATE events SET body = replace(body, '\"v\":1', '\"v\":2') WHERE seq = 30",
    "the text of another": "UPDATE events SET body = (SELECT body FROM events WHERE seq = 31) WHERE seq = 30",
    "no checksum": "UPDATE events SET crc = NULL WHERE seq = 30",
}


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
def test_an_event_that_was_changed_on_the_disk_is_named_with_the_ways_out(journal, sql):
    write(journal, islice(Story(1), 60))
    assert journal.verify() == 60
    journal.database.write_now([(sql, ())])
    for look in (journal.read, journal.verify, lambda: journal.texts_after(0), lambda: list(journal.all_after(20))):
        with pytest.raises(DamagedRowError, match=r"event (30|1000) of .*is damaged.*(batuta restore|Restore)"):
            look()
    with pytest.raises(DamagedRowError, match="event"):
        recover(journal, journal.snapshots)
    assert len(journal.read(1, 29)) == 29, "what was written before it can still be read"


def test_a_checksum_is_wrong_for_events_of_a_job_as_well(journal):
    job = make_job("a")
    write(journal, [JobSubmitted(1.0, job, task='{"run":"x"}')])
    journal.database.write_now([("UPDATE events SET body = replace(body, '\"a\"', '\"b\"')", ())])
    with pytest.raises(DamagedRowError, match="event 1 "):
        journal.texts_of_job("a")


def test_events_of_versions_without_checksums_are_read_and_continued(place):
    with place.open() as store:
        write(store.journal, islice(Story(1), 50))
        store.database.write_now([("UPDATE events SET crc = NULL", ()), ("UPDATE identity SET checked_from = 51", ())])
    with place.open() as store:
        write(store.journal, [TimePassed(1e9)])
        assert store.journal.verify() == 51
        store.database.write_now([("UPDATE events SET crc = NULL WHERE seq = 51", ())])
        with pytest.raises(DamagedRowError, match="event 51 "):
            store.journal.verify()


def test_events_that_users_caused_are_found_by_user_job_and_time(journal):
    wished = [JobWished(float(k), f"j{k % 2}", DesiredState.PARK, actor=("ana", "ben", None)[k % 3]) for k in range(6)]
    write(journal, [*wished, TimePassed(9.0), ActionTaken(10.0, "token.create", "x", actor="\N{OWL}")])
    assert [text.seq for text in journal.texts_by_users()] == [8, 5, 4, 2, 1]
    assert [text.seq for text in journal.texts_by_users(limit=2)] == [8, 5]
    assert [text.seq for text in journal.texts_by_users("ana")] == [4, 1]
    assert [text.seq for text in journal.texts_by_users("ana", "j1")] == [4]
    assert [text.seq for text in journal.texts_by_users(since_s=4.0)] == [8, 5]
    assert [text.seq for text in journal.texts_by_users("\N{OWL}")] == [8]
    assert [entry.event for entry in journal.read(1, 6)] == wished


def test_each_journal_has_an_id_of_its_own_that_stays(place, tmp_path):
    with place.open() as store, SqliteStore(tmp_path / "other.db") as other:
        own = store.journal.id
        assert re.fullmatch("[0-9a-f]{32}", own)
        assert own != other.journal.id
    with place.open() as again:
        assert again.journal.id == own


# -------------------------------------------------------------------------------------------------- retention


def snapshot_at(journal: JournalWriter, events, *seqs: int) -> World:
    world = World()
    for seq, event in enumerate(events, 1):
        apply(world, event)
        if seq in seqs:
            journal.snapshots.save(world, seq)
    return world


def test_nothing_is_pruned_that_a_start_may_need(journal):
    events = write(journal, islice(Story(1), 1000), batch=200)
    assert journal.prune(before_seq=900) == 0, "there is no snapshot"
    snapshot_at(journal, events, 300)
    assert journal.prune(before_seq=900) == 0, "the only snapshot may turn out to be damaged"
    snapshot_at(journal, events, 600)
    assert journal.prune(before_seq=100) == 99
    assert journal.first_seq == 100
    assert journal.prune(before_seq=900) == 201
    assert journal.first_seq == 301, "the older snapshot and all after it"
    assert journal.prune(before_seq=900) == 0
    journal.database.write_now([("UPDATE snapshots SET image = ? WHERE seq = 600", (b"\0",))])
    snapshot_at(journal, events, 800)
    assert journal.prune(before_seq=900) == 0, "one of the two snapshots is damaged"


def test_pruning_by_time_in_small_steps(journal, monkeypatch):
    monkeypatch.setattr(journal_module, "_CHUNK", 7)
    events = write(journal, islice(Story(1), 1000), batch=200)
    snapshot_at(journal, events, 700, 900)
    wanted = sum(event.time_s < events[500].time_s for event in events)
    assert journal.prune(before_s=events[500].time_s) == wanted
    assert journal.first_seq == wanted + 1
    assert deep([entry.event for entry in journal.all_after()]) == deep(events[wanted:])
    assert journal.last_seq == 1000
    left = journal.database.rows("SELECT min(seq), (SELECT min(seq) FROM plan_jobs) FROM events")[0]
    assert left[1] >= left[0] == wanted + 1


def test_a_change_keeps_the_plan_it_was_made_of(journal):
    events = [TimePassed(0.0), *plans(40, 300)]
    events = [event if isinstance(event, TimePassed) else empty_plan(k, event) for k, event in enumerate(events)]
    write(journal, events)
    snapshot_at(journal, events, 30, 40)
    assert journal.prune(before_seq=30) == 29
    assert deep([entry.event for entry in journal.all_after()]) == deep(events[29:])
    assert journal.database.rows("SELECT count(*) FROM plans WHERE seq < 30") in ([(0,)], [(1,)])


def empty_plan(version: int, event: Planned) -> Planned:
    """The same decisions with nothing to do, which any World takes."""
    return Planned(event.time_s, Plan(version, event.time_s, "p", (), (), event.plan.decisions))


def test_numbers_go_on_after_everything_was_pruned(journal, reopen):
    events = write(journal, islice(Story(1), 100))
    snapshot_at(journal, events, 50, 100)
    journal.database.write_now([("DELETE FROM events", ())])
    with closing(reopen(journal)) as again:
        assert (again.last_seq, again.first_seq) == (100, 101)
        again.append(JobEnded(1e6, "nobody", JobState.FAILED))
        assert again.commit() == 101
