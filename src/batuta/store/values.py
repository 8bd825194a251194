"""Values ↔ JSON, worked out once from type hints: a new field with a default needs no code here.

Exact: a float comes back bit for bit, an int stays an int. What JSON has no word for is a string where a
number is expected ("NaN"). An enum is its member's name, for sentences and spellings change sooner. A named
tuple is an array, a dataclass an object with all its fields: a default that changes later must not
change what was written before. Fields that are not known are ignored, missing ones get their default.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from batuta.store.errors import CodecError

Convert: TypeAlias = Callable[[Any], Any]
TAG = "type"
"""The key that says which of several dataclasses an object is."""
RARE = "rare"
"""In the metadata of a field that is nearly always None: then nothing is written."""


class Form(NamedTuple):
    """How a type is written and read; None where the value is its own JSON."""

    write: Convert | None
    read: Convert | None


_PLAIN = Form(None, None)
_own_forms: dict[Any, Form] = {}


def set_form(kind: type, form: Form) -> None:
    """Gives a type a form of its own, before the first type that contains it is asked for."""
    _own_forms[kind] = form


def _scalar(value: Any) -> Any:
    """NumPy's numbers, which find their way into evidence."""
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
def form_of(hint: Any) -> Form:
    """The form of a type. Raises TypeError for a type that nobody has thought about."""
    if hint in _own_forms:
        return _own_forms[hint]
    if hint in (int, str, bool, type(None)):
        return _PLAIN
    if hint is float:
        return Form(_write_number, _read_number)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union_form(args)
    if origin is not None:
        return _container_form(hint, origin, args)
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return Form(_write_enum, _enum_reader(hint))
        if issubclass(hint, tuple) and hasattr(hint, "_fields"):
            return _named_tuple_form(hint)
        if is_dataclass(hint):
            return _dataclass_form(hint)
    raise TypeError(f"no form for the type {hint}")


def _write_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _read_number(value: Any) -> Any:
    return float(value) if type(value) is str else value


def _write_enum(value: Enum) -> str:
    return value.name


def _enum_reader(kind: type[Enum]) -> Convert:
    members = dict(kind.__members__)

    def read(name: Any) -> Any:
        try:
            return members[name]
        except KeyError:
            raise CodecError(f"{kind.__name__} has no member {name!r}") from None

    return read


def _union_form(args: tuple[Any, ...]) -> Form:
    others = [arg for arg in args if arg is not type(None)]
    inner = form_of(others[0]) if len(others) == 1 else tagged_form(others)
    if len(others) == len(args) or inner == _PLAIN:
        return inner
    write, read = inner
    return Form(
        write and (lambda value: None if value is None else write(value)),
        read and (lambda value: None if value is None else read(value)),
    )


def tagged_form(kinds: Sequence[type]) -> Form:
    """One of several dataclasses; its name stands under "type"."""
    if not all(is_dataclass(kind) for kind in kinds):
        raise TypeError(f"no form for a choice between {', '.join(map(str, kinds))}")
    forms = {kind.__name__: form_of(kind) for kind in kinds}

    def write(value: Any) -> Any:
        name = type(value).__name__
        return {TAG: name, **(forms[name].write or _same)(value)}

    def read(value: Any) -> Any:
        form = forms.get(value[TAG])
        if form is None:
            raise CodecError(f"unknown type {value[TAG]!r}, known are {', '.join(forms)}")
        return (form.read or _same)(value)

    return Form(write, read)


def _container_form(hint: Any, origin: Any, args: tuple[Any, ...]) -> Form:
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return _sequence_form(form_of(args[0]), tuple)
    if origin is tuple:
        return _row_form([form_of(arg) for arg in args], tuple)
    if origin is list:
        return _sequence_form(form_of(args[0]), list)
    if origin is Sequence:
        return _sequence_form(form_of(args[0]), tuple)
    if origin is dict:
        # As pairs: keys need not be strings, and the order is part of the value.
        pairs = _sequence_form(_row_form([form_of(arg) for arg in args], tuple), list)
        write, read = pairs.write or _same, pairs.read or _same
        return Form(lambda value: write(value.items()), lambda value: dict(read(value)))
    raise TypeError(f"no form for the type {hint}")


def _sequence_form(item: Form, build: Convert) -> Form:
    write, read = item
    return Form(
        list if write is None else (lambda values: [write(value) for value in values]),
        build if read is None else (lambda values: build([read(value) for value in values])),
    )


def _row_form(items: Sequence[Form], build: Convert) -> Form:
    """A fixed number of values, each of its own type."""
    writers, readers = [item.write or _same for item in items], [item.read or _same for item in items]
    return Form(
        lambda values: [write(value) for write, value in zip(writers, values, strict=True)],
        # Not strict: what a later version appends is ignored.
        lambda values: build([read(value) for read, value in zip(readers, values, strict=False)]),
    )


def _named_tuple_form(kind: Any) -> Form:
    hints = get_type_hints(kind)
    return _row_form([form_of(hints[name]) for name in kind._fields], lambda values: kind(*values))


def _dataclass_form(kind: Any) -> Form:
    hints = get_type_hints(kind)
    forms: list[tuple[str, Form]] = []
    for field in fields(kind):
        try:
            forms.append((field.name, form_of(hints[field.name])))
        except TypeError as error:
            raise TypeError(f"{kind.__name__}.{field.name}: {error}") from error
    names = [name for name, _ in forms]
    values_of = _getter(attrgetter, names)
    writers = [(name, form.write) for name, form in forms if form.write is not None]
    rare = [field.name for field in fields(kind) if field.metadata.get(RARE)]

    def write(value: Any) -> Any:
        data = dict(zip(names, values_of(value), strict=True))
        for name, convert in writers:
            data[name] = convert(data[name])
        for name in rare:
            if data[name] is None:
                del data[name]
        return data

    return Form(write, _dataclass_reader(kind, forms))


def _dataclass_reader(kind: Any, forms: list[tuple[str, Form]]) -> Convert:
    items_of = _getter(itemgetter, [name for name, _ in forms])
    by_place = [(place, form.read) for place, (_, form) in enumerate(forms) if form.read is not None]
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
        """What was written before some fields were there."""
        found = {}
        for name, form in forms:
            if name in data:
                found[name] = data[name] if form.read is None else form.read(data[name])
            elif name in needed:
                raise CodecError(f"{kind.__name__} lacks {name!r}")
        return kind(**found)

    return read


def _getter(getter: Callable[..., Convert], names: list[str]) -> Convert:
    """All of these from a value, as a tuple."""
    if len(names) > 1:
        return getter(*names)
    return lambda value: tuple(getter(name)(value) for name in names)


def _same(value: Any) -> Any:
    return value
