"""Snapshots of the World, so that a start replays the last few events and not all of them.

An image holds the World without its finished jobs, which are stored one by one. `decode_world` builds a
World by the core's own methods, then sets all that was counted or learned since. So what follows from nodes
and requests is never read from a file, and a column that a later version adds starts as for a new job.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from batuta.core.cluster import Node, Placement
from batuta.core.curve import CurvePool, SpeedCurve
from batuta.core.job import Job, JobId, Progress
from batuta.core.job_table import JobTable
from batuta.core.layout import Card, Layout
from batuta.core.node_table import NodeRequirements
from batuta.core.quota import Flavors, Quota
from batuta.core.trial import TrialMeasurement
from batuta.core.utilisation import Idle, Usage
from batuta.core.world import ExcludedNodes, ForeignUsage, PastJob, World
from batuta.store.codec import OUTLOOKS, codec_of, dumps, loads, pack_arrays, unpack_arrays
from batuta.store.database import Database, Statement, storable_text
from batuta.store.errors import CodecError, RecoveryError, StoreError

if TYPE_CHECKING:
    from batuta.store.journal import JournalReader

IMAGE_VERSION = 2  # changes when an older image would be misread; then the journal is replayed
_COUNTERS = ("picky", "irregular", "moving", "broken", "narrow", "held_back", "crowd_s")
_OF_WORLD: dict[str, Any] = {
    "version": int,
    "now_s": float,
    "policy": str,
    "demand_generation": int,
    "progress": dict[str, Progress],
    "leaving": dict[str, Placement],
    "usage": dict[int, Usage],
    "idle": dict[str, Idle],
    "loads": dict[str, float],
    "trials": dict[str, tuple[TrialMeasurement, ...]],
    "quota": Quota,
    "flavors": dict[str, Flavors],
}
"""Attributes of the World that are stored as they are."""
_ADDED_LATER = frozenset(("policy", "demand_generation", "progress", "leaving", "usage", "idle", "loads", "trials"))
"""What an image of an older version may lack."""
_NODES, _JOBS, _PLACEMENTS = list[Node], list[Job], list[Placement | None]
_CHECKPOINTS = dict[str, float | None]
_REACH = dict[NodeRequirements, list[int]]
KEPT_SNAPSHOTS = 2
_PAST: Any = codec_of(PastJob)
_PAGE = 10_000


def encode_world(world: World) -> bytes:
    """Return everything about a World but its finished jobs."""
    jobs = world.jobs
    header = {
        "v": IMAGE_VERSION,
        **{name: _write(kind, getattr(world, name)) for name, kind in _OF_WORLD.items()},
        "open_capacity": world.caches.open_capacity,
        "reach": _write(_REACH, world.caches.reach),
        "outlooks": _write(OUTLOOKS, jobs.outlooks),
        "checkpoints": _write(_CHECKPOINTS, jobs.checkpoints),
        "cordoned": hex(world.cordoned),
        "lost": hex(world.lost),
        "ill": [[i, hex(mask)] for i, mask in world.ill.items()],
        "others": [[i, hex(others.gpus), *others[1:]] for i, others in world.others.items()],
        "avoided": [[job, hex(nodes), until_s] for job, (nodes, until_s) in world.avoided.items()],
        "nodes": _write(_NODES, world.nodes.nodes),
        "types": world.nodes.types,
        "racks": list(world.nodes.by_rack),
        "layout": _encode_layout(world.layout),
        "jobs": _write(_JOBS, jobs.jobs),
        "placements": _write(_PLACEMENTS, jobs.placements),
        "counters": {name: getattr(jobs, name) for name in _COUNTERS},
        "job_queues": [[*key, number] for key, number in jobs.queues.items()],
        "size_sets": list(jobs.size_sets.places),
        "curves": [
            [start, last, curve.across_nodes, curve.across_racks] for curve, (start, last) in jobs.curves.places.items()
        ],
        "curve_room": len(jobs.curves.flat),
        "curve_limit": jobs.curves.limit,
    }
    return pack_arrays(header, jobs.stored_columns() | {"speeds": jobs.curves.flat[: jobs.curves.used]})


def _encode_layout(layout: Layout) -> dict[str, Any]:
    return {
        "free": list(map(hex, layout.free)),
        "healthy": list(map(hex, layout.healthy)),
        "cpus_milli": layout.cpus_milli,
        "memory_mib": layout.memory_mib,
        "buckets": list(map(hex, layout.buckets)),
        "cards": [[i, gpu, *card] for (i, gpu), card in layout.cards.items()],
        "usable": hex(layout.usable),
    }


def decode_world(image: bytes) -> World:
    """Return the World that was encoded, with nothing in `past`."""
    header, arrays = unpack_arrays(image)
    if header.get("v") != IMAGE_VERSION:
        raise CodecError(f"an image of the World has format {header.get('v')}, this version reads {IMAGE_VERSION}")
    try:
        return _decode_world(header, arrays)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise CodecError(f"an image of the World is damaged: {error!r}") from error


def _decode_world(header: dict[str, Any], arrays: dict[str, Any]) -> World:
    world = World()
    for gpu_type in header.get("types", ()):
        # Types and racks are not in the order of the nodes, if a node has changed its type.
        world.nodes.know_type(gpu_type)
    world.nodes.by_rack = dict.fromkeys(header.get("racks", ()), 0)
    for node in _read(_NODES, header["nodes"]):
        world.nodes.add(node)
        world.layout.add(node)
    _decode_layout(world.layout, header["layout"])
    _decode_jobs(world.jobs, header, arrays)
    for name, kind in _OF_WORLD.items():
        if name in header or name not in _ADDED_LATER:
            setattr(world, name, _read(kind, header[name]))
    world.cordoned, world.lost = _bits(header["cordoned"]), _bits(header["lost"])
    world.ill = {i: _bits(mask) for i, mask in header["ill"]}
    world.others = {i: ForeignUsage(_bits(gpus), *rest) for i, gpus, *rest in header.get("others", ())}
    world.avoided = {job: ExcludedNodes(_bits(nodes), until_s) for job, nodes, until_s in header.get("avoided", ())}
    world.caches.reach = _read(_REACH, header["reach"])
    world.caches.open_capacity = header["open_capacity"]
    world.jobs.outlooks = _read(OUTLOOKS, header.get("outlooks", ()))
    return world


def _decode_layout(layout: Layout, data: dict[str, Any]) -> None:
    layout.free = [_bits(mask) for mask in data["free"]]
    layout.healthy = [_bits(mask) for mask in data["healthy"]]
    layout.cpus_milli, layout.memory_mib = data["cpus_milli"], data["memory_mib"]
    layout.buckets = [_bits(nodes) for nodes in data["buckets"]]
    layout.cards = {(i, gpu): Card(*rest) for i, gpu, *rest in data["cards"]}
    layout.usable = _bits(data["usable"])
    layout.total_free = sum(mask.bit_count() for mask in layout.free)


def _decode_jobs(table: JobTable, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    # Numbers of queues, size sets and curves first: inserting a job reuses them.
    table.queues = {(namespace, name): number for namespace, name, number in header["job_queues"]}
    for sizes in header["size_sets"]:
        table.size_sets.add(tuple(sizes))
    _decode_curves(table.curves, header, arrays["speeds"])
    # Checkpoints too: inserting a job computes whether a stop would lose all its progress.
    table.checkpoints = _read(_CHECKPOINTS, header.get("checkpoints", ()))
    for job in _read(_JOBS, header["jobs"]):
        table.insert(job)
    table.curves.limit = header["curve_limit"]
    for name, column in table.stored_columns().items():
        if name in arrays:
            column[:] = arrays[name]
    table.short = {table.ids[row] for row in np.flatnonzero(table.held != table.max).tolist()}
    table.placements = _read(_PLACEMENTS, header["placements"])
    if len(table.placements) != table.n:
        raise CodecError(f"{table.n} jobs have {len(table.placements)} placements")
    for name in _COUNTERS:
        if name in header["counters"]:
            setattr(table, name, header["counters"][name])


def _decode_curves(pool: CurvePool, header: dict[str, Any], speeds: Any) -> None:
    pool.flat = np.zeros(header["curve_room"])
    pool.flat[: len(speeds)] = speeds
    pool.used = len(speeds)
    # No compaction while jobs are inserted: it happens when it would have happened.
    pool.limit = len(speeds)
    values = speeds.tolist()
    for start, last, across_nodes, across_racks in header["curves"]:
        curve = SpeedCurve(tuple(values[start : start + last + 1]), across_nodes, across_racks)
        pool.places[curve] = (start, last)


def _bits(text: str) -> int:
    return int(text, 16)


def _write(kind: Any, value: Any) -> Any:
    write = codec_of(kind).write
    return value if write is None else write(value)


def _read(kind: Any, value: Any) -> Any:
    read = codec_of(kind).read
    return value if read is None else read(value)


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A World and the number of the last event in it."""

    world: World
    seq: int
    unusable: tuple[str, ...] = ()  # newer snapshots that could not be read, and why


