"""A batch in few statements: rows that are added to the same table go together, so a busy engine's appends
cost the server one statement for dozens of events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Any

from batuta.store.database import Statement
from batuta.store.dialect import postgres_query

_MOST_ROWS = 64
_PLAIN = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )(\((?:\?, )*\?\))")
"""A row that is added and replaces none. Among such, the order does not matter: there are no foreign keys."""


def in_few(statements: Iterable[Statement]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """The same statements in PostgreSQL's words, in an order with the same outcome."""
    for is_plain, run in groupby(statements, lambda statement: _is_plain(statement[0])):
        if not is_plain:
            yield from ((postgres_query(sql), values) for sql, values in run)
            continue
        rows_of: dict[str, list[tuple[Any, ...]]] = {}
        for sql, values in run:
            rows_of.setdefault(sql, []).append(values)
        for sql, rows in rows_of.items():
            yield from _many(sql, rows)


def _many(sql: str, rows: list[tuple[Any, ...]]) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    start = 0
    while start < len(rows):
        # Powers of two: with a length of its own for each batch, none would be found prepared.
        size = min(_MOST_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
        part = rows[start : start + size]
        yield _with_rows(sql, size), tuple(value for values in part for value in values)
        start += size


@lru_cache(maxsize=256)
def _is_plain(sql: str) -> bool:
    return _PLAIN.fullmatch(sql) is not None


@lru_cache(maxsize=256)
def _with_rows(sql: str, size: int) -> bytes:
    found = _PLAIN.fullmatch(sql)
    assert found is not None
    return postgres_query(found[1] + ", ".join([found[2]] * size))
