"""Encode frozen dataclasses as protocol buffers and decode them, as far as the kubelet's interfaces need.

A message is a dataclass whose fields are made by the functions below, each with its number. No code is
generated and no runtime library is needed. Unknown fields are skipped: a newer kubelet may send more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeVar

M = TypeVar("M")

_SLOT: Final = "slot"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK64: Final = (1 << 64) - 1
_LONGEST_VARINT: Final = 10


class Malformed(ValueError):
    """Bytes that are not a message."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """How one field goes over the wire."""

    number: int
    type: int
    write: Callable[[Any], Iterable[int | bytes]]
    """Returns the values to send; none for an empty field."""
    read: Callable[[Any], Any]
    """Converts one received value."""
    keeps: Literal["last", "all", "pairs"] = "last"
    """Which of several received values the field keeps."""


def _field(default: Any, slot: _Slot) -> Any:
    return field(default=default, metadata={_SLOT: slot})


def text(number: int) -> Any:
    """Make a field for a string; empty by default."""
    return _field("", _Slot(number, _BYTES, lambda value: [value.encode()] if value else [], bytes.decode))


def texts(number: int) -> Any:
    """Make a field for any number of strings."""
    return _field((), _Slot(number, _BYTES, lambda value: map(str.encode, value), bytes.decode, "all"))


def count(number: int) -> Any:
    """Make a field for an integer; 0 by default."""
    return _field(0, _Slot(number, _VARINT, lambda value: [value & _MASK64] if value else [], _signed))


def flag(number: int) -> Any:
    """Make a field for a boolean; false by default."""
    return _field(False, _Slot(number, _VARINT, lambda value: [1] if value else [], bool))


def message(number: int, kind: type[M]) -> Any:
    """Make a field for another message; None by default."""
    return _field(
        None,
        _Slot(number, _BYTES, lambda value: [] if value is None else [encode(value)], lambda raw: decode(kind, raw)),
    )


def messages(number: int, kind: type[M]) -> Any:
    """Make a field for any number of other messages."""
    return _field((), _Slot(number, _BYTES, lambda value: map(encode, value), lambda raw: decode(kind, raw), "all"))


def text_map(number: int) -> Any:
    """Make a field for strings by name, sent in the order of the names."""
    slot = _Slot(
        number,
        _BYTES,
        lambda value: (encode(_Pair(*pair)) for pair in sorted(value.items())),
        lambda raw: decode(_Pair, raw),
        "pairs",
    )
    return field(default_factory=dict, metadata={_SLOT: slot})


def encode(value: Any) -> bytes:
    """Return a message as bytes: fields in the order of the class, empty ones left out."""
    out = bytearray()
    for name, slot in _slots(type(value)).items():
        for one in slot.write(getattr(value, name)):
            out += _varint(slot.number << 3 | slot.type)
            out += _varint(one) if isinstance(one, int) else _varint(len(one)) + one
    return bytes(out)


def decode(kind: type[M], raw: bytes) -> M:
    """Return the message that these bytes encode, or raise Malformed."""
    slots = _slots(kind)
    named = {slot.number: name for name, slot in slots.items()}
    received: dict[str, list[Any]] = {}
    for number, wire_type, value in _pairs(raw):
        if (name := named.get(number)) is None:
            continue
        if wire_type != slots[name].type:
            raise Malformed(f"field {number} of {kind.__name__} has wire type {wire_type}")
        received.setdefault(name, []).append(_read(slots[name], value))
    return kind(**{name: _kept(slots[name], values) for name, values in received.items()})


@dataclass(frozen=True, slots=True)
class _Pair:
    """One entry of a map."""

    key: str = text(1)
    value: str = text(2)


def _slots(kind: type[Any]) -> dict[str, _Slot]:
    if kind not in _KNOWN:
        _KNOWN[kind] = {one.name: one.metadata[_SLOT] for one in fields(kind)}
    return _KNOWN[kind]


_KNOWN: Final[dict[type[Any], dict[str, _Slot]]] = {}


def _read(slot: _Slot, value: int | bytes) -> Any:
    try:
        return slot.read(value)
    except UnicodeDecodeError as error:
        raise Malformed(f"field {slot.number} is no text: {error}") from None


def _kept(slot: _Slot, values: list[Any]) -> Any:
    if slot.keeps == "all":
        return tuple(values)
    return {pair.key: pair.value for pair in values} if slot.keeps == "pairs" else values[-1]


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
    """Yield number, wire type and value of each field."""
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