class Snapshots:
    """The last two Worlds that were saved.

    Another thread may save, with a fork of the World: encoding needs no lock, only the write blocks the writer.
    """

    def __init__(self, database: Database, journal: JournalReader) -> None:
        self._database = database
        self._journal = journal
        self._saving = threading.Lock()
        self._found_damage = False  # a snapshot could not be read: the next one shares no rows with those before it

    def save(self, world: World, seq: int) -> None:
        """Save the World as it is after event `seq`, which must be committed; keep the last two."""
        with self._saving:
            if not 0 < seq <= self._journal.durable_seq:
                raise StoreError(f"event {seq} is not committed, so there can be no snapshot after it")
            image = encode_world(world)
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
                    "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)",
                    (KEPT_SNAPSHOTS,),
                ),
                ("DELETE FROM past_jobs WHERE number < (SELECT min(first_past) FROM snapshots)", ()),
            ]
            self._database.write_now(statements)
            self._found_damage = False

    def load_latest(self) -> LoadedSnapshot:
        """Return the newest World that can be read; an empty one, to replay everything, when there is none.

        Raises RecoveryError when there is none and the oldest events have been pruned.
        """
        unusable: list[str] = []
        for seq in self.seqs():
            try:
                return LoadedSnapshot(self.load(seq), seq, tuple(unusable))
            except CodecError as error:
                unusable.append(f"snapshot {seq}: {error}")
                self._found_damage = True
        if self._journal.first_seq > 1:
            raise RecoveryError(
                f"{self._database.name}: no snapshot can be read and events before number "
                f"{self._journal.first_seq} are no longer there ({'; '.join(unusable) or 'no snapshot'})"
            )
        return LoadedSnapshot(World(), 0, tuple(unusable))

    def seqs(self) -> list[int]:
        """Return the numbers of the snapshots' last events, the newest first."""
        return [seq for (seq,) in self._database.rows("SELECT seq FROM snapshots ORDER BY seq DESC")]

    def load(self, seq: int) -> World:
        """Return the World of one snapshot."""
        first, count, image = self._checked_image(seq)
        world = decode_world(image)
        for bodies in self._past_bodies(first, count):
            try:
                # Parsed together: JSON then allocates the name of each field once.
                page: list[PastJob] = [_PAST.read(data) for data in loads(f"[{','.join(bodies)}]")]
            except (KeyError, TypeError, ValueError) as error:
                raise CodecError(f"a finished job cannot be read: {error!r}") from error
            world.past.update((over.job.id, over) for over in page)
        return world

    def needed_from(self) -> int:
        """Return the first event that recovery needs if the newest snapshot is damaged; 0 without two intact ones."""
        intact: list[int] = []
        for seq in self.seqs():
            with suppress(CodecError):
                first, count, _ = self._checked_image(seq)
                for _ in self._past_bodies(first, count):
                    pass
                intact.append(seq)
        return intact[KEPT_SNAPSHOTS - 1] + 1 if len(intact) >= KEPT_SNAPSHOTS else 0

    def _checked_image(self, seq: int) -> tuple[int, int, bytes]:
        """Return first number and count of the finished jobs, and the image, if the checksum is correct."""
        row = self._database.row("SELECT first_past, past_count, digest, image FROM snapshots WHERE seq = ?", seq)
        if row is None:
            raise CodecError("it is not there")
        first, count, digest, image = row
        if _digest(image, first, count) != digest:
            raise CodecError("its checksum is wrong")
        return first, count, image

    def _past_statements(self, world: World) -> tuple[int, list[Statement]]:
        """Return the number of the first finished job, and statements that add those not stored yet."""
        jobs = list(world.past)
        known = 0 if self._found_damage else bisect_left(jobs, True, key=lambda job: not self._number_of(job))
        first = self._number_of(jobs[known - 1]) - known + 1 if known else 0
        if (
            not known
            or not self._begins_with(first, jobs[0])
            or not self._is_last(first + known - 1, world.past[jobs[known - 1]])
        ):
            # Nothing stored, or the World has dropped jobs in between: all get new numbers.
            known, first = 0, self._next_number()
        return first, [_past_statement(first + k, world.past[job]) for k, job in enumerate(jobs[known:], known)]

    def _number_of(self, job: JobId) -> int:
        """Return the number under which a job is stored, or 0. Jobs that are stored come first."""
        rows = self._database.rows("SELECT max(number) FROM past_jobs WHERE job = ?", storable_text(job))
        return rows[0][0] or 0

    def _begins_with(self, number: int, job: JobId) -> bool:
        row = self._database.row("SELECT job FROM past_jobs WHERE number = ?", number)
        return row == (storable_text(job),)

    def _is_last(self, number: int, over: PastJob) -> bool:
        """Return whether this job is stored under the last number, and not an earlier job with the same id.

        A job that reuses an id comes after all that ended before, so a check of the last one is enough.
        """
        row = self._database.row("SELECT crc FROM past_jobs WHERE number = ?", number)
        is_same = row == (zlib.crc32(dumps(_PAST.write(over)).encode()),)
        return is_same and number + 1 == self._next_number()

    def _next_number(self) -> int:
        return int(self._database.rows("SELECT coalesce(max(number), 0) + 1 FROM past_jobs")[0][0])

    def _past_bodies(self, first: int, count: int) -> Iterator[list[str]]:
        """Yield pages of finished jobs as JSON, if all are there and every checksum is correct."""
        found, end = 0, first + count
        sql = "SELECT crc, body FROM past_jobs WHERE number >= ? AND number < ? ORDER BY number"
        for start in range(first, end, _PAGE):
            page = self._database.rows(sql, start, min(start + _PAGE, end))
            if any(zlib.crc32(body.encode()) != crc for crc, body in page):
                raise CodecError("the checksum of a finished job is wrong")
            found += len(page)
            yield [body for _, body in page]
        if found != count:
            raise CodecError(f"{count - found} of {count} finished jobs are missing")


def _past_statement(number: int, over: PastJob) -> Statement:
    body = dumps(_PAST.write(over))
    return (
        "INSERT INTO past_jobs (number, job, crc, body) VALUES (?, ?, ?, ?)",
        (number, storable_text(over.job.id), zlib.crc32(body.encode()), body),
    )


def _digest(image: bytes, first: int, count: int) -> bytes:
    return hashlib.sha256(b"%d %d " % (first, count) + image).digest()
