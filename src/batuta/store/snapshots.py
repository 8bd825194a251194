"""Snapshots of the World, so that a start replays the last few events and not all of them."""

from __future__ import annotations

import hashlib
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batuta.core.job import JobId
from batuta.core.world import PastJob, World
from batuta.store.database import Database, Statement
from batuta.store.errors import CodecError, RecoveryError, StoreError
from batuta.store.journal_reader import JournalReader, column_text
from batuta.store.values import dumps, form_of, loads
from batuta.store.world_image import draw, restore

KEPT = 2
_PAST: Any = form_of(PastJob)
_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A World and the number of the last event in it."""

    world: World
    seq: int
    unusable: tuple[str, ...] = ()
    """Newer snapshots that could not be read, and why."""


class Snapshots:
    """The last two Worlds that were saved.

    Saving takes a while with many jobs. Another thread may do it, with a fork of the World: drawing needs no
    lock, and the writer is held for the write alone.
    """

    def __init__(self, database: Database, journal: JournalReader) -> None:
        self._database = database
        self._journal = journal
        self._saving = threading.Lock()
        self._distrusted = False
        """A snapshot could not be read: the next one shares nothing with those before it."""

    def save(self, world: World, seq: int) -> None:
        """Saves the World as it is after event `seq`, which has to be committed; keeps the last two."""
        with self._saving:
            if not 0 < seq <= self._journal.durable_seq:
                raise StoreError(f"event {seq} is not committed, so there can be no snapshot after it")
            image = draw(world)
            first, statements = self._past_statements(world)
            digest = _digest(image, first, len(world.past))
            statements += [
                (
                    "INSERT INTO snapshots (seq, first_past, past_count, digest, image) "
                    "VALUES (?, ?, ?, ?, ?) ON CONFLICT (seq) DO UPDATE SET "
                    "first_past = excluded.first_past, past_count = excluded.past_count, "
                    "digest = excluded.digest, image = excluded.image",
                    (seq, first, len(world.past), digest, image),
                ),
                (
                    "DELETE FROM snapshots WHERE seq NOT IN "
                    "(SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                    (KEPT,),
                ),
                ("DELETE FROM past_jobs WHERE number < (SELECT min(first_past) FROM snapshots)", ()),
            ]
            self._database.write_now(statements)
            self._distrusted = False

    def load_latest(self) -> Loaded:
        """The newest World that can be read; an empty one, to replay everything, when there is none.

        Raises RecoveryError when there is none and the oldest events have been pruned.
        """
        unusable: list[str] = []
        for seq in self.seqs():
            try:
                return Loaded(self.load(seq), seq, tuple(unusable))
            except CodecError as error:
                unusable.append(f"snapshot {seq}: {error}")
                self._distrusted = True
        if self._journal.first_seq > 1:
            raise RecoveryError(
                f"{self._database.name}: no snapshot can be read and events before number "
                f"{self._journal.first_seq} are no longer there ({'; '.join(unusable) or 'no snapshot'})"
            )
        return Loaded(World(), 0, tuple(unusable))

    def seqs(self) -> list[int]:
        """The last events of the Worlds that were saved, the newest first."""
        return [seq for (seq,) in self._database.rows("SELECT seq FROM snapshots ORDER BY seq DESC")]

    def load(self, seq: int) -> World:
        """The World of one snapshot."""
        first, count, image = self._sealed(seq)
        world = restore(image)
        for bodies in self._past_bodies(first, count):
            try:
                # Together, for JSON then makes the name of each field once.
                page: list[PastJob] = [_PAST.read(data) for data in loads(f"[{','.join(bodies)}]")]
            except (KeyError, TypeError, ValueError) as error:
                raise CodecError(f"a job that is over cannot be read: {error!r}") from error
            world.past.update((over.job.id, over) for over in page)
        return world

    def needed_from(self) -> int:
        """The first event that a start may need if the newest snapshot turns out to be damaged.

        All of them until there are two snapshots whose checksums are right.
        """
        sound: list[int] = []
        for seq in self.seqs():
            with suppress(CodecError):
                first, count, _ = self._sealed(seq)
                for _ in self._past_bodies(first, count):
                    pass
                sound.append(seq)
        return sound[KEPT - 1] + 1 if len(sound) >= KEPT else 0

    def _sealed(self, seq: int) -> tuple[int, int, bytes]:
        """Numbers of the jobs that are over, and the image, if the checksum is right."""
        row = self._database.row(
            "SELECT first_past, past_count, digest, image FROM snapshots WHERE seq = ?", seq
        )
        if row is None:
            raise CodecError("it is not there")
        first, count, digest, image = row
        if _digest(image, first, count) != digest:
            raise CodecError("its checksum is wrong")
        return first, count, image

    # ------------------------------------------------------------------------------------- jobs that are over

    def _past_statements(self, world: World) -> tuple[int, list[Statement]]:
        """The number of the first job that is over, and how to add those that are not stored yet."""
        jobs = list(world.past)
        known = 0 if self._distrusted else bisect_left(jobs, True, key=lambda job: not self._number_of(job))
        first = self._number_of(jobs[known - 1]) - known + 1 if known else 0
        if (
            not known
            or not self._begins_with(first, jobs[0])
            or not self._is_last(first + known - 1, world.past[jobs[known - 1]])
        ):
            # Nothing to build on, or the World has let go of jobs in between: all are numbered anew.
            known, first = 0, self._next_number()
        return first, [
            _past_statement(first + k, world.past[job]) for k, job in enumerate(jobs[known:], known)
        ]

    def _number_of(self, job: JobId) -> int:
        """The number under which a job is stored; 0 when it is not. Those that are stored come first."""
        rows = self._database.rows("SELECT max(number) FROM past_jobs WHERE job = ?", column_text(job))
        return rows[0][0] or 0

    def _begins_with(self, number: int, job: JobId) -> bool:
        row = self._database.row("SELECT job FROM past_jobs WHERE number = ?", number)
        return row == (column_text(job),)

    def _is_last(self, number: int, over: PastJob) -> bool:
        """Whether this job is stored under the last number there is, and not one that had its id before it.

        A job whose id is used again comes after all that ended before, so to look at the last one will do.
        """
        row = self._database.row("SELECT crc FROM past_jobs WHERE number = ?", number)
        is_same = row == (zlib.crc32(dumps(_PAST.write(over)).encode()),)
        return is_same and number + 1 == self._next_number()

    def _next_number(self) -> int:
        return int(self._database.rows("SELECT coalesce(max(number), 0) + 1 FROM past_jobs")[0][0])

    def _past_bodies(self, first: int, count: int) -> Iterator[list[str]]:
        """Pages of jobs that are over as JSON, if all are there and every checksum is right."""
        found, end = 0, first + count
        sql = "SELECT crc, body FROM past_jobs WHERE number >= ? AND number < ? ORDER BY number"
        for start in range(first, end, _PAGE):
            page = self._database.rows(sql, start, min(start + _PAGE, end))
            if any(zlib.crc32(body.encode()) != crc for crc, body in page):
                raise CodecError("the checksum of a job that is over is wrong")
            found += len(page)
            yield [body for _, body in page]
        if found != count:
            raise CodecError(f"{count - found} of {count} jobs that are over are missing")


def _past_statement(number: int, over: PastJob) -> Statement:
    body = dumps(_PAST.write(over))
    return (
        "INSERT INTO past_jobs (number, job, crc, body) VALUES (?, ?, ?, ?)",
        (number, column_text(over.job.id), zlib.crc32(body.encode()), body),
    )


def _digest(image: bytes, first: int, count: int) -> bytes:
    return hashlib.sha256(b"%d %d " % (first, count) + image).digest()
