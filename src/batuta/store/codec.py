"""Events and values ↔ JSON, decisions and arrays ↔ bytes: the stored form of all that the journal holds.

An event is `{"v":1,"type":"JobStarted","time_s":12.5,"job":"j1","cause":"backend"}`. `v` changes when old
text would be misread, not when a field is added. An event type has a codec by standing in
`batuta.core.event.Event`; a field that cannot be encoded makes this module fail to load.

The codec of a type is derived once from its type hints, so a new field with a default needs no code here.
It is exact: a float comes back bit for bit, an int stays an int. What JSON cannot express is a string where a
number is expected ("NaN"). An enum is its member's name. A named tuple is an array, a dataclass an object
with all its fields: a default that changes later must not change what was written before. Unknown fields are
ignored, missing ones get their default.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from batuta.core.arrays import IntArray
from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.phases import Outlook, Phases
from batuta.core.plan import Decisions, no_decisions
from batuta.core.reason import Evidence, Reason
from batuta.store.errors import CodecError, UnknownEventError

Convert: TypeAlias = Callable[[Any], Any]
TAG = "type"  # the key that says which of several dataclasses an object is
RARE = "rare"  # in the metadata of a field that is nearly always None: then nothing is written


class ValueCodec(NamedTuple):
    """How a type is written and read; None where the value is its own JSON."""

    write: Convert | None
    read: Convert | None


_PLAIN = ValueCodec(None, None)
_registered: dict[Any, ValueCodec] = {}


def register_codec(kind: type, codec: ValueCodec) -> None:
    """Give a type a codec of its own. Call it before `codec_of` sees a type that contains it."""
    _registered[kind] = codec


def _scalar(value: Any) -> Any:
    """Return a NumPy number, as evidence may hold, as a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}: {value!r}")


dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_scalar).encode
"""Compact, ASCII only, and never the tokens NaN or Infinity, which other readers of JSON refuse."""


