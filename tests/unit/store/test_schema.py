import json
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batuta.core.apply import apply
from batuta.core.event import Planned
from batuta.core.world import World
from batuta.store.codec import encode
from batuta.store.database import Migration, known_migrations, migrate, schema_version, split_statements
from batuta.store.errors import SchemaError
from batuta.store.sqlite import SqliteDatabase
from batuta.store.store import SqliteStore
from tests.support.deep import deep

DATA = Path(__file__).parent / "data"


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def tables(connection: sqlite3.Connection) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


@pytest.fixture
def connection(tmp_path):
    connection = connect(tmp_path / "x.db")
    yield connection
    connection.close()


def test_migrations_are_numbered_and_leave_transactions_alone():
    known = known_migrations()
    assert [m.version for m in known] == list(range(1, len(known) + 1))
    for migration in known:
        words = re.sub(r"--.*", "", migration.sql).upper()
        assert not re.search(r"\b(BEGIN|COMMIT|ROLLBACK|PRAGMA|VACUUM|ATTACH)\b", words), migration.name


def test_all_are_applied_once(connection):
    assert migrate(connection, "x") == [1, 2, 3, 4, 5, 6, 7]
    assert migrate(connection, "x") == []
    assert schema_version(connection) == 7
    assert {"events", "plans", "snapshots", "past_jobs", "tasks", "tokens"} <= tables(connection)
    names = connection.execute("SELECT version, name FROM schema_version").fetchall()
    assert names == [
        (1, "journal"),
        (2, "snapshots"),
        (3, "records"),
        (4, "writer"),
        (5, "identity"),
        (6, "token_expiry"),
        (7, "actors"),
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_a_database_of_an_old_version_is_brought_up_to_date(tmp_path, version):
    """The files were written by the version that had no more than these migrations."""
    path = tmp_path / "journal.db"
    old = connect(path)
    old.executescript((DATA / f"schema_{version}.sql").read_text())
    assert schema_version(old) == version
    old.close()
    with SqliteStore(path) as store:
        assert store.database.row("SELECT max(version) FROM schema_version") == (7,)
        entries, texts = store.journal.read(), store.journal.texts_after(0)
        assert [entry.seq for entry in entries] == list(range(1, 31))
        for entry, text in zip(entries, texts, strict=True):
            assert holds(json.loads(encode(entry.event)), json.loads(text.json)), "it is read otherwise now"
        assert any(isinstance(entry.event, Planned) and len(entry.event.plan.decisions) for entry in entries)
        world = World()
        for entry in entries:
            apply(world, entry.event)
        assert deep(store.recover().world) == deep(world)
        store.settings.put("policy", "fifo")
        assert store.settings.get("policy") == "fifo"


def holds(now: Any, then: Any) -> bool:
    """Whether all that was written is still there; fields may have been added, decisions are elsewhere."""
    if isinstance(then, dict):
        return all(key == "decisions" or (key in now and holds(now[key], own)) for key, own in then.items())
    if isinstance(then, list):
        return len(now) >= len(then) and all(map(holds, now, then))
    return repr(now) == repr(then)


def test_a_newer_schema_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "journal.db"
    SqliteStore(path).close()
    newer = connect(path)
    newer.execute("INSERT INTO schema_version VALUES (99, 'far_future', 0)")
    newer.execute("PRAGMA journal_mode = DELETE")
    newer.close()
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(SchemaError, match=r"schema 99.*up to 7.*newer version"):
            SqliteDatabase(path, read_only=read_only)
    assert path.read_bytes() == before


def test_a_reader_does_not_migrate(tmp_path):
    path = tmp_path / "journal.db"
    old = connect(path)
    old.executescript((DATA / "schema_1.sql").read_text())
    old.close()
    with pytest.raises(SchemaError, match=r"schema 1.*reads 7: start the server once"):
        SqliteDatabase(path, read_only=True)


def test_a_migration_that_fails_leaves_nothing_behind(connection):
    bad = Migration(2, "bad", "CREATE TABLE half (x);\nINSERT INTO half VALUES (1);\nCREATE TABEL oops (y);")
    good = Migration(1, "good", "CREATE TABLE whole (x);")
    with pytest.raises(SchemaError, match=r"migration 2 \(bad\)"):
        migrate(connection, "x", [good, bad])
    assert not connection.in_transaction
    assert schema_version(connection) == 1
    assert tables(connection) == {"schema_version", "whole"}
    assert migrate(connection, "x", [good, Migration(2, "better", "CREATE TABLE half (x);")]) == [2]


def test_a_migration_that_is_killed_leaves_nothing_behind(tmp_path):
    path = tmp_path / "x.db"
    program = f"""
import os, signal, sqlite3
from batuta.store.database import Migration, migrate
connection = sqlite3.connect({str(path)!r}, isolation_level=None)
connection.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
connection.execute("PRAGMA journal_mode = WAL")
sql = "CREATE TABLE half (x);\\nINSERT INTO half VALUES (1);\\nINSERT INTO half SELECT die();"
migrate(connection, "x", [Migration(1, "good", "CREATE TABLE whole (x);"), Migration(2, "deadly", sql)])
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    connection = connect(path)
    assert schema_version(connection) == 1
    assert tables(connection) == {"schema_version", "whole"}
    connection.close()


def test_statements_of_a_script():
    script = "-- first;\nCREATE TABLE a (x); -- it's here\nINSERT INTO a\n  VALUES (';');\n-- the end\n"
    assert [s.strip() for s in split_statements(script)] == [
        "-- first;\nCREATE TABLE a (x); -- it's here",
        "INSERT INTO a\n  VALUES (';');",
    ]
    with pytest.raises(SchemaError, match="no end"):
        list(split_statements("CREATE TABLE a (x)"))
