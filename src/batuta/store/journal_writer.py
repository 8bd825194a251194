"""The journal: every event and every plan, in order, numbered from 1 without a gap."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from batuta.core.event import Event, JobSubmitted, Planned
from batuta.core.plan import Decisions
from batuta.store.codec import encode, job_of, jobs_of, without_decisions
from batuta.store.database import Database, Statement
from batuta.store.decision_columns import pack, pack_change, unpack
from batuta.store.journal_reader import JournalReader, checked_text, column_text
from batuta.store.records import Tasks
from batuta.store.snapshots import Snapshots

_ADD_EVENT = "INSERT INTO events (seq, time_s, job, body) VALUES (?, ?, ?, ?)"
_ADD_PLAN = "INSERT INTO plans (seq, base, decisions) VALUES (?, ?, ?)"
_ADD_PLAN_JOB = "INSERT INTO plan_jobs (seq, job) VALUES (?, ?)"
_CHUNK, _PAUSE_S = 2_000, 0.005
"""Events that are pruned in one transaction, and a pause after it, so that the engine never waits long."""
_FEW = 64
"""Fewer decisions than this are always written in full: a change would not be smaller."""


@dataclass(slots=True)
class _Base:
    """The last plan whose decisions were written in full."""

    seq: int
    decisions: Decisions
    size_bytes: int
    spent_bytes: int = 0
    """What the changes of it have taken since."""


class JournalWriter(JournalReader):
    """The one writer of a journal, and a reader of it.

    `append` is quick and touches no disk. `commit` makes everything since the last one durable, together.
    What happened must not be acknowledged, and a command not be carried out, before that.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        super().__init__(database)
        self.snapshots = Snapshots(self.database, self)
        self._last_seq = self._committed_seq = super().durable_seq
        self._listeners: list[Callable[[int], None]] = []
        self._plan_base: _Base | None = None
        """None after a start: the first plan is written in full, so nothing has to be read for it."""

    @property
    def last_seq(self) -> int:
        """The number of the last event that was appended, committed or not."""
        return self._last_seq

    @property
    def durable_seq(self) -> int:
        """The number of the last event that is committed."""
        return self._committed_seq

    def append(self, event: Event) -> None:
        """Numbers the event and keeps it for the next commit."""
        plan = event if isinstance(event, Planned) else None
        job = job_of(event)
        key = None if job is None else column_text(job)
        body = encode(event if plan is None else without_decisions(plan))
        with self.database.exclusive():
            seq = self._last_seq + 1
            statements: list[Statement] = [(_ADD_EVENT, (seq, _column_time(event), key, body))]
            if plan is not None:
                statements += self._plan_statements(seq, plan)
            # What a job runs outlives its event, which may be pruned while the job still waits.
            elif isinstance(event, JobSubmitted) and (task := getattr(event, "task", "")):
                statements.append((Tasks.PUT, (key, checked_text(task))))
            self.database.stage(statements)
            self._last_seq = seq

    def commit(self) -> int:
        """Makes all that was appended durable; returns the number of the last event.

        JournalUnavailable when the disk is full or the server is away: nothing is lost, try it again.
        """
        with self.database.exclusive():
            seq = self._last_seq
            self.database.commit()
            is_news, self._committed_seq = seq > self._committed_seq, seq
        if is_news:
            for listener in tuple(self._listeners):
                listener(seq)
        return seq

    def on_commit(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Tells `listener` the last number after every commit, in the committing thread; it must not raise.

        Returns how to stop that.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def close(self) -> None:
        """Closes the database. What was appended and not committed is forgotten."""
        self.database.close()

    def _plan_statements(self, seq: int, event: Planned) -> list[Statement]:
        base, block = self._pack(seq, event.plan.decisions)
        return [
            (_ADD_PLAN, (seq, base, block)),
            *((_ADD_PLAN_JOB, (seq, column_text(job))) for job in jobs_of(event)),
        ]

    def _pack(self, seq: int, decisions: Decisions) -> tuple[int, bytes]:
        """The decisions as a change of the last full ones, as long as all changes take less than these."""
        base = self._plan_base
        if base is not None and len(decisions) >= _FEW:
            change = pack_change(base.decisions, decisions)
            if change is not None and base.spent_bytes + len(change) <= base.size_bytes:
                base.spent_bytes += len(change)
                return base.seq, change
        block = pack(decisions)
        # Read back, not kept: nobody else can have a hand on these arrays.
        self._plan_base = _Base(seq, unpack(block), len(block))
        return 0, block

    def prune(self, before_seq: int = 0, before_s: float | None = None) -> int:
        """Removes events older than a number or a time, whichever is later; returns how many.

        A start stays possible from each of the last two snapshots: an event after the older one is never
        removed, and without two sound snapshots nothing is. Another thread may do this.
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
                        "DELETE FROM plans WHERE seq < ?1 "
                        "AND seq NOT IN (SELECT base FROM plans WHERE seq >= ?1)",
                        (start,),
                    ),
                )
            )
            self.database.give_back()
            time.sleep(_PAUSE_S)
        return start - begin


def _column_time(event: Event) -> float | None:
    """No number is no time: SQLite would say so by itself, PostgreSQL would sort it after all others."""
    time_s = float(event.time_s)
    return None if math.isnan(time_s) else time_s
