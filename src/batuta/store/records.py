"""Tables beside the journal: tasks, results, settings, tokens, idempotency keys. One class per table.

Rows that belong to an event are staged and become durable with the journal's next commit; what a user
changes beside the engine (a token, a setting) is written at once.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import Enum

from batuta.core.job import JobId
from batuta.store.database import Database, require_storable, storable_text

MOST_DIGITS = 15  # of an id that counts as a number: every database, and JSON in a browser, represents it exactly
TOKEN_PREFIX = "batuta_"  # lets users and secret scanners recognise a token


class _TextTable:
    """Texts by key."""

    _table: str
    _key: str
    _value: str
    PUT: str  # inserts a text, or replaces the one with the same key

    def __init_subclass__(cls) -> None:
        cls.PUT = (
            f"INSERT INTO {cls._table} ({cls._key}, {cls._value}) VALUES (?, ?) "
            f"ON CONFLICT ({cls._key}) DO UPDATE SET {cls._value} = excluded.{cls._value}"
        )

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> str | None:
        """Return the text, staged or committed; None when there is none."""
        key = storable_text(key)
        text: str | None = self._database.staged_value((self._table, key))
        if text is None:
            row = self._database.row(f"SELECT {self._value} FROM {self._table} WHERE {self._key} = ?", key)
            text = None if row is None else row[0]
        return text

    def _statement(self, key: str, value: str) -> tuple[str, tuple[str, str]]:
        return self.PUT, (storable_text(key), require_storable(value))

    def stage(self, key: str, value: str) -> None:
        """Set a text with the next commit."""
        self._database.stage([self._statement(key, value)], (self._table, storable_text(key)), value)


class Tasks(_TextTable):
    """What each job runs, as JSON. The journal fills it from the task of `JobSubmitted`."""

    _table, _key, _value = "tasks", "job_id", "task_json"

    def largest_number(self) -> int:
        """Return the largest committed id that is a decimal number; 0 when there is none."""
        row = self._database.row(
            "SELECT max(CAST(job_id AS BIGINT)) FROM tasks "
            "WHERE ltrim(job_id, '0123456789') = '' AND length(job_id) BETWEEN 1 AND ?",
            MOST_DIGITS,
        )
        return int(row[0] or 0) if row else 0


class Results(_TextTable):
    """What each job returned, as JSON."""

    _table, _key, _value = "results", "job_id", "value"


class Settings(_TextTable):
    """Settings made at run time that outlive a restart, such as the active policy."""

    _table, _key, _value = "settings", "key", "value"

    def put(self, key: str, value: str) -> None:
        """Set a value; it is durable when this returns."""
        self._database.write_now([self._statement(key, value)])

    def remove(self, key: str) -> bool:
        return self._database.count_now("DELETE FROM settings WHERE key = ?", key) > 0


class Role(Enum):
    """What the bearer of a token may do."""

    VIEWER = "viewer"
    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """The user and role of a token. The token itself is not stored."""

    hash: str
    user: str
    role: Role
    created_s: float


class Tokens:
    """Users and roles by token. A token has 256 random bits, so a plain hash identifies it safely."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, user: str, role: Role, now_s: float) -> str:
        """Create a token and return it; it cannot be read again."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        self.add(token, user, role, now_s)
        return token

    def add(self, token: str, user: str, role: Role, now_s: float) -> None:
        """Store a token that was created elsewhere."""
        sql = (
            'INSERT INTO tokens (hash, "user", role, created) VALUES (?, ?, ?, ?) ON CONFLICT (hash) '
            'DO UPDATE SET "user" = excluded."user", role = excluded.role, created = excluded.created'
        )
        self._database.write_now([(sql, (hash_of(token), require_storable(user), role.value, now_s))])

    def find(self, token: str) -> Token | None:
        """Return the user and role of a token; None for an unknown one."""
        return next(iter(self._select("WHERE hash = ?", hash_of(token))), None)

    def all(self) -> list[Token]:
        return self._select("ORDER BY created, hash")

    def _select(self, which: str, *values: str) -> list[Token]:
        rows = self._database.rows(f'SELECT hash, "user", role, created FROM tokens {which}', *values)
        return [Token(hash_, user, Role(role), created) for hash_, user, role, created in rows]

    def revoke(self, hash_: str) -> bool:
        """Delete the token with this hash; return whether there was one."""
        return self._database.count_now("DELETE FROM tokens WHERE hash = ?", hash_) > 0


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The job that a key belongs to, and a digest of the request that used it."""

    job: JobId
    request: str
    is_new: bool


class IdempotencyKeys:
    """Jobs by the idempotency key of the client, so that a submit that is sent twice creates one job."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, key: str, job: JobId, now_s: float, request: str = "") -> IdempotencyRecord:
        """Return the job that has the key already, else the given one, which gets it with the next commit.

        `request` is a digest of the request: the same key for another request is an error of the client.
        """
        with self._database.exclusive():
            found = self.find(key)
            if found is None:
                sql = "INSERT INTO idempotency (key, job_id, request, created) VALUES (?, ?, ?, ?)"
                values = (storable_text(key), require_storable(job), require_storable(request), now_s)
                self._database.stage([(sql, values)], ("idempotency", key), IdempotencyRecord(job, request, False))
                return IdempotencyRecord(job, request, True)
            return found

    def find(self, key: str) -> IdempotencyRecord | None:
        """Return the record of the key, staged or committed."""
        claim: IdempotencyRecord | None = self._database.staged_value(("idempotency", key))
        if claim is None:
            sql = "SELECT job_id, request FROM idempotency WHERE key = ?"
            row = self._database.row(sql, storable_text(key))
            claim = None if row is None else IdempotencyRecord(row[0], row[1], False)
        return claim

    def forget(self, before_s: float) -> int:
        """Remove keys that are older than a time; return how many."""
        return self._database.count_now("DELETE FROM idempotency WHERE created < ?", before_s)
