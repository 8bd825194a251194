"""The schema of a journal in PostgreSQL: made, and grown by the same migrations as a file's."""

from __future__ import annotations

from typing import Any

import psycopg

from batuta.store.dialect import Dialect, postgres_query, postgres_schema
from batuta.store.errors import SchemaError, StoreCorruptError
from batuta.store.postgres_address import PostgresAddress
from batuta.store.postgres_connect import Connection
from batuta.store.schema import migrate, refuse_older


def _is_mistake(error: Exception) -> bool:
    return isinstance(error, psycopg.ProgrammingError | psycopg.NotSupportedError | psycopg.DataError)


POSTGRES = Dialect(
    begin="BEGIN",
    find_table="SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?",
    spell=postgres_schema,
    is_mistake=_is_mistake,
)


class Spoken:
    """A connection that takes queries as the store writes them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: tuple[Any, ...] = (), /) -> Any:
        return self._connection.execute(postgres_query(sql), values)


def prepare(connection: Connection, address: PostgresAddress) -> None:
    """Makes the schema, or brings it up to date. Whoever does so has the writer's lock: nobody else can."""
    _make_schema(connection, address)
    _refuse_foreign(connection, address)
    migrate(Spoken(connection), address.name, dialect=POSTGRES)


def check(connection: Connection, address: PostgresAddress) -> None:
    """For readers, who change nothing."""
    _refuse_foreign(connection, address)
    refuse_older(Spoken(connection), address.name, POSTGRES)


def _make_schema(connection: Connection, address: PostgresAddress) -> None:
    # Asked first: who may not make a schema may still use one that is there.
    if connection.execute(b"SELECT 1 FROM pg_namespace WHERE nspname = $1", (address.schema,)).fetchone():
        return
    try:
        connection.execute(f'CREATE SCHEMA "{address.schema}"'.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaError(
            f"{address.name}: this user may not make the schema; let an owner of the database say "
            f'CREATE SCHEMA "{address.schema}" AUTHORIZATION "{connection.info.user}"'
        ) from error


def _refuse_foreign(connection: Connection, address: PostgresAddress) -> None:
    tables, ours = connection.execute(
        b"SELECT count(DISTINCT table_name), count(*) FILTER (WHERE table_name = 'schema_version' "
        b"AND column_name = 'applied_s') FROM information_schema.columns WHERE table_schema = $1",
        (address.schema,),
    ).fetchone() or (0, 0)
    if tables and not ours:
        raise StoreCorruptError(
            f"{address.name} has tables, but none of Batuta's: name another schema with ?schema="
        )
