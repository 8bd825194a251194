"""Encode named tuples as protocol buffers and decode them, as far as the kubelet's interfaces need.

A message is a `NamedTuple`: the first field has number 1, the next one 2, and the type says how it goes over the
wire. No code is generated and no runtime library is needed. Unknown fields are skipped: a newer kubelet may send more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

M = TypeVar("M")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK64: Final = (1 << 64) - 1
_LONGEST_VARINT: Final = 10


class Malformed(ValueError):
    """Bytes that are not a message."""


class _Pair(NamedTuple):
    """One entry of a map."""

    key: str = ""
    value: str = ""


class _Field(NamedTuple):
    """How one field goes over the wire."""

    name: str
    wire_type: int
    write: Callable[[Any], int | bytes]
    read: Callable[[Any], Any]
    split: Callable[[Any], Iterable[Any]]  # returns the values to send; none for an empty field
    join: Callable[[list[Any]], Any]  # makes the field's value of all that were received


def encode(value: Any) -> bytes:
    """Return a message as bytes: fields in the order of the class, empty ones left out."""
    out = bytearray()
    for number, field in _fields(value.__class__).items():
        for one in map(field.write, field.split(getattr(value, field.name))):
            out += _varint(number << 3 | field.wire_type)
            out += _varint(one) if isinstance(one, int) else _varint(len(one)) + one
    return bytes(out)


def decode(kind: type[M], raw: bytes) -> M:
    """Return the message that these bytes encode, or raise Malformed."""
    fields = _fields(kind)  # type: ignore[arg-type]  # a class can be hashed
    received: dict[int, list[Any]] = {}
    for number, wire_type, value in _pairs(raw):
        if (field := fields.get(number)) is None:
            continue
        if wire_type != field.wire_type:
            raise Malformed(f"field {number} of {kind.__name__} has wire type {wire_type}")
        try:
            received.setdefault(number, []).append(field.read(value))
        except UnicodeDecodeError as error:
            raise Malformed(f"field {number} is no text: {error}") from None
    return kind(**{fields[number].name: fields[number].join(values) for number, values in received.items()})


@cache
def _fields(kind: type[Any]) -> dict[int, _Field]:
    return {number: _field(name, hint) for number, (name, hint) in enumerate(get_type_hints(kind).items(), start=1)}


def _field(name: str, hint: Any) -> _Field:
    """Return how a field of this type is sent: a value, values in a tuple, texts by name, or a message or None."""
    kind = next((one for one in get_args(hint) if one not in (Ellipsis, type(None))), hint)
    if get_origin(hint) is Mapping:
        return _Field(name, *_wire(_Pair), lambda pairs: [_Pair(*pair) for pair in sorted(pairs.items())], dict)
    if get_origin(hint) is tuple:
        return _Field(name, *_wire(kind), list, tuple)
    return _Field(name, *_wire(kind), lambda value: [value] if value else [], lambda values: values[-1])


def _wire(kind: type[Any]) -> tuple[int, Callable[[Any], int | bytes], Callable[[Any], Any]]:
    if kind is str:
        return _BYTES, str.encode, bytes.decode
    if kind is bool:
        return _VARINT, int, bool
    if kind is int:
        return _VARINT, lambda value: value & _MASK64, _signed
    return _BYTES, encode, partial(decode, kind)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _pairs(raw: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    at = 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _read_varint(raw, at)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(raw, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise Malformed(f"wire type {wire_type} is not known")
        if at + size > len(raw):
            raise Malformed(f"field {number} has {size} bytes, and only {len(raw) - at} are left")
        yield number, wire_type, raw[at : at + size]
        at += size


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k, byte in enumerate(raw[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value & _MASK64, at + k + 1
    raise Malformed("a number has no end")
