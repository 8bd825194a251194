"""What is durable beside the World: tasks, results, settings, tokens, keys of submits. One class per table.

What belongs to an event is staged and becomes durable with the journal's next commit; what a person does
beside the engine (a token, a setting) is written at once.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from enum import Enum

from batuta.core.job import JobId
from batuta.store.database import Database
from batuta.store.journal_reader import checked_text, column_text

MOST_DIGITS = 15
"""Of an id that counts as a number: every database, and JSON in a browser, holds it exactly."""
TOKEN_PREFIX = "batuta_"
"""So that people, and programs that look for leaked secrets, see what it is."""


class _TextTable:
    """Texts by key."""

    _table: str
    _key: str
    _value: str
    PUT: str
    """Adds a text, or puts it in the place of the one that is there."""

    def __init_subclass__(cls) -> None:
        cls.PUT = (
            f"INSERT INTO {cls._table} ({cls._key}, {cls._value}) VALUES (?, ?) "
            f"ON CONFLICT ({cls._key}) DO UPDATE SET {cls._value} = excluded.{cls._value}"
        )

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> str | None:
        """The text, staged or committed; None when there is none."""
        key = column_text(key)
        text: str | None = self._database.staged_value((self._table, key))
        if text is None:
            row = self._database.row(f"SELECT {self._value} FROM {self._table} WHERE {self._key} = ?", key)
            text = None if row is None else row[0]
        return text

    def all(self) -> dict[str, str]:
        """Everything that is committed."""
        return dict(self._database.rows(f"SELECT {self._key}, {self._value} FROM {self._table}"))

    def _statement(self, key: str, value: str) -> tuple[str, tuple[str, str]]:
        return self.PUT, (column_text(key), checked_text(value))

    def _stage(self, key: str, value: str) -> None:
        self._database.stage([self._statement(key, value)], (self._table, column_text(key)), value)


class Tasks(_TextTable):
    """What each job runs, as JSON. The journal fills it from the events that bring a task with them."""

    _table, _key, _value = "tasks", "job_id", "task_json"

    def stage(self, job: JobId, task_json: str) -> None:
        self._stage(job, task_json)

    def largest_number(self) -> int:
        """The largest id that is a decimal number, of those that are committed; 0 when none is."""
        row = self._database.row(
            "SELECT max(CAST(job_id AS BIGINT)) FROM tasks "
            "WHERE ltrim(job_id, '0123456789') = '' AND length(job_id) BETWEEN 1 AND ?",
            MOST_DIGITS,
        )
        return int(row[0] or 0) if row else 0


class Results(_TextTable):
    """What each job returned, as JSON."""

    _table, _key, _value = "results", "job_id", "value"

    def stage(self, job: JobId, value: str) -> None:
        self._stage(job, value)


class Settings(_TextTable):
    """What was set at run time and holds after a restart, the active policy for one."""

    _table, _key, _value = "settings", "key", "value"

    def put(self, key: str, value: str) -> None:
        """Durable when this returns."""
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
    """Who a token stands for. The token itself is not kept."""

    hash: str
    user: str
    role: Role
    created_s: float


class Tokens:
    """Who may do what. A token has 256 random bits, so a plain hash of it is enough to know it by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, user: str, role: Role, now_s: float) -> str:
        """Makes a token and returns it, for the only time."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        self.add(token, user, role, now_s)
        return token

    def add(self, token: str, user: str, role: Role, now_s: float) -> None:
        """Makes a token known that was made elsewhere."""
        sql = (
            'INSERT INTO tokens (hash, "user", role, created) VALUES (?, ?, ?, ?) ON CONFLICT (hash) '
            'DO UPDATE SET "user" = excluded."user", role = excluded.role, created = excluded.created'
        )
        self._database.write_now([(sql, (hash_of(token), checked_text(user), role.value, now_s))])

    def find(self, token: str) -> Token | None:
        """Who the bearer is; None for a token that is not known."""
        sql = 'SELECT hash, "user", role, created FROM tokens WHERE hash = ?'
        row = self._database.row(sql, hash_of(token))
        return None if row is None else Token(row[0], row[1], Role(row[2]), row[3])

    def all(self) -> list[Token]:
        rows = self._database.rows('SELECT hash, "user", role, created FROM tokens ORDER BY created, hash')
        return [Token(hash_, user, Role(role), created) for hash_, user, role, created in rows]

    def revoke(self, hash_: str) -> bool:
        """Whether there was a token with this hash."""
        return self._database.count_now("DELETE FROM tokens WHERE hash = ?", hash_) > 0


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Claim:
    """Which job a key stands for, and what was asked for with it."""

    job: JobId
    request: str
    is_new: bool


class IdempotencyKeys:
    """Which job a client's key has made, so that the same submit, sent twice, makes one job."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, key: str, job: JobId, now_s: float, request: str = "") -> Claim:
        """The job that has the key already, else the given one, which gets it with the next commit.

        `request` is a digest of what is asked for: the same key for something else is the client's mistake.
        """
        with self._database.exclusive():
            found = self.find(key)
            if found is None:
                sql = "INSERT INTO idempotency (key, job_id, request, created) VALUES (?, ?, ?, ?)"
                values = (column_text(key), checked_text(job), checked_text(request), now_s)
                self._database.stage([(sql, values)], ("idempotency", key), Claim(job, request, False))
                return Claim(job, request, True)
            return found

    def find(self, key: str) -> Claim | None:
        """Who has the key, staged or committed."""
        claim: Claim | None = self._database.staged_value(("idempotency", key))
        if claim is None:
            sql = "SELECT job_id, request FROM idempotency WHERE key = ?"
            row = self._database.row(sql, column_text(key))
            claim = None if row is None else Claim(row[0], row[1], False)
        return claim

    def forget(self, before_s: float) -> int:
        """Removes keys that are older than a time; returns how many."""
        return self._database.count_now("DELETE FROM idempotency WHERE created < ?", before_s)
