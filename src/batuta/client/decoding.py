"""Decodes JSON into API types, by converters made once from type hints. Unknown fields are ignored."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from batuta.client.errors import AnswerError

T = TypeVar("T")
Convert: TypeAlias = Callable[[Any], Any]


def decode(kind: type[T], data: object) -> T:
    """The answer in parsed JSON. Raises AnswerError when it is another one."""
    try:
        value: T = _converter(cast(Hashable, kind))(data)
    except (TypeError, ValueError, KeyError) as error:
        raise AnswerError(f"the server's answer is not {kind.__name__}: {error}") from None
    return value


def decode_list(kind: type[T], data: object, key: str) -> tuple[T, ...]:
    if not isinstance(data, dict) or not isinstance(data.get(key), list):
        raise AnswerError(f"the server's answer has no list of {key}")
    return tuple(decode(kind, one) for one in data[key])


def encode(value: Any) -> Any:
    """Answers, and lists and mappings of them, as they are written in JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [encode(one) for one in value]
    if isinstance(value, dict):
        return {key: encode(one) for key, one in value.items()}
    return value


@cache
def _converter(kind: Hashable) -> Convert:
    if is_dataclass(kind) and isinstance(kind, type):
        return _object(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        only = _converter(next(one for one in inner if one is not type(None)))
        return lambda data: None if data is None else only(data)
    if origin is tuple:
        item = _converter(inner[0])
        return lambda data: tuple(item(one) for one in _expect(list, data))
    if origin is dict:
        item = _converter(inner[1])
        return lambda data: {str(key): item(one) for key, one in _expect(dict, data).items()}
    if kind is float:
        return float
    if kind in (int, bool, str):
        return lambda data: _expect(kind, data)
    return lambda data: data


def _object(kind: type) -> Convert:
    hints = get_type_hints(kind)
    parts = [
        (one.name, _converter(hints[one.name]), one.default is MISSING and one.default_factory is MISSING)
        for one in fields(kind)
    ]

    def read(data: Any) -> Any:
        given = _expect(dict, data)
        missing = [name for name, _, needed in parts if needed and name not in given]
        if missing:
            raise ValueError(f"{', '.join(missing)} missing")
        return kind(**{name: convert(given[name]) for name, convert, _ in parts if name in given})

    return read


def _expect(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind):
        raise TypeError(f"{kind.__name__} expected, found {str(data)[:60]!r}")
    return data
