"""Where SQLite and PostgreSQL differ in what they are told. Everything else is written once, for both.

Queries are in the subset that both speak, with `?` (or `?1`) for a value; migrations are in SQLite's words.
Two traps for whoever adds one: PostgreSQL has no `INSERT OR REPLACE` (say `ON CONFLICT … DO UPDATE`), and
takes `user` for the name of who is connected (say `"user"`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

_WORDS = {
    "INTEGER": "BIGINT",  # SQLite's holds 64 bits, PostgreSQL's 32
    "REAL": "DOUBLE PRECISION",  # the same
    "BLOB": "BYTEA",
    "WITHOUT ROWID": "",  # how SQLite lays out a table
}
_WORD = re.compile(rf"--[^\n]*|'[^']*'|\b(?P<word>{'|'.join(_WORDS)})\b")
_PLACE = re.compile(r"\?(\d*)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a migration needs to know about the database that it changes."""

    begin: str
    """Begins a transaction that nobody else's can come in between of."""
    find_table: str
    """Finds a row if there is a table of the name that is its one value."""
    spell: Callable[[str], str]
    """A statement, as this database takes it."""
    is_mistake: Callable[[Exception], bool]
    """Whether an error says that the statement is wrong, and not that the moment is."""


def postgres_schema(sql: str) -> str:
    """A statement of a migration in PostgreSQL's words: the types, and nothing else."""
    return _WORD.sub(lambda found: _WORDS[found["word"]] if found["word"] else found[0], sql)


@lru_cache(maxsize=256)
def postgres_query(sql: str) -> bytes:
    """A query with its places as PostgreSQL numbers them: `?` becomes `$1`, `$2`, …, `?1` becomes `$1`."""
    numbers = count(1)
    return _PLACE.sub(lambda found: f"${found[1] or next(numbers)}", sql).encode()
