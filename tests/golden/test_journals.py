"""Journals that earlier versions wrote open with this one, mean the same, and are continued.

`journals/README.md` says which version wrote which. What is on disk is read without code of Batuta's
(tests/support/stored_form.py), so a name that changes in the code may not change it on disk.
"""

import json
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batuta.client.client import Client
from batuta.core.apply import apply
from batuta.core.decide import decide
from batuta.core.event import JobSubmitted, Planned, TimePassed
from batuta.core.job import Job
from batuta.engine.profile import profile_for
from batuta.store.records import Role
from batuta.store.store import open_store
from tests.support.event_forms import EVENT_TYPES, every_form, shown
from tests.support.journal_fixture import TOKEN, events_of, facts_after_recovery, open_copy
from tests.support.process_table import end_all
from tests.support.recorded_home import HELLO, MARK, Recording, task, unpack
from tests.support.server_process import PlainServers
from tests.support.stored_form import TABLES, facts_of, missing, rows, unpacked, world_image

FOLDER = Path(__file__).with_name("journals")
FORMS, CLUSTERS, HOMES = (sorted(FOLDER.glob(f"{kind}-*.gz")) for kind in ("forms", "cluster", "home"))
APPEND = "append one to the journals: python -m tests.support.journal_fixture tests/golden/journals forms"
MOST_BYTES = 1 << 20
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="local mode is complete on Linux only")

each_journal = pytest.mark.parametrize("fixture", [*FORMS, *CLUSTERS, *HOMES], ids=lambda path: path.stem)
each_story = pytest.mark.parametrize("fixture", [*CLUSTERS, *HOMES], ids=lambda path: path.stem)
each_cluster = pytest.mark.parametrize("fixture", CLUSTERS, ids=lambda path: path.stem)
each_home = pytest.mark.parametrize("fixture", HOMES, ids=lambda path: path.stem)


def journal_of(fixture: Path, folder: Path) -> Path:
    """The journal of a fixture as a file of its own."""
    if fixture not in HOMES:
        return open_copy(fixture, folder)
    unpack(fixture, folder / "home")
    return folder / "home" / "journal.db"


def recorded_facts(fixture: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FOLDER / f"{fixture.name.partition('.')[0]}.json").read_text())
    return facts


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for sql in statements:
            connection.execute(sql)


# ------------------------------------------------------------------------------- what the journals hold


