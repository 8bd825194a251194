"""Opening a journal in PostgreSQL: where it is, who has it, and what is refused."""

import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from batuta.core.event import TimePassed
from batuta.store.database import Migration, known_migrations, migrate, schema_version
from batuta.store.errors import (
    AlreadyRunningError,
    SchemaError,
    StoreCorruptError,
    StoreError,
    StoreUnavailableError,
)
from batuta.store.postgres import PostgresDatabase, PostgresStore
from batuta.store.postgres_connection import POSTGRES, Connector, TranslatingConnection, parse_url
from batuta.store.store import SqliteStore, open_store

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def url(server):
    return server.url()


@pytest.fixture
def admin(server):
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        yield admin


@pytest.fixture
def connection(url, admin):
    """A writer's connection to an empty schema, without its lock."""
    address = parse_url(url)
    admin.execute(f"CREATE SCHEMA {address.schema}".encode())
    with Connector(address).writer() as connection:
        yield connection


# -------------------------------------------------------------------------------------------------- addresses


def test_an_address_says_which_store_it_is(url, tmp_path):
    with open_store(url) as store, open_store(tmp_path / "a.db") as other, open_store(str(tmp_path / "b.db")):
        assert isinstance(store, PostgresStore)
        assert isinstance(other, SqliteStore)
    with pytest.raises(StoreError, match=r"at a path or at postgresql://…, not at mysql://"):
        open_store("mysql://host/db")


def test_two_journals_share_a_database_and_nothing_else(server):
    with open_store(server.url()) as one, open_store(server.url()) as other:
        one.journal.append(TimePassed(1.0))
        one.journal.commit()
        assert (len(one.journal.read()), len(other.journal.read())) == (1, 0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://h/db?schema=Bad-Name", r"schema=Bad-Name .* lower-case letters"),
        ("postgresql://h/db?schema=", r"schema= in the journal's URL"),
        ("postgresql://h/db?colour=red", r"cannot be read; it looks like postgresql://user@host"),
        ("postgresql://u:secret%zz@h/db", r"special characters in a password as %XX"),
        ("postgresql://u:secret@[::1/db", r"cannot be read"),
    ],
)
def test_an_address_that_is_wrong_says_how_it_should_be(url, message):
    with pytest.raises(StoreError, match=message) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_password_is_shown_to_nobody(tmp_path):
    address = parse_url("postgresql://ada:secret@db.example:5433/batuta?sslmode=require&password=secret")
    assert address.name == "postgresql://db.example:5433/batuta?schema=batuta"
    with pytest.raises(StoreUnavailableError) as caught:
        open_store(f"postgresql://ada:secret@/batuta?host={tmp_path}")
    assert "secret" not in str(caught.value)
    assert str(caught.value).startswith(f"cannot connect to postgresql:///batuta?host={tmp_path}")


