"""The journal as its readers see it: what is committed, from any thread, without waiting for the writer."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.plan import Decisions
from batuta.store.codec import Entry, decode, with_decisions
from batuta.store.database import Database
from batuta.store.decision_columns import unpack
from batuta.store.errors import CodecError

PAGE = 1_000


class Text(NamedTuple):
    """An event as it is stored, and its place: for those who pass it on. Plans come without decisions."""

    seq: int
    json: str


class JournalReader:
    """Reads events by number. Numbers ascend without a gap; the oldest may have been pruned."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._base: tuple[int, Decisions] | None = None
        """The plan that later ones were written as changes of, for one is asked for again and again."""

    @property
    def first_seq(self) -> int:
        """The oldest event that is kept; 1 for an empty journal."""
        (seq,) = self._one("SELECT min(seq) FROM events")
        return int(seq or self.durable_seq + 1)

    @property
    def durable_seq(self) -> int:
        """The newest event that is committed; 0 for an empty journal."""
        # A snapshot may be all that is left of the past.
        (seq,) = self._one(
            "SELECT max(seq) FROM "
            "(SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM snapshots) AS newest"
        )
        return int(seq or 0)

    def read(self, from_seq: int = 0, limit: int = PAGE, *, decisions: bool = True) -> list[Entry]:
        """Up to `limit` events from number `from_seq` on. Without decisions, plans are read a lot faster."""
        found = self._database.rows(
            "SELECT seq, body FROM events WHERE seq >= ? ORDER BY seq LIMIT ?", from_seq, limit
        )
        return self._entries(found, decisions)

    def events_after(self, seq: int, limit: int = PAGE, *, decisions: bool = True) -> list[Entry]:
        """What a reader who has seen `seq` has missed, as after a reconnection with Last-Event-ID."""
        return self.read(seq + 1, limit, decisions=decisions)

    def texts_after(self, seq: int, limit: int = PAGE) -> list[Text]:
        """The same as JSON, without reading it."""
        sql = "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        return [Text(*row) for row in self._database.rows(sql, seq, limit)]

    def all_after(self, seq: int = 0, *, decisions: bool = True) -> Iterator[Entry]:
        """All events after `seq`, a page at a time."""
        while page := self.events_after(seq, decisions=decisions):
            yield from page
            seq = page[-1].seq

    def of_job(self, job: JobId, after: int = 0, limit: int = PAGE) -> list[Entry]:
        """Events about one job, and plans that do something to it (without decisions), oldest first."""
        return self._entries(self._rows_of_job(job, after, limit), decisions=False)

    def texts_of_job(self, job: JobId, after: int = 0, limit: int = PAGE) -> list[Text]:
        return [Text(*row) for row in self._rows_of_job(job, after, limit)]

    def decisions_at(self, seq: int) -> Decisions | None:
        """The decisions of the last plan up to and including event `seq`; None when there is none."""
        row = self._database.row("SELECT seq FROM plans WHERE seq <= ? ORDER BY seq DESC LIMIT 1", seq)
        return None if row is None else self._decisions(row[0])

    def seq_at(self, time_s: float) -> int:
        """The number of the last event before a time; the one before the oldest when there is none.

        By bisection: times ascend, but for events that came at nearly the same time.
        """
        first = self.first_seq
        return first + bisect_left(range(first, self.durable_seq + 1), time_s, key=self._time_of) - 1

    def _time_of(self, seq: int) -> float:
        (time_s,) = self._one("SELECT max(time_s) FROM events WHERE seq = ?", seq)
        return -math.inf if time_s is None else float(time_s)

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        return self._database.rows(sql, *values)[0]

    def _rows_of_job(self, job: JobId, after: int, limit: int) -> list[tuple[Any, ...]]:
        key = column_text(job)
        return self._database.rows(
            "SELECT seq, body FROM events WHERE job = ? AND seq > ? UNION ALL "
            "SELECT seq, body FROM plan_jobs JOIN events USING (seq) WHERE plan_jobs.job = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            *(key, after, key, after, limit),
        )

    def _entries(self, rows: Iterable[tuple[Any, ...]], decisions: bool) -> list[Entry]:
        return [Entry(seq, self._event(seq, body, decisions)) for seq, body in rows]

    def _event(self, seq: int, body: str, decisions: bool) -> Event:
        try:
            event = decode(body)
            if decisions and isinstance(event, Planned):
                return with_decisions(event, self._decisions(seq))
        except CodecError as error:
            raise type(error)(f"event {seq} of {self._database.name}: {error}") from error
        return event

    def _decisions(self, seq: int) -> Decisions:
        row = self._database.row("SELECT base, decisions FROM plans WHERE seq = ?", seq)
        if row is None:
            raise CodecError(f"the decisions of plan {seq} are missing")
        base, block = row
        if not base:
            return unpack(block)
        known = self._base
        if known is None or known[0] != base:
            known = self._base = (base, self._decisions(base))
        return unpack(block, known[1])


def column_text(text: str) -> str:
    """A text that any database can store: what JSON can escape and they cannot hold is spelled out.

    That is half a character pair, and for PostgreSQL the character 0.
    """
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\x00", "\\x00")


def checked_text(text: str) -> str:
    """The text itself, if any database can store it. Once staged, one that cannot be spoils every commit."""
    text.encode()
    if "\x00" in text:
        raise ValueError("a text with the character 0 in it cannot be stored")
    return text