def loads(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CodecError(f"not JSON: {error}") from error


@cache
def codec_of(hint: Any) -> ValueCodec:
    """Return the codec of a type; TypeError when the type has none."""
    if hint in _registered:
        return _registered[hint]
    if hint in (int, str, bool, type(None)):
        return _PLAIN
    if hint is float:
        return ValueCodec(_write_number, _read_number)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union_codec(args)
    if origin is not None:
        return _container_codec(hint, origin, args)
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return ValueCodec(attrgetter("name"), _enum_reader(hint))
        if issubclass(hint, tuple) and hasattr(hint, "_fields"):
            hints = get_type_hints(hint)
            return _row_codec([codec_of(hints[name]) for name in hint._fields], lambda values: hint(*values))
        if is_dataclass(hint):
            return _dataclass_codec(hint)
    raise TypeError(f"no codec for the type {hint}")


def _write_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_number(value: Any) -> Any:
    return float(value) if type(value) is str else value


def _enum_reader(kind: type[Enum]) -> Convert:
    members = dict(kind.__members__)

    def read(name: Any) -> Any:
        try:
            return members[name]
        except KeyError:
            raise CodecError(f"{kind.__name__} has no member {name!r}") from None

    return read


def _union_codec(args: tuple[Any, ...]) -> ValueCodec:
    others = [arg for arg in args if arg is not type(None)]
    inner = codec_of(others[0]) if len(others) == 1 else _tagged_codec(others)
    if len(others) == len(args) or inner == _PLAIN:
        return inner
    write, read = inner
    return ValueCodec(
        write and (lambda value: None if value is None else write(value)),
        read and (lambda value: None if value is None else read(value)),
    )


def _tagged_codec(kinds: Sequence[type]) -> ValueCodec:
    """The codec of one of several dataclasses, told apart by the class name under "type"."""
    if not all(is_dataclass(kind) for kind in kinds):
        raise TypeError(f"no codec for a choice between {', '.join(map(str, kinds))}")
    codecs = {kind.__name__: codec_of(kind) for kind in kinds}

    def write(value: Any) -> Any:
        name = type(value).__name__
        return {TAG: name, **(codecs[name].write or _same)(value)}

    def read(value: Any) -> Any:
        codec = codecs.get(value[TAG])
        if codec is None:
            raise CodecError(f"unknown type {value[TAG]!r}, known are {', '.join(codecs)}")
        return (codec.read or _same)(value)

    return ValueCodec(write, read)


def _container_codec(hint: Any, origin: Any, args: tuple[Any, ...]) -> ValueCodec:
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _sequence_codec(codec_of(args[0]), tuple)
    if origin is tuple:
        return _row_codec([codec_of(arg) for arg in args], tuple)
    if origin is list:
        return _sequence_codec(codec_of(args[0]), list)
    if origin is Sequence:
        return _sequence_codec(codec_of(args[0]), tuple)
    if origin is dict:
        # As pairs: keys need not be strings, and the order is part of the value.
        pairs = _sequence_codec(_row_codec([codec_of(arg) for arg in args], tuple), list)
        write, read = pairs.write or _same, pairs.read or _same
        return ValueCodec(lambda value: write(value.items()), lambda value: dict(read(value)))
    raise TypeError(f"no codec for the type {hint}")


def _sequence_codec(item: ValueCodec, build: Convert) -> ValueCodec:
    write, read = item
    return ValueCodec(
        list if write is None else (lambda values: [write(value) for value in values]),
        build if read is None else (lambda values: build([read(value) for value in values])),
    )


def _row_codec(items: Sequence[ValueCodec], build: Convert) -> ValueCodec:
    """The codec of a fixed number of values, each of its own type."""
    writers, readers = [item.write or _same for item in items], [item.read or _same for item in items]
    return ValueCodec(
        lambda values: [write(value) for write, value in zip(writers, values, strict=True)],
        # Not strict: what a later version appends is ignored.
        lambda values: build([read(value) for read, value in zip(readers, values, strict=False)]),
    )


def _dataclass_codec(kind: Any) -> ValueCodec:
    hints = get_type_hints(kind)
    codecs: list[tuple[str, ValueCodec]] = []
    for field in fields(kind):
        try:
            codecs.append((field.name, codec_of(hints[field.name])))
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{field.name}: {error}") from error
    names = [name for name, _ in codecs]
    values_of = _getter(attrgetter, names)
    writers = [(name, codec.write) for name, codec in codecs if codec.write is not None]
    rare = [field.name for field in fields(kind) if field.metadata.get(RARE)]

    def write(value: Any) -> Any:
        data = dict(zip(names, values_of(value), strict=True))
        for name, convert in writers:
            data[name] = convert(data[name])
        for name in rare:
            if data[name] is None:
                del data[name]
        return data

    return ValueCodec(write, _dataclass_reader(kind, codecs))


def _dataclass_reader(kind: Any, codecs: list[tuple[str, ValueCodec]]) -> Convert:
    items_of = _getter(itemgetter, [name for name, _ in codecs])
    by_place = [(place, codec.read) for place, (_, codec) in enumerate(codecs) if codec.read is not None]
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}

    def read(data: Any) -> Any:
        try:
            values = list(items_of(data))
        except KeyError:
            return read_older(data)
        for place, convert in by_place:
            values[place] = convert(values[place])
        return kind(*values)

    def read_older(data: Any) -> Any:
        """Read an object that was written before some fields existed."""
        found = {}
        for name, codec in codecs:
            if name in data:
                found[name] = data[name] if codec.read is None else codec.read(data[name])
            elif name in needed:
                raise CodecError(f"{kind.__name__} lacks {name!r}")
        return kind(**found)

    return read


def _getter(getter: Callable[..., Convert], names: list[str]) -> Convert:
    """Return a function that gets all these names from a value, as a tuple."""
    if len(names) > 1:
        return getter(*names)
    return lambda value: tuple(getter(name)(value) for name in names)


def _same(value: Any) -> Any:
    return value


_LENGTH = struct.Struct("<I")
_LEVEL = 1  # higher levels of zlib gain a tenth in size for several times the time (benchmarks/store.py)
_WIDTHS = tuple(np.dtype(name) for name in ("<i1", "<i2", "<i4", "<i8"))


