"""The decisions of a plan ↔ bytes: all columns, or only what differs from an earlier plan.

Ten thousand decisions as JSON objects are megabytes, and most of them say what they said a cycle ago. A
change names the rows that went, the ids that came, and by column the cells that differ. What is special about
rows is always written in full: its numbers move with time, so that hardly any would be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batuta.core.arrays import IntArray
from batuta.core.job import JobId
from batuta.core.plan import Decisions
from batuta.core.reason import Evidence, Reason
from batuta.store.errors import CodecError
from batuta.store.parcel import unwrap, wrap

_COLUMNS = ("gpus", "asked", "low", "high", "kind", "moving")
Arrays: TypeAlias = dict[str, NDArray[Any]]
Special: TypeAlias = dict[int, tuple[Reason, Evidence]]


def pack(decisions: Decisions) -> bytes:
    """All of the decisions."""
    columns = {name: getattr(decisions, name) for name in _COLUMNS}
    arrays: Arrays = {name: column for name, column in columns.items() if column is not None}
    header = _header(decisions, arrays) | {"ids": list(decisions.ids)}
    return wrap(header, arrays)


def pack_change(base: Decisions, decisions: Decisions) -> bytes | None:
    """What makes the decisions of `base`; None when rows that stayed are in another order."""
    rows = _matched_rows(base.ids, decisions.ids)
    if rows is None:
        return None
    stayed, gone, came = rows
    arrays: Arrays = {"gone": gone, "came": came}
    kept = np.delete(np.arange(len(decisions)), came)
    for name in _COLUMNS:
        column = getattr(decisions, name)
        if column is None:
            continue
        before = np.zeros(len(decisions), dtype=column.dtype)
        if (old := getattr(base, name)) is not None:
            before[kept] = old[stayed]
        differs = np.flatnonzero(before != column)
        if differs.size:
            arrays[f"{name}.rows"], arrays[name] = differs, column[differs]
    header = _header(decisions, arrays) | {"new_ids": [decisions.ids[row] for row in came.tolist()]}
    return wrap(header, arrays)


def unpack(block: bytes, base: Decisions | None = None) -> Decisions:
    """The decisions that were packed. A change needs the decisions that it was made from."""
    header, arrays = unwrap(block)
    try:
        if "ids" in header:
            ids = tuple(header["ids"])
            columns = {name: arrays.get(name) for name in _COLUMNS}
        elif base is None:
            raise CodecError("these decisions are a change of others, which are not there")
        else:
            ids, columns = _changed(base, header, arrays)
        return Decisions(
            ids=ids,
            **columns,  # type: ignore[arg-type]
            capacity=tuple(header["capacity"]),
            free=tuple(header["free"]),
            special=_read_special(header["special"], arrays),
        )
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise CodecError(f"packed decisions are damaged: {error!r}") from error


def _header(decisions: Decisions, arrays: Arrays) -> dict[str, Any]:
    return {
        "capacity": list(decisions.capacity),
        "free": list(decisions.free),
        "absent": [name for name in _COLUMNS if getattr(decisions, name) is None],
        "special": _write_special(decisions.special, arrays),
    }


def _matched_rows(
    before: Sequence[JobId], after: Sequence[JobId]
) -> tuple[IntArray, IntArray, IntArray] | None:
    """Rows of `before` that stayed, that went, and rows of `after` that came; None if order changed."""
    if tuple(before) == tuple(after):
        none: IntArray = np.zeros(0, dtype=np.int64)
        return np.arange(len(before)), none, none
    old, new = set(before), set(after)
    stayed = [row for row, job in enumerate(before) if job in new]
    if [before[row] for row in stayed] != [job for job in after if job in old]:
        return None
    gone = [row for row, job in enumerate(before) if job not in new]
    came = [row for row, job in enumerate(after) if job not in old]
    return tuple(np.array(found, dtype=np.int64) for found in (stayed, gone, came))  # type: ignore[return-value]


def _changed(base: Decisions, header: dict[str, Any], arrays: Arrays) -> tuple[tuple[JobId, ...], Any]:
    gone, came = arrays["gone"], arrays["came"]
    stayed = np.delete(np.arange(len(base)), gone)
    n = len(stayed) + len(came)
    kept = np.delete(np.arange(n), came)
    if gone.size or came.size:
        names = np.empty(n, dtype=object)
        names[kept] = np.array(base.ids, dtype=object)[stayed]
        names[came] = header["new_ids"]
        ids = tuple(names.tolist())
    else:
        ids = tuple(base.ids)
    columns: dict[str, NDArray[Any] | None] = {}
    for name in _COLUMNS:
        column: NDArray[Any] | None = None
        if name not in header["absent"]:
            column = np.zeros(n, dtype=np.bool_ if name == "moving" else np.int64)
            if (old := getattr(base, name)) is not None:
                column[kept] = old[stayed]
            if name in arrays:
                column[arrays[f"{name}.rows"]] = arrays[name]
        columns[name] = column
    return ids, columns


def _write_special(special: Special, arrays: Arrays) -> list[Any]:
    """Rows with the same reason and the same names of numbers together, each number a column of its type."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row, (reason, evidence) in special.items():
        names, numbers = zip(*evidence, strict=True) if evidence else ((), ())
        groups.setdefault((reason.name, names, tuple(map(type, numbers))), []).append((row, *numbers))
    for k, ((_, _, kinds), members) in enumerate(groups.items()):
        rows, *columns = zip(*members, strict=True)
        arrays[f"{k}.rows"] = np.array(rows, dtype=np.int64)
        for place, (kind, column) in enumerate(zip(kinds, columns, strict=True)):
            arrays[f"{k}.{place}"] = _column(kind, column)
    return [[reason, list(names)] for reason, names, _ in groups]


def _column(kind: type, values: tuple[Any, ...]) -> NDArray[Any]:
    if not issubclass(kind, float):
        with suppress(OverflowError):
            return np.array(values, dtype=np.int64)
    return np.array(values, dtype=np.float64)


def _read_special(listed: list[Any], arrays: Arrays) -> Special:
    special: Special = {}
    for k, (name, names) in enumerate(listed):
        if name not in Reason.__members__:
            raise CodecError(f"unknown reason {name!r}: it was written by a newer version of Batuta")
        reason, rows = Reason[name], arrays[f"{k}.rows"].tolist()
        columns = [arrays[f"{k}.{place}"].tolist() for place in range(len(names))]
        values = zip(*columns, strict=True) if columns else [()] * len(rows)
        for row, numbers in zip(rows, values, strict=True):
            special[row] = (reason, tuple(zip(names, numbers, strict=True)))
    return special
