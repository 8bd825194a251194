"""Writes journals with the code as it is, for tests/golden: python -m tests.support.journal_fixture OUT.

    forms-N.sql.gz    events in every form that the journals of OUT do not show yet (event_forms.py)
    cluster-N.sql.gz  what happened on a cluster, with decided plans, snapshots and the tables beside them
    home-N.tar.gz     the state directory of a real server that was killed (recorded_home.py)
    *-N.json          the state that each of the last two leads to: facts, in words of this file's own

Without further words it writes all three. N is the next number: a journal that is there is never written
again, for it stands for those that people have. After a new kind of event, field or member of an enum:

    python -m tests.support.journal_fixture tests/golden/journals forms
"""

import gzip
import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from batuta.core import event as ev
from batuta.core.job import Job
from batuta.engine.profile import profile_for
from batuta.store.records import Role
from batuta.store.store import open_store
from tests.support.event_forms import every_form, shown
from tests.support.recorded_home import pack, record, unpack
from tests.support.stored_form import dump_database, facts_of, load_database, rows
from tests.support.walks import Walk

TOKEN = "batuta_a-token-of-the-journal-fixture"
POLICIES = ("fifo", "elastic-tiresias", "afs-l")
STEPS = 130
SEED = 7
CROWD = 90


# ---------------------------------------------------------------------------------------------- reading


def open_copy(fixture: Path, folder: Path) -> Path:
    """The database of a fixture in a folder, to be opened by a store."""
    path = folder / f"{fixture.name.partition('.')[0]}.db"
    load_database(gzip.decompress(fixture.read_bytes()).decode(), path)
    return path


def events_of(path: Path) -> list[Any]:
    """All events of a journal, read by the store."""
    with open_store(path) as store:
        return [entry.event for entry in store.journal.all_after()]


def facts_after_recovery(path: Path) -> dict[str, Any]:
    """The state that a start on this journal finds; it is saved in it for that."""
    with open_store(path) as store:
        found = store.recover()
        assert not found.unusable, found.unusable
        store.save_snapshot(found.world, found.seq)
    return facts_of(path)


# ---------------------------------------------------------------------------------------------- writing


def write_forms(folder: Path, out: Path) -> None:
    """Writes a journal of all forms that those in `out` do not show."""
    known = set()
    for number, fixture in enumerate(sorted(out.glob("forms-*.sql.gz"))):
        (folder / f"known-{number}").mkdir()
        for event in events_of(open_copy(fixture, folder / f"known-{number}")):
            known |= shown(event)
    events = [event for event, forms in every_form() if not forms <= known]
    if not events:
        sys.stdout.write("the journals show every form already\n")
        return
    path = folder / "forms.db"
    with open_store(path) as store:
        for event in events:
            store.journal.append(event)
        store.journal.commit()
    _write_sql(path, _next(out, "forms", ".sql.gz"))


def write_cluster(folder: Path, out: Path) -> None:
    """Writes the journal of a cluster on which anything happens, under three policies."""
    path = folder / "cluster.db"
    with open_store(path) as store:
        walk = Walk(SEED)
        for policy in POLICIES:
            walk.happens(ev.PolicySet(walk.now_s, policy))
            walk.rules = profile_for(policy)
            _keep(store, walk.go(STEPS).events)
            store.save_snapshot(walk.world, store.journal.durable_seq)
        for k in range(CROWD):
            walk.happens(
                ev.JobSubmitted(walk.now_s, Job(f"crowd-{k}", walk.now_s, max=2), task=f'{{"run": "echo {k}"}}')
            )
        for _ in range(3):
            walk.now_s += 60.0
            walk.plan()
        _keep(store, walk.events)
        store.results.stage("j1", '{"accuracy": 0.75}')
        store.idempotency.claim("a key", "j1", 12.5, "a digest")
        store.journal.commit()
        for role in Role:
            store.tokens.add(f"{TOKEN}-{role.value}", "ada", role, 12.5)
        store.settings.put("a setting", '{"form": 1}')
    out_path = _next(out, "cluster", ".sql.gz")
    _write_sql(path, out_path)
    _write_facts(facts_after_recovery(path), out_path)


def _keep(store: Any, events: list[Any]) -> None:
    """Stores those that are not stored yet."""
    for event in events[store.journal.last_seq :]:
        store.journal.append(event)
    store.journal.commit()


def write_home(folder: Path, out: Path) -> None:
    """Writes the state directory of a server, which runs for half a minute."""
    out_path = _next(out, "home", ".tar.gz")
    out_path.write_bytes(pack(record(folder / "recording")))
    home = folder / "unpacked"
    unpack(out_path, home)
    _write_facts(facts_after_recovery(home / "journal.db"), out_path)


def _next(out: Path, kind: str, suffix: str) -> Path:
    return out / f"{kind}-{len(list(out.glob(f'{kind}-*{suffix}'))) + 1}{suffix}"


def _write_sql(database: Path, path: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE schema_version SET applied_s = 0")  # the one time of day in it
    # No time in the header: the same journal makes the same file.
    path.write_bytes(gzip.compress(dump_database(database).encode(), 9, mtime=0))
    ((count,),) = rows(database, "SELECT count(*) FROM events")
    sys.stdout.write(f"{path}: {count} events, {path.stat().st_size} bytes\n")


def _write_facts(facts: dict[str, Any], fixture: Path) -> None:
    path = fixture.with_name(f"{fixture.name.partition('.')[0]}.json")
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")


WRITERS = {"forms": write_forms, "cluster": write_cluster, "home": write_home}


def main(out: str, *kinds: str) -> None:
    """Writes what the head of this file says."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds or tuple(WRITERS):
        with tempfile.TemporaryDirectory() as work:
            WRITERS[kind](Path(work), folder)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(WRITERS):
        sys.exit(f"python -m tests.support.journal_fixture OUT [{'|'.join(WRITERS)}]…")
    main(*sys.argv[1:])
