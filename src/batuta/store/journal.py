"""The journal: every event and every plan, in order, numbered from 1 without a gap."""

from __future__ import annotations

import math
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from batuta.core.event import ByUser, Event, JobSubmitted, Planned
from batuta.core.job import JobId
from batuta.core.plan import Decisions
from batuta.store.codec import (
    JournalEntry,
    decode,
    encode,
    job_of,
    jobs_of,
    pack_decision_change,
    pack_decisions,
    unpack_decisions,
    with_decisions,
    without_decisions,
)
from batuta.store.database import Database, Statement, storable_text
from batuta.store.errors import CodecError, DamagedRowError
from batuta.store.records import Tasks
from batuta.store.snapshots import Snapshots

PAGE = 1_000


def event_crc(seq: int, time_s: float | None, job: str | None, body: str) -> int:
    """Return the checksum of a row of `events`: of all its columns, so that none can be exchanged for another's."""
    # Signed: SQLite then needs four bytes for it, and not six.
    return (zlib.crc32(f"{seq}|{time_s!r}|{job}|{body}".encode()) ^ 0x80000000) - 0x80000000


class StoredEvent(NamedTuple):
    """An event as stored JSON, and its number: for readers that pass it on. Plans come without decisions."""

    seq: int
    json: str


class JournalReader:
    """Reads events by number. Numbers ascend without a gap; the oldest may have been pruned."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._base: tuple[int, Decisions] | None = None  # cache of the last plan that others were written as changes of
        row = database.row("SELECT journal, checked_from FROM identity")
        if row is None:
            raise DamagedRowError(
                f"{database.name} is damaged: it does not say which journal it is. {database.way_out}"
            )
        self.id = str(row[0])  # made at random with the journal
        self._checked_from = int(row[1])

    @property
    def first_seq(self) -> int:
        """The number of the oldest event that is kept; 1 for an empty journal."""
        (seq,) = self._one("SELECT min(seq) FROM events")
        return int(seq or self.durable_seq + 1)

    @property
    def durable_seq(self) -> int:
        """The number of the newest event that is committed; 0 for an empty journal."""
        # A snapshot may be all that is left of the past.
        (seq,) = self._one(
            "SELECT max(seq) FROM "
            "(SELECT max(seq) AS seq FROM events UNION ALL SELECT max(seq) FROM snapshots) AS newest"
        )
        return int(seq or 0)

    def read(self, from_seq: int = 0, limit: int = PAGE, *, decisions: bool = True) -> list[JournalEntry]:
        """Return up to `limit` events from number `from_seq` on. Plans are faster without decisions."""
        texts = self.texts_after(from_seq - 1, limit)
        return [JournalEntry(seq, self._event(seq, body, decisions)) for seq, body in texts]

    def texts_after(self, seq: int, limit: int = PAGE) -> list[StoredEvent]:
        """Return the events after `seq` as stored JSON, as for a client that reconnects with Last-Event-ID."""
        sql = "SELECT seq, time_s, job, body, crc FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
        return self._checked(self._database.rows(sql, seq, limit))

    def all_after(self, seq: int = 0, *, decisions: bool = True) -> Iterator[JournalEntry]:
        """Yield all events after `seq`, a page at a time."""
        while page := self.read(seq + 1, decisions=decisions):
            yield from page
            seq = page[-1].seq

    def texts_of_job(self, job: JobId, after: int = 0, limit: int = PAGE) -> list[StoredEvent]:
        """Return events about one job, and plans that change it, oldest first."""
        key = storable_text(job)
        rows = self._database.rows(
            "SELECT seq, time_s, job, body, crc FROM events WHERE job = ? AND seq > ? UNION ALL "
            "SELECT seq, time_s, events.job, body, crc FROM plan_jobs JOIN events USING (seq) "
            "WHERE plan_jobs.job = ? AND seq > ? ORDER BY seq LIMIT ?",
            *(key, after, key, after, limit),
        )
        return self._checked(rows)

    def texts_by_users(
        self, user: str | None = None, job: JobId | None = None, since_s: float | None = None, limit: int = PAGE
    ) -> list[StoredEvent]:
        """Return events that users caused, the newest first: of one user, about one job, from a time on."""
        asked = (("actor = ?", user), ("job = ?", job), ("time_s >= ?", since_s))
        given = [(sql, value) for sql, value in asked if value is not None]
        where = " AND ".join(("actor IS NOT NULL", *(sql for sql, _ in given)))
        sql = f"SELECT seq, time_s, job, body, crc FROM events WHERE {where} ORDER BY seq DESC LIMIT ?"
        values = (storable_text(value) if isinstance(value, str) else value for _, value in given)
        return self._checked(self._database.rows(sql, *values, limit))

    def verify(self) -> int:
        """Read and check all events; return how many there are. DamagedRowError names the first that is damaged."""
        count, last = 0, self.first_seq - 1
        while page := self.texts_after(last):
            if page[-1].seq != last + len(page):
                raise DamagedRowError(
                    f"{self._database.name}: events after {last} are missing. {self._database.way_out}"
                )
            count, last = count + len(page), page[-1].seq
        return count

    def _checked(self, rows: list[tuple[Any, ...]]) -> list[StoredEvent]:
        """Return events of which every checksum is correct. Versions before `checked_from` wrote none."""
        checked_from, found = self._checked_from, list[StoredEvent]()
        for seq, time_s, job, body, crc in rows:
            if crc != event_crc(seq, time_s, job, body) and (crc is not None or seq >= checked_from):
                raise DamagedRowError(
                    f"event {seq} of {self._database.name} is damaged: its checksum is wrong. {self._database.way_out}"
                )
            found.append(StoredEvent(seq, body))
        return found

    def seq_at(self, time_s: float) -> int:
        """Return the number of the last event before a time; the one before the oldest when there is none.

        By bisection: times ascend, except for events that came at nearly the same time.
        """
        first = self.first_seq
        return first + bisect_left(range(first, self.durable_seq + 1), time_s, key=self._time_of) - 1

    def _time_of(self, seq: int) -> float:
        (time_s,) = self._one("SELECT max(time_s) FROM events WHERE seq = ?", seq)
        return -math.inf if time_s is None else float(time_s)

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        return self._database.rows(sql, *values)[0]

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
            return unpack_decisions(block)
        known = self._base
        if known is None or known[0] != base:
            known = self._base = (base, self._decisions(base))
        return unpack_decisions(block, known[1])


_ADD_EVENT = "INSERT INTO events (seq, time_s, job, body, crc, actor) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_PLAN = "INSERT INTO plans (seq, base, decisions) VALUES (?, ?, ?)"
_ADD_PLAN_JOB = "INSERT INTO plan_jobs (seq, job) VALUES (?, ?)"
_CHUNK, _PAUSE_S = 2_000, 0.005  # events pruned in one transaction, and the pause after it: the engine must not wait
_FEW = 64  # fewer decisions than this are always written in full: a change would not be smaller


@dataclass(slots=True)
class _BasePlan:
    """The last plan whose decisions were written in full."""

    seq: int
    decisions: Decisions
    size_bytes: int
    change_bytes: int = 0  # the size of all changes of it since


class JournalWriter(JournalReader):
    """The one writer of a journal, and a reader of it.

    `append` is quick and touches no disk. `commit` makes everything since the last one durable, together.
    Before that, the engine must not acknowledge an event or carry out a command.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        super().__init__(database)
        self.snapshots = Snapshots(self.database, self)
        self._last_seq = self._committed_seq = super().durable_seq
        self._listeners: list[Callable[[int], None]] = []
        self._plan_base: _BasePlan | None = None  # none after a start: the first plan is written in full

    @property
    def last_seq(self) -> int:
        """The number of the last event that was appended, committed or not."""
        return self._last_seq

    @property
    def durable_seq(self) -> int:
        """The number of the last event that is committed."""
        return self._committed_seq

    def append(self, event: Event) -> None:
        """Number the event and stage it for the next commit."""
        plan = event if isinstance(event, Planned) else None
        job = job_of(event)
        key = None if job is None else storable_text(job)
        actor = event.actor if isinstance(event, ByUser) else None
        actor = None if actor is None else storable_text(actor)
        body = encode(event if plan is None else without_decisions(plan))
        with self.database.exclusive():
            seq = self._last_seq + 1
            # NaN becomes None: SQLite stores it as NULL anyway, PostgreSQL would sort it after all others.
            time_s = None if math.isnan(event.time_s) else float(event.time_s)
            statements: list[Statement] = [
                (_ADD_EVENT, (seq, time_s, key, body, event_crc(seq, time_s, key, body), actor))
            ]
            if plan is not None:
                statements.append((_ADD_PLAN, (seq, *self._pack(seq, plan.plan.decisions))))
                statements += [(_ADD_PLAN_JOB, (seq, storable_text(job))) for job in jobs_of(plan)]
            # The task outlives its event, which may be pruned while the job still waits.
            elif isinstance(event, JobSubmitted) and event.task:
                statements.append(Tasks.statement(event.job.id, event.task))
            self.database.stage(statements)
            self._last_seq = seq

    def commit(self) -> int:
        """Make all that was appended durable; return its last number. JournalUnavailable when that fails: retry."""
        with self.database.exclusive():
            seq = self._last_seq
            self.database.commit()
            is_new, self._committed_seq = seq > self._committed_seq, seq
        if is_new:
            for listener in tuple(self._listeners):
                listener(seq)
        return seq

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call `listener`, which must not raise, with the last number after each commit; return its unsubscribe."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def close(self) -> None:
        """Close the database. What was appended and not committed is dropped."""
        self.database.close()

    def _pack(self, seq: int, decisions: Decisions) -> tuple[int, bytes]:
        """Pack the decisions as a change of the last full ones, unless all changes would outgrow those."""
        base = self._plan_base
        if base is not None and len(decisions) >= _FEW:
            change = pack_decision_change(base.decisions, decisions)
            if change is not None and base.change_bytes + len(change) <= base.size_bytes:
                base.change_bytes += len(change)
                return base.seq, change
        block = pack_decisions(decisions)
        # Read back, not kept: the caller may change its arrays.
        self._plan_base = _BasePlan(seq, unpack_decisions(block), len(block))
        return 0, block

    def prune(self, before_seq: int = 0, before_s: float | None = None) -> int:
        """Remove events older than a number or a time, whichever is later; return how many.

        Recovery stays possible from each of the last two snapshots: an event after the older one is never
        removed, and without two intact snapshots nothing is. Another thread may call this.
        """
        limit = before_seq if before_s is None else max(before_seq, self.seq_at(before_s) + 1)
        limit = min(limit, self.snapshots.needed_from())
        begin = start = self.first_seq
        while start < limit:
            start = min(start + _CHUNK, limit)
            self.database.write_now(
                (
                    ("DELETE FROM events WHERE seq < ?", (start,)),
                    ("DELETE FROM plan_jobs WHERE seq < ?", (start,)),
                    # Plans that are kept may be written as changes of one that is not.
                    (
                        "DELETE FROM plans WHERE seq < ?1 AND seq NOT IN (SELECT base FROM plans WHERE seq >= ?1)",
                        (start,),
                    ),
                )
            )
            self.database.reclaim_space()
            time.sleep(_PAUSE_S)
        return start - begin