def test_sqlite_works_without_the_driver_and_postgresql_says_what_is_missing(tmp_path):
    program = """
import sys
sys.modules["psycopg"] = None
from batuta.store.store import open_store
open_store(sys.argv[1]).close()
try:
    open_store("postgresql://h/db")
except Exception as error:
    print(type(error).__name__, error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "journal.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("StoreError a journal in PostgreSQL needs the driver psycopg: pip install ")


# ---------------------------------------------------------------------------------------------------- schema


def test_the_same_migrations_are_applied_once(connection):
    spoken = TranslatingConnection(connection)
    assert migrate(spoken, "x", dialect=POSTGRES) == [m.version for m in known_migrations()]
    assert migrate(spoken, "x", dialect=POSTGRES) == []
    assert schema_version(spoken, POSTGRES) == known_migrations()[-1].version


@pytest.mark.parametrize("version", range(1, len(known_migrations())))
def test_a_journal_of_an_old_version_is_brought_up_to_date(connection, url, version):
    migrate(TranslatingConnection(connection), "x", known_migrations()[:version], POSTGRES)
    with pytest.raises(SchemaError, match=rf"schema {version}, .* start the server once"):
        PostgresDatabase(url, read_only=True)
    with open_store(url) as store:
        assert store.database.row("SELECT max(version) FROM schema_version") == (len(known_migrations()),)
        store.settings.put("policy", "fifo")


def test_a_newer_schema_is_refused_and_left_alone(url):
    with open_store(url) as store:
        store.database.write_now([("INSERT INTO schema_version VALUES (99, 'far_future', 0)", ())])
        (before,) = store.database.rows("SELECT term, commits FROM writer")
    with pytest.raises(SchemaError, match=r"schema 99.*up to \d+.*newer version"):
        open_store(url)
    with pytest.raises(SchemaError, match=r"schema 99"):
        PostgresDatabase(url, read_only=True)
    with psycopg.connect(url.partition("&schema")[0]) as admin:
        now = admin.execute(f"SELECT term, commits FROM {parse_url(url).schema}.writer".encode()).fetchone()
    assert now == before


def test_a_migration_that_fails_leaves_nothing_behind(connection):
    good = Migration(1, "good", "CREATE TABLE whole (x INTEGER);")
    bad = Migration(2, "bad", "CREATE TABLE half (x REAL);\nCREATE TABEL oops (y);")
    with pytest.raises(SchemaError, match=r"migration 2 \(bad\)"):
        migrate(TranslatingConnection(connection), "x", [good, bad], POSTGRES)
    assert schema_version(TranslatingConnection(connection), POSTGRES) == 1
    found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    assert {row[0] for row in found} == {"schema_version", "whole"}


def test_numbers_are_as_wide_as_in_a_file(connection):
    migrate(TranslatingConnection(connection), "x", dialect=POSTGRES)
    found = connection.execute(
        "SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = current_schema()"
    )
    assert {row[0] for row in found} == {"bigint", "double precision", "text", "bytea"}


def test_a_schema_of_somebody_else_is_refused(admin, url):
    schema = parse_url(url).schema
    admin.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.poems (body TEXT)".encode())
    for read_only in (False, True):
        with pytest.raises(StoreCorruptError, match=r"none of Batuta's: name another schema with \?schema="):
            PostgresDatabase(url, read_only=read_only)


def test_a_user_who_may_not_make_a_schema_is_told_what_to_ask_for(admin, server, url):
    admin.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(SchemaError, match=r'CREATE SCHEMA "journal_\d+" AUTHORIZATION "guest"') as caught:
        open_store(url.replace("batuta@", "guest@"))
    admin.execute(str(caught.value)[str(caught.value).index("CREATE SCHEMA") :].encode())
    with open_store(url.replace("batuta@", "guest@")) as store:
        store.journal.append(TimePassed(1.0))
        assert store.journal.commit() == 1
    admin.execute("DROP OWNED BY guest; DROP ROLE guest")


def test_a_database_that_cannot_hold_every_text_is_refused(admin, url):
    admin.execute("CREATE DATABASE western ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match=r"encoding LATIN1: make a database with .*UTF8"):
        open_store(url.replace("/postgres?", "/western?"))
    admin.execute("DROP DATABASE western")


# ------------------------------------------------------------------------------------------------- one writer


def test_a_second_server_is_refused_and_told_who_has_it(url):
    with open_store(url):
        with pytest.raises(AlreadyRunningError, match=r"another server writes to .*\(batuta .*pid \d+, from"):
            PostgresStore(url, lock_wait_s=0.05)
        PostgresDatabase(url, read_only=True).close()
    open_store(url).close()


def test_a_server_that_is_just_ending_is_waited_for(url):
    first, opened = open_store(url), []
    thread = threading.Thread(target=lambda: opened.append(PostgresStore(url, lock_wait_s=20.0)))
    thread.start()
    first.close()
    thread.join(30.0)
    opened[0].close()


def test_the_lock_goes_with_a_process_that_is_killed(url):
    program = (
        "import os, sys; from batuta.store.store import open_store; "
        "store = open_store(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPO) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(AlreadyRunningError, match=rf"pid {holder.pid}"):
            PostgresStore(url, lock_wait_s=0.05)
        holder.kill()
    PostgresStore(url, lock_wait_s=20.0).close()


def test_a_reader_cannot_write(url):
    with open_store(url) as store:
        store.settings.put("policy", "fifo")
        reader = PostgresDatabase(url, read_only=True)
        assert reader.rows("SELECT value FROM settings") == [("fifo",)]
        with pytest.raises(StoreError, match="reading only"):
            reader.write_now([("DELETE FROM settings", ())])
        with pytest.raises(StoreError, match="read-only"):
            reader.rows("DELETE FROM settings RETURNING key")
        reader.close()
        with pytest.raises(StoreError, match="closed"):
            reader.rows("SELECT 1")


def test_many_threads_read_over_few_connections(url, admin):
    with open_store(url) as store:
        for k in range(100):
            store.journal.append(TimePassed(float(k)))
        store.journal.commit()
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.extend(len(store.journal.read()) for _ in range(5)))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [100] * 100
        (connections,) = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'batuta %'"
        ).fetchone()
        assert connections <= 1 + 8


def test_a_server_that_commits_in_the_background_is_told_not_to(url, admin):
    admin.execute("ALTER DATABASE postgres SET synchronous_commit = off")
    try:
        with Connector(parse_url(url)).writer() as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        admin.execute("ALTER DATABASE postgres RESET synchronous_commit")
