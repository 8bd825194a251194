"""Tables beside the journal: tasks, results, settings, tokens, idempotency keys. One class per table.

Rows that belong to an event are staged and become durable with the journal's next commit; what a user
changes beside the engine (a token, a setting) is written at once.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from dataclasses import dataclass
from enum import Enum

from batuta.core.job import JobId
from batuta.store.database import Database, Statement, require_storable, storable_text
from batuta.store.errors import DamagedRowError

MOST_DIGITS = 15  # of an id that counts as a number: every database, and JSON in a browser, represents it exactly
TOKEN_PREFIX = "batuta_"  # lets users and secret scanners recognise a token


class _TextTable:
    """Texts by key."""

    _table: str
    _key: str
    _value: str
    _has_crc = False  # whether a column `crc` has the checksum of each row; NULL in rows of old versions
    PUT: str  # inserts a text, or replaces the one with the same key

    def __init_subclass__(cls) -> None:
        names = [cls._key, cls._value, *(["crc"] if cls._has_crc else [])]
        cls.PUT = (
            f"INSERT INTO {cls._table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT ({cls._key}) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names[1:])}"
        )

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, key: str) -> str | None:
        """Return the text, staged or committed; None when there is none. DamagedRowError: it was changed since."""
        key = storable_text(key)
        text: str | None = self._database.staged_value((self._table, key))
        if text is not None:
            return text
        columns = f"{self._value}, crc" if self._has_crc else f"{self._value}, NULL"
        row = self._database.row(f"SELECT {columns} FROM {self._table} WHERE {self._key} = ?", key)
        if row is None:
            return None
        text, crc = row
        if crc is not None and crc != _crc(key, str(text)):
            raise DamagedRowError(
                f"the row {key} of {self._table} in {self._database.name} is damaged: its checksum is wrong. "
                f"{self._database.way_out}"
            )
        return text

    @classmethod
    def statement(cls, key: str, value: str) -> Statement:
        """Return what inserts a text, or replaces the one with the same key."""
        key, value = storable_text(key), require_storable(value)
        return cls.PUT, (key, value, _crc(key, value)) if cls._has_crc else (key, value)

    def stage(self, key: str, value: str) -> None:
        """Set a text with the next commit."""
        self._database.stage([self.statement(key, value)], (self._table, storable_text(key)), value)


def _crc(key: str, value: str) -> int:
    return zlib.crc32(f"{key}|{value}".encode())


class Tasks(_TextTable):
    """What each job runs, as JSON. The journal fills it from the task of `JobSubmitted`."""

    _table, _key, _value = "tasks", "job_id", "task_json"
    _has_crc = True

    def largest_number(self) -> int:
        """Return the largest committed id that is a decimal number; 0 when there is none."""
        row = self._database.row(
            "SELECT max(CAST(job_id AS BIGINT)) FROM tasks "
            "WHERE ltrim(job_id, '0123456789') = '' AND length(job_id) BETWEEN 1 AND ?",
            MOST_DIGITS,
        )
        return int(row[0] or 0) if row else 0

    def has(self, job: JobId) -> bool:
        """Return whether a job was ever submitted: its task is kept longer than the World keeps the job."""
        return self._database.row("SELECT 1 FROM tasks WHERE job_id = ?", storable_text(job)) is not None


def job_number(job: JobId) -> int:
    """Return the number that a job's id is; 0 for an id that is none."""
    is_number = job.isascii() and job.isdecimal() and len(job) <= MOST_DIGITS
    return int(job) if is_number else 0


class Results(_TextTable):
    """What each job returned, as JSON."""

    _table, _key, _value = "results", "job_id", "value"


class Settings(_TextTable):
    """Settings made at run time that outlive a restart, such as the active policy."""

    _table, _key, _value = "settings", "key", "value"

    def put(self, key: str, value: str) -> None:
        """Set a value; it is durable when this returns."""
        self._database.write_now([self.statement(key, value)])

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
    expires_s: float | None = None  # None: it does not end by itself

    def is_valid(self, now_s: float) -> bool:
        return self.expires_s is None or now_s < self.expires_s


class Tokens:
    """Users and roles by token. A token has 256 random bits, so a plain hash identifies it safely."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, user: str, role: Role, now_s: float, expires_s: float | None = None) -> str:
        """Create a token and return it; it cannot be read again. Without a time it does not end by itself."""
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        self.add(token, user, role, now_s, expires_s)
        return token

    def add(self, token: str, user: str, role: Role, now_s: float, expires_s: float | None = None) -> None:
        """Store a token that was created elsewhere."""
        sql = (
            'INSERT INTO tokens (hash, "user", role, created, expires) VALUES (?, ?, ?, ?, ?) ON CONFLICT (hash) '
            'DO UPDATE SET "user" = excluded."user", role = excluded.role, created = excluded.created, '
            "expires = excluded.expires"
        )
        self._database.write_now([(sql, (hash_of(token), require_storable(user), role.value, now_s, expires_s))])

    def find(self, token: str) -> Token | None:
        """Return the user and role of a token; None for an unknown one."""
        return next(iter(self._select("WHERE hash = ?", hash_of(token))), None)

    def all(self) -> list[Token]:
        return self._select("ORDER BY created, hash")

    def _select(self, which: str, *values: str) -> list[Token]:
        rows = self._database.rows(f'SELECT hash, "user", role, created, expires FROM tokens {which}', *values)
        return [Token(hash_, user, Role(role), created, expires) for hash_, user, role, created, expires in rows]

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
