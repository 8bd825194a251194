from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

import pytest

from batuta.store.codec import codec_of, dumps, loads
from batuta.store.errors import CodecError


class Colour(Enum):
    RED = "a long sentence that may be written better one day"


class Point(NamedTuple):
    x: int
    y: float = 0.5


@dataclass(frozen=True)
class Odd:
    when: datetime


@dataclass(frozen=True)
class Pair:
    left: Point
    right: Point | None = None


@dataclass(frozen=True)
class One:
    only: Colour


def through(hint: Any, value: Any) -> Any:
    form = codec_of(hint)
    text = dumps(value if form.write is None else form.write(value))
    data = loads(text)
    return data if form.read is None else form.read(data)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 2**70),
        (float, 0.1 + 0.2),
        (float, 3),
        (float | None, None),
        (str | None, "x"),
        (tuple[int, ...], ()),
        (tuple[str, float], ("a", float("inf"))),
        (list[tuple[int, str]], [(1, "a"), (2, "b")]),
        (Sequence[int], (1, 2)),
        (dict[int, tuple[Colour, float]], {3: (Colour.RED, 1.0), 1: (Colour.RED, 2.0)}),
        (dict[str, Point], {"p": Point(1, 2.0)}),
        (Pair, Pair(Point(1), Point(2, 3.0))),
        (Pair, Pair(Point(1))),
        (One, One(Colour.RED)),
        (One | Pair, Pair(Point(1))),
        (One | Pair | None, None),
        (list[Pair | None], [None, Pair(Point(1))]),
    ],
    ids=str,
)
def test_values_come_back(hint: Any, value: Any):
    back = through(hint, value)
    assert back == value
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_an_enum_is_its_name_for_its_value_may_change():
    assert codec_of(Colour).write is not None
    assert dumps([codec_of(Colour).write(Colour.RED)]) == '["RED"]'  # type: ignore[misc]


def test_what_a_newer_version_appends_to_a_row_is_ignored():
    assert codec_of(Point).read([1, 2.0, "new"]) == Point(1, 2.0)  # type: ignore[misc]
    assert codec_of(Point).read([1]) == Point(1, 0.5)  # type: ignore[misc]


def test_a_type_without_a_form_is_named():
    with pytest.raises(TypeError, match=r"Odd.when: no codec for the type <class 'datetime.datetime'>"):
        codec_of(Odd)
    with pytest.raises(TypeError, match="no codec"):
        codec_of(set[int])
    with pytest.raises(TypeError, match="choice between"):
        codec_of(int | str)


def test_no_nan_in_the_text():
    with pytest.raises(ValueError, match="JSON"):
        dumps([float("nan")])
    with pytest.raises(TypeError, match="no JSON for object"):
        dumps([object()])
    with pytest.raises(CodecError, match="not JSON"):
        loads("{")
