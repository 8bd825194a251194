"""What a journal looks like on disk, read without any code of Batuta's: SQLite, JSON, zlib and NumPy alone.

So a name that changes in the code changes nothing here: what does not fit any more was changed on the disk.
"""

import json
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TABLES = (
    *("events", "plan_jobs", "plans", "snapshots", "past_jobs"),
    *("tasks", "results", "settings", "tokens", "idempotency", "writer"),
)
_PRAGMAS = ("application_id", "user_version", "auto_vacuum")
_INFINITE = re.compile(r"^(INSERT INTO \"events\" VALUES\(\d+,-?)Inf,")
"""SQLite of some versions writes an infinite time in a way that it cannot read."""
_LENGTH = struct.Struct("<I")


# ------------------------------------------------------------------------------------------- databases


def empty_log(path: Path) -> int:
    """Move the write-ahead log into the database file; return the file's size in bytes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return path.stat().st_size


def dump_database(path: Path) -> str:
    """A database as SQL, with what its header says."""
    with closing(sqlite3.connect(path)) as connection:
        header = [f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};" for name in _PRAGMAS]
        lines = [_INFINITE.sub(r"\g<1>9e999,", line) for line in connection.iterdump()]
    return "\n".join((*header, *lines)) + "\n"


def load_database(sql: str, path: Path) -> None:
    """The database of a dump. Only its owner may read it, as the server leaves it."""
    path.touch(0o600)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)


def rows(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, values).fetchall()


def events_in(path: Path) -> list[dict[str, Any]]:
    """All events as they are stored, in order."""
    return [json.loads(body) for (body,) in rows(path, "SELECT body FROM events ORDER BY seq")]


# ---------------------------------------------------------------------------------------- packed blocks


class Block(NamedTuple):
    """A JSON object and columns of numbers, which stand together in one compressed block."""

    header: dict[str, Any]
    arrays: dict[str, list[Any]]


def unpacked(block: bytes) -> Block:
    raw = zlib.decompress(block)
    (length,) = _LENGTH.unpack_from(raw)
    place = _LENGTH.size + length
    header, arrays = json.loads(raw[_LENGTH.size : place]), {}
    for name, kind, shape in header.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(raw, kind, count, place).reshape(shape).tolist()
        place += count * np.dtype(kind).itemsize
    return Block(header, arrays)


def world_image(path: Path) -> Block:
    """The newest World that was saved in a journal."""
    ((image,),) = rows(path, "SELECT image FROM snapshots ORDER BY seq DESC LIMIT 1")
    return unpacked(image)


# ------------------------------------------------------------------------------------------- comparing


def missing(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Sentences about all that stands in `before` and not in `after`; a key that came since is no matter."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{place}.{key} is gone, it was {value!r}"
            else:
                yield from missing(value, after[key], f"{place}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for k, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from missing(old, new, f"{place}[{k}]")
    elif repr(before) != repr(after):  # so that NaN is NaN, and 1 is not 1.0
        yield f"{place} is {after!r}, it was {before!r}"


# ----------------------------------------------------------------------------------------------- facts

PHASES = ("waiting", "starting", "running", "resizing", "broken", "stopping")
WANTED = ("run", "park", "cancel", "evict", "try")


def facts_of(path: Path) -> dict[str, Any]:
    """What the newest World in a journal says, in words that do not change when those of the code do."""
    header, columns = world_image(path)
    own = {name.partition(".")[2]: column for name, column in columns.items()}
    cordoned, lost = int(header["cordoned"], 16), int(header["lost"], 16)
    ill = {i: int(mask, 16) for i, mask in header["ill"]}
    free = [int(mask, 16) for mask in header["layout"]["free"]]
    past = [json.loads(body) for (body,) in rows(path, f"SELECT body FROM past_jobs WHERE {_NEWEST}")]
    progress = dict(header["progress"])
    checkpoints = dict(header["checkpoints"])
    return {
        "version": header["version"],
        "time_s": header["now_s"],
        "policy": header["policy"],
        "quota": header["quota"],
        "nodes": {
            node["name"]: {
                "gpus": node["gpus"],
                "type": node["gpu_type"],
                "cordoned": bool(cordoned >> i & 1),
                "lost": bool(lost >> i & 1),
                "ill": _bits(ill.get(i, 0)),
                "free": _bits(free[i]),
            }
            for i, node in enumerate(header["nodes"])
        },
        "jobs": {
            job["id"]: {
                "queue": job["queue"],
                "sizes": [job["min"], job["size"], job["max"]],
                "state": PHASES[own["phase"][row]],
                "wanted": WANTED[own["wish"][row]],
                "gpus": own["gpus"][row],
                "placement": header["placements"][row],
                "restarts": own["restarts"][row],
                "level": own["tier"][row],
                "remaining_s": round(own["remaining_s"][row], 6),
                "attained_gpu_s": round(own["attained_gpu_s"][row], 6),
                "progress": progress.get(job["id"]),
                "checkpoint_s": checkpoints.get(job["id"], "none seen"),
            }
            for row, job in enumerate(header["jobs"])
        },
        "over": {
            one["job"]["id"]: {
                "queue": one["job"]["queue"],
                "state": one["state"],
                "restarts": one["restarts"],
                "exit_code": one["exit_code"],
                "attained_gpu_s": round(one["attained_gpu_s"], 6),
                "progress": one["progress"],
            }
            for one in past
        },
    }


_NEWEST = (
    "number >= (SELECT first_past FROM snapshots ORDER BY seq DESC LIMIT 1) AND "
    "number < (SELECT first_past + past_count FROM snapshots ORDER BY seq DESC LIMIT 1) ORDER BY number"
)


def _bits(mask: int) -> list[int]:
    return [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1]