def pack_arrays(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a JSON header and arrays as one compressed block; integers take as few bytes as they need."""
    parts, listed = [], []
    for name, array in arrays.items():
        array = _narrow(array)
        listed.append([name, array.dtype.str, list(array.shape)])
        parts.append(array.tobytes())
    head = dumps({**header, "arrays": listed}).encode()
    return zlib.compress(b"".join((_LENGTH.pack(len(head)), head, *parts)), _LEVEL)


def unpack_arrays(block: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return what `pack_arrays` packed; integers are 64 bits wide again."""
    try:
        raw = zlib.decompress(block)
        (length,) = _LENGTH.unpack_from(raw)
        place = _LENGTH.size + length
        header: dict[str, Any] = loads(raw[_LENGTH.size : place])
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, shape in header.pop("arrays"):
            dtype = np.dtype(kind)
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(raw, dtype, count, place).reshape(shape)
            # A copy either way: what comes out can be written to, and does not hold on to the block.
            arrays[name] = array.astype(np.int64 if dtype.kind == "i" else dtype.newbyteorder("="))
            place += count * dtype.itemsize
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as error:
        raise CodecError(f"a packed block is damaged: {error}") from error
    return header, arrays


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind == "i":
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        for width in _WIDTHS:
            if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
                return array.astype(width)
    return array if array.dtype.kind == "b" else array.astype("<f8")


_COLUMNS = ("gpus", "asked", "low", "high", "kind", "moving")
"""Ten thousand decisions as JSON objects are megabytes, and most equal those of the last cycle. So they are
stored as columns, in full or as the rows and cells that differ from an earlier plan. What is special about
a row is always stored in full: its numbers move with time, so hardly any would be equal."""
Arrays: TypeAlias = dict[str, NDArray[Any]]
Special: TypeAlias = dict[int, tuple[Reason, Evidence]]


def pack_decisions(decisions: Decisions) -> bytes:
    """Return all columns of the decisions as bytes."""
    columns = {name: getattr(decisions, name) for name in _COLUMNS}
    arrays: Arrays = {name: column for name, column in columns.items() if column is not None}
    header = _header(decisions, arrays) | {"ids": list(decisions.ids)}
    return pack_arrays(header, arrays)


def pack_decision_change(base: Decisions, decisions: Decisions) -> bytes | None:
    """Return what differs from `base` as bytes; None when rows that stayed are in another order."""
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
    return pack_arrays(header, arrays)


def unpack_decisions(block: bytes, base: Decisions | None = None) -> Decisions:
    """Return the decisions that were packed. A change needs the `base` that it was made from."""
    header, arrays = unpack_arrays(block)
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


def _matched_rows(before: Sequence[JobId], after: Sequence[JobId]) -> tuple[IntArray, IntArray, IntArray] | None:
    """Return rows of `before` that stayed and that went, and rows of `after` that came; None if reordered."""
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
    """Group rows by reason and names of evidence; each number of a group becomes a column of its type."""
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


register_codec(
    Phases,
    ValueCodec(
        lambda phases: [phases.marks.tolist(), phases.per_s.tolist()],
        lambda value: Phases(*(np.array(column, np.float64) for column in value)),
    ),
)
OUTLOOKS = dict[str, Outlook]

VERSION = 1
_NONE = no_decisions()
_KEYS = frozenset(("v", TAG))


def _write_decisions(decisions: Decisions) -> str | None:
    """Return packed columns in base64; None for the decisions of a cycle without jobs."""
    is_empty = not (len(decisions) or decisions.capacity or decisions.free)
    if is_empty and decisions.kind is None and decisions.moving is None:
        return None
    return base64.b64encode(pack_decisions(decisions)).decode()


def _read_decisions(value: Any) -> Decisions:
    return _NONE if value is None else unpack_decisions(base64.b64decode(value))


register_codec(Decisions, ValueCodec(_write_decisions, _read_decisions))
EVENT_TYPES: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_EVENT_CODECS = {name: codec_of(kind) for name, kind in EVENT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event and its place in the journal."""

    seq: int
    event: Event


def encode(event: Event) -> str:
    """Return the whole event as JSON; the decisions of a plan are packed into one string of it."""
    name = type(event).__name__
    codec = _EVENT_CODECS.get(name)
    if codec is None or codec.write is None:
        raise UnknownEventError(f"{name} is not an event type of the journal")
    return dumps({"v": VERSION, TAG: name} | codec.write(event))


def decode(text: str | bytes) -> Event:
    """Return the event that was encoded. Unknown fields are ignored, unknown types are rejected."""
    data = loads(text)
    if not isinstance(data, dict) or not data.keys() >= _KEYS:
        raise CodecError('an event is an object with "v" and "type"')
    if data["v"] != VERSION:
        raise UnknownEventError(
            f"an event is written in format {data['v']}, this version of Batuta reads format {VERSION}; "
            "it was written by a newer one"
        )
    codec = _EVENT_CODECS.get(data[TAG])
    if codec is None or codec.read is None:
        raise UnknownEventError(
            f"unknown event type {data[TAG]!r}: the journal was written by a newer version of Batuta"
        )
    try:
        event: Event = codec.read(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"{data[TAG]} cannot be read: {error!r}") from error
    return event


def without_decisions(event: Planned) -> Planned:
    """Return the same plan without its decisions, for readers that need the commands only."""
    return with_decisions(event, _NONE)


def with_decisions(event: Planned, decisions: Decisions) -> Planned:
    return replace(event, plan=replace(event.plan, decisions=decisions))


def job_of(event: Event) -> JobId | None:
    """Return the one job that an event is about; None when it is about none, or about many."""
    job = getattr(event, "job", None)
    return job if job is None or isinstance(job, str) else job.id


def jobs_of(plan_event: Planned) -> list[JobId]:
    """Return the jobs that a plan changes, each once."""
    plan = plan_event.plan
    changed = [c.job for c in plan.commands] + [job for job, _ in plan.retiered]
    return list(dict.fromkeys([*changed, *plan.found_idle]))