@pytest.fixture(scope="module")
def known_events(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All events of all journals."""
    return [
        event
        for fixture in (*FORMS, *CLUSTERS, *HOMES)
        for event in events_of(journal_of(fixture, tmp_path_factory.mktemp("known")))
    ]


def test_every_kind_of_event_is_in_a_journal(known_events):
    absent = set(EVENT_TYPES) - {type(event) for event in known_events}
    assert not absent, f"{sorted(kind.__name__ for kind in absent)} in no journal: {APPEND}"


def test_every_form_of_every_event_is_in_a_journal(known_events):
    """Each field with a value and without, each member of each enum, each command with each reason."""
    known = set().union(*map(shown, known_events))
    absent = {form for _, forms in every_form() for form in forms - known}
    assert not absent, f"{sorted(map(str, absent))[:20]} in no journal: {APPEND}"


def test_the_journals_are_small_and_name_no_machine():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MOST_BYTES
    for fixture in HOMES:
        with tarfile.open(fixture) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                assert file is not None
                text = file.read().decode().replace(MARK, "")
                assert not any(place in text for place in ('"/tmp', '"/root', '"/home', '"/work'))


# ------------------------------------------------------------------------------------- the stored form


@each_journal
def test_events_that_are_read_and_written_again_are_stored_as_they_were(fixture, tmp_path):
    """Given a journal, when all its events are appended to an empty one, then both hold the same."""
    path, again = journal_of(fixture, tmp_path), tmp_path / "again.db"
    with open_store(path) as old, open_store(again) as new:
        for entry in old.journal.all_after():
            new.journal.append(entry.event)
        new.journal.commit()
    before, after = _stored(path), _stored(again)
    assert before.keys() == after.keys()
    lost = [f"event {seq}{what}" for seq in before for what in missing(before[seq], after[seq])]
    assert not lost, "\n".join(lost[:20])
    for columns in ("seq, job FROM plan_jobs", "job_id, task_json FROM tasks"):
        assert rows(again, f"SELECT {columns} ORDER BY 1, 2") == rows(path, f"SELECT {columns} ORDER BY 1, 2")


def _stored(path: Path) -> dict[int, Any]:
    """By number: the columns of an event and its JSON; of a plan also what its block holds."""
    found: dict[int, Any] = {
        seq: [time_s, job, json.loads(body)]
        for seq, time_s, job, body in rows(path, "SELECT seq, time_s, job, body FROM events ORDER BY seq")
    }
    for seq, base, block in rows(path, "SELECT seq, base, decisions FROM plans"):
        found[seq] += [base, *unpacked(block)]
    return found


@each_story
def test_a_snapshot_that_is_read_and_saved_again_is_stored_as_it_was(fixture, tmp_path):
    """Given a snapshot, when a start finds nothing after it and saves, then nothing of it is lost.

    A column that is written under another name would begin anew, and nobody would be told.
    """
    path = journal_of(fixture, tmp_path)
    ((seq,),) = rows(path, "SELECT max(seq) FROM snapshots")
    change(path, f"DELETE FROM events WHERE seq > {seq}", f"DELETE FROM plans WHERE seq > {seq}")
    before, past = world_image(path), rows(path, "SELECT * FROM past_jobs ORDER BY number")
    with open_store(path) as store:
        found = store.recover()
        assert (found.seq, found.snapshot_seq, found.unusable) == (seq, seq, ())
        change(path, f"DELETE FROM snapshots WHERE seq = {seq}")
        store.save_snapshot(found.world, found.seq)
    lost = list(missing(list(before), list(world_image(path))))
    assert not lost, "\n".join(lost[:20])
    assert rows(path, "SELECT * FROM past_jobs ORDER BY number") == past


@each_journal
def test_the_tables_of_a_journal_have_the_columns_that_they_had(fixture, tmp_path):
    """Given a journal, when a store has opened it, then no table or column of it is gone."""
    path = journal_of(fixture, tmp_path)
    before = {table: _columns(path, table) for table in TABLES}
    assert all(before.values())
    with open_store(path):
        pass
    for table, columns in before.items():
        assert set(columns) <= set(_columns(path, table)), table


def _columns(path: Path, table: str) -> list[str]:
    return [name for (name,) in rows(path, f"SELECT name FROM pragma_table_info('{table}')")]


# ----------------------------------------------------------------------------------- what they mean


@each_story
def test_a_start_from_the_snapshot_finds_the_recorded_state(fixture, tmp_path):
    assert _as_json(facts_after_recovery(journal_of(fixture, tmp_path))) == recorded_facts(fixture)


@each_story
def test_a_start_that_replays_every_event_finds_the_recorded_state(fixture, tmp_path):
    path = journal_of(fixture, tmp_path)
    change(path, "DELETE FROM snapshots", "DELETE FROM past_jobs")
    assert _as_json(facts_after_recovery(path)) == recorded_facts(fixture)


def _as_json(facts: dict[str, Any]) -> Any:
    return json.loads(json.dumps(facts))


@each_cluster
def test_what_is_kept_beside_the_events_is_found(fixture, tmp_path):
    with open_store(open_copy(fixture, tmp_path)) as store:
        for role in ("viewer", "user", "admin"):
            token = store.tokens.find(f"{TOKEN}-{role}")
            assert token is not None
            assert (token.user, token.role) == ("ada", Role(role))
        assert store.settings.get("a setting") == '{"form": 1}'
        assert store.results.get("j1") == '{"accuracy": 0.75}'
        assert store.tasks.get("crowd-1") == '{"run": "echo 1"}'
        claim = store.idempotency.claim("a key", "another", 99.0, "a digest")
        assert (claim.job, claim.request, claim.is_new) == ("j1", "a digest", False)


# ---------------------------------------------------------------------------------- they are continued


@each_story
def test_a_journal_is_continued_by_new_events_and_plans(fixture, tmp_path):
    """Given a journal, when a job comes and a cycle is run, then the next start finds both, and all else."""
    path = journal_of(fixture, tmp_path)
    before = recorded_facts(fixture)
    with open_store(path) as store:
        found = store.recover()
        world, now_s = found.world, found.world.now_s + 60.0
        events: list[Any] = [
            JobSubmitted(now_s, Job("new", now_s), task='{"run": "true"}'),
            TimePassed(now_s),
        ]
        for event in events:
            apply(world, event)
        events.append(Planned(now_s, decide(world, now_s, profile_for(world.policy))))
        apply(world, events[-1])
        for event in events:
            store.journal.append(event)
        assert store.journal.commit() == found.seq + len(events)
        store.save_snapshot(world, store.journal.durable_seq)
    expected = facts_of(path)
    change(path, f"DELETE FROM snapshots WHERE seq > {found.seq}")
    with open_store(path) as store:
        again = store.recover()
        assert again.seq == found.seq + len(events)
        assert [entry.event for entry in store.journal.read(found.seq + 1)] == events
        store.save_snapshot(again.world, again.seq)
    after = facts_of(path)
    assert after == expected
    assert after["jobs"].keys() == before["jobs"].keys() | {"new"}
    assert after["version"] == before["version"] + len(events)
    assert _as_json({name: after[name] for name in ("quota", "policy")}) == {
        name: before[name] for name in ("quota", "policy")
    }
    assert after["over"].keys() == before["over"].keys()


# ----------------------------------------------------------------------------------- a state directory


LEARNED = ("application-history", "forecast-hindsight")
"""Settings in which a server keeps what it learned from jobs."""


class Continued(NamedTuple):
    """A server on the state directory that an earlier version left, and what is known of that."""

    client: Client
    home: Path
    run: Recording
    facts: dict[str, Any]
    """Recorded with the directory."""
    files: dict[str, Any]
    """By path: what some of its files held before the server was started."""


@pytest.fixture(scope="module", params=HOMES, ids=lambda path: path.stem)
def continued(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Continued]:
    folder = tmp_path_factory.mktemp("continued")
    home = folder / "home"
    unpack(request.param, home)
    files = {name: read_json(home / name) for name in ("jobs/4/job.json", "health/ledger.json")}
    files |= learned_in(home)
    files["token"] = (home / "token").read_text()
    try:
        with PlainServers(folder) as servers:
            run = Recording(folder, servers)
            with run.life() as client:
                yield Continued(client, home, run, recorded_facts(request.param), files)
    finally:
        end_all(home)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def learned_in(home: Path) -> dict[str, Any]:
    found = dict(rows(home / "journal.db", "SELECT key, value FROM settings"))
    return {name: json.loads(found[name]) for name in LEARNED}


@on_linux
def test_a_server_lists_the_old_jobs_as_they_were(continued):
    """Given that its jobs died with the old machine, when a server starts, then those that ran run again."""
    jobs = {job.id: job for job in continued.client.jobs()}
    old = continued.facts["jobs"]
    assert jobs.keys() == old.keys() | continued.facts["over"].keys()
    for job, over in continued.facts["over"].items():
        assert (jobs[job].state, jobs[job].exit_code) == (over["state"], over["exit_code"])
    for job, known in old.items():
        if known["state"] == "running":
            now = _wait_for_size(continued, job, known["gpus"], restarts=known["restarts"] + 1)
        else:
            now = continued.run.wait(continued.client, job, "PENDING", "PREEMPTED")
            assert now.gpus.now == 0
        assert (now.queue, now.wish) == (known["queue"], known["wanted"])
        assert [now.gpus.min, now.gpus.wanted, now.gpus.max] == known["sizes"] or now.cpu is not None


def _wait_for_size(continued: Continued, job: str, gpus: int, restarts: int = 0) -> Any:
    """A job as soon as it runs at this size; the recorded size of a CPU-only job counts replicas.

    `restarts`: it has been started again so often, at least. Until the server has looked, it runs by its journal.
    """
    return continued.run.until(
        lambda: continued.client.job(job),
        lambda now: (
            now.state == "RUNNING" and now.restarts >= restarts and (now.cpu is not None or now.gpus.now == gpus)
        ),
    )


@on_linux
def test_a_job_goes_on_from_the_checkpoint_that_the_old_server_asked_for(continued):
    saved = int((continued.home / "jobs/4/checkpoints/at").read_text())
    job = continued.run.wait(continued.client, "trainer", "RUNNING")
    assert 0 < saved <= continued.facts["jobs"]["4"]["progress"]["step"]
    step = continued.run.until(lambda: continued.client.job(job.id).progress.step, lambda step: step >= saved)
    assert step < saved + 5000


@on_linux
def test_what_people_set_on_the_old_server_still_holds(continued):
    client = continued.client
    assert client.policy().name == continued.facts["policy"] == "afs-l"
    nodes = {node.name: node for node in client.nodes()}
    assert {name: node.cordoned_by for name, node in nodes.items()} == {"node-0": "", "node-1": "ada"}
    queues = {queue["name"] for queue in continued.facts["quota"]["cluster_queues"]}
    named = {(one["kind"], one["metadata"]["name"]) for one in client.quota_objects()}
    assert {("ClusterQueue", name) for name in queues} <= named
    assert {("Cohort", "research"), ("WorkloadPriorityClass", "urgent")} <= named
    assert {(token.user, token.role) for token in client.tokens()} == {("ada", "admin"), ("grace", "viewer")}
    assert (continued.home / "token").read_text() == continued.files["token"]


@on_linux
def test_what_the_old_server_found_out_about_health_is_known(continued):
    (node,) = (node for node in continued.client.nodes() if node.name == "node-1")
    assert node.health is not None
    assert (node.health.state, node.health.remedy) == ("ill", "reboot")
    assert not any(gpu.healthy for gpu in node.gpus)
    ledger = read_json(continued.home / "health/ledger.json")
    assert ledger["next"] >= continued.files["health/ledger.json"]["next"]


@on_linux
def test_what_the_old_server_learned_is_not_forgotten(continued):
    """Given speeds and forecasts in the settings, when the server adds to them, then the old ones stay.

    The recorded jobs are alive, so a forecast that is no longer open was missed by today's clock, and counts.
    """
    before = {name: continued.files[name] for name in LEARNED}
    continued.client.eta()
    after = continued.run.until(
        lambda: learned_in(continued.home), lambda now: all(now[name] != before[name] for name in LEARNED)
    )
    sizes, forecasts = _sizes(before), _forecasts(before)
    assert sizes
    assert sizes <= _sizes(after)
    assert forecasts
    counted = after["forecast-hindsight"]["count"] - before["forecast-hindsight"]["count"]
    assert len(forecasts - _forecasts(after)) == counted


def _sizes(learned: dict[str, Any]) -> set[tuple[str, int]]:
    """Applications, and sizes at which their speed is known."""
    return {(entry[0], size[0]) for entry in learned["application-history"] for size in entry[4]}


def _forecasts(learned: dict[str, Any]) -> set[tuple[str, float]]:
    """Jobs of which something was foretold that is not decided yet, and when."""
    return {(entry[0], entry[1]) for entry in learned["forecast-hindsight"]["open"]}


@on_linux
def test_what_old_jobs_left_behind_can_be_read(continued):
    client = continued.client
    assert client.result("1") == {"accuracy": 0.75}
    assert "".join(client.logs("1", follow=False)).strip() == "hello"
    assert client.explain("10").reason.code == "QUEUE_HELD"
    told = [event.type for event in client.job_events("1")]
    assert (told[0], told[-1]) == ("JobSubmitted", "JobEnded")


@on_linux
def test_a_submit_that_is_sent_again_with_its_old_key_makes_no_second_job(continued):
    with chdir("/"):
        assert continued.client.submit(task("hello", HELLO), key="hello").id == "1"


@on_linux
def test_a_new_job_has_the_next_id_and_runs(continued):
    client, run = continued.client, continued.run
    run.wait(client, "late", "RUNNING")
    client.cancel("late")
    job = client.submit(task("new", "echo new"))
    assert int(job.id) == 1 + max(map(int, {**continued.facts["jobs"], **continued.facts["over"]}))
    assert run.wait(client, job.id, "SUCCEEDED").exit_code == 0


@on_linux
def test_the_account_of_an_old_job_is_continued(continued):
    """Given how long it ran before, when it stops again, then the time since is added to that."""
    run, client = continued.run, continued.client
    run.wait(client, "trainer", "RUNNING")
    client.park("trainer")
    before = continued.files["jobs/4/job.json"]
    account = run.until(
        lambda: read_json(continued.home / "jobs/4/job.json"), lambda now: now["ran_s"] > before["ran_s"]
    )
    assert account["past"][0] == before["past"][0]
    assert len(account["past"]) > len(before["past"])
