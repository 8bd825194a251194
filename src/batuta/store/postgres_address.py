"""Where a journal in PostgreSQL is: a URL as libpq reads it, and the schema in which the tables are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from batuta.store.errors import StoreError

DEFAULT_SCHEMA = "batuta"
_SHOWN = ("host", "hostaddr", "port", "dbname")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """One journal on one server. Several may be in one database, each in a schema of its own."""

    url: str
    """For libpq; it may have a password in it."""
    schema: str
    name: str
    """For people: without a password."""
    options: frozenset[str]
    """What the URL sets, so that our defaults leave it alone."""


def read_url(url: str) -> PostgresAddress:
    """Reads `postgresql://user:password@host:port/database?schema=batuta`; raises StoreError with the fix."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        schema = dict(pairs).get("schema", DEFAULT_SCHEMA)
        # libpq refuses what it does not know, and does not know ours.
        query = urlencode([pair for pair in pairs if pair[0] != "schema"])
        plain = f"{parts.scheme}://{parts.netloc}{parts.path}{'?' if query else ''}{query}"
        known = conninfo_to_dict(plain)
    except (ValueError, psycopg.ProgrammingError) as error:
        # Neither the URL nor all of the error: there may be a password in it.
        raise StoreError(
            "the journal's URL cannot be read; it looks like postgresql://user@host:5432/database "
            f"(special characters in a password as %XX): {_without_values(str(error))}"
        ) from None
    if not _SCHEMA.fullmatch(schema):
        raise StoreError(
            f"schema={schema} in the journal's URL: a schema has up to 63 lower-case letters, digits and _, "
            "and begins with no digit"
        )
    shown = [pair for pair in pairs if pair[0] in _SHOWN]
    where = parts.netloc.rpartition("@")[2] + parts.path
    name = f"postgresql://{where}?{urlencode([*shown, ('schema', schema)], safe='/')}"
    return PostgresAddress(plain, schema, name, frozenset(known))


def _without_values(message: str) -> str:
    """What libpq says without the parts that it quotes."""
    return re.sub(r'"[^"]*"', "…", message).strip()
