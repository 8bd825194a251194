"""Events of every type with any content, for Hypothesis: strategies are worked out from the types of fields.

A new event type with fields of known types is covered without a line here; one with a new kind of field
fails.
"""

import types
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from hypothesis import strategies as st

from batuta.core.curve import SpeedCurve
from batuta.core.event import Event
from batuta.core.phases import Phases
from batuta.core.plan import Decisions
from batuta.core.reason import Reason

EVENT_TYPES: tuple[type, ...] = get_args(Event)
numbers = st.one_of(st.floats(), st.integers(-(2**62), 2**62), st.sampled_from((-0.0, 5e-324, 0.1 + 0.2)))
texts = st.one_of(st.text(max_size=8), st.sampled_from(("", "j1", "\ud800", "a\x00b", '"\\\n', "\N{OWL}")))
whole = st.integers(-(2**63), 2**63 - 1)


def any_event() -> st.SearchStrategy[Any]:
    return st.one_of(*(values_of(kind) for kind in EVENT_TYPES))


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type; made once, for the same few types occur in nearly all events."""
    own: dict[Any, st.SearchStrategy[Any]] = {
        float: numbers,
        int: whole,
        str: texts,
        bool: st.booleans(),
        type(None): st.none(),
    }
    own |= {Decisions: decisions(), SpeedCurve: curves(), Phases: phases()}
    if hint in own:
        return own[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, args))
    if origin is tuple:
        many = len(args) == 2 and args[1] is Ellipsis
        return st.lists(values_of(args[0]), max_size=3).map(tuple) if many else st.tuples(*map(values_of, args))
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return st.sampled_from(list(hint))
        if is_dataclass(hint) or hasattr(hint, "_fields"):
            hints = get_type_hints(hint)
            return st.builds(hint, **{name: values_of(own) for name, own in hints.items()})
    raise TypeError(f"no strategy for {hint}")


@cache
def curves() -> st.SearchStrategy[SpeedCurve]:
    speeds = st.lists(st.floats(0, 1e9), min_size=1, max_size=4)
    factors = st.floats(0, 1, exclude_min=True)
    return st.builds(lambda own, a, b: SpeedCurve((0.0, *own), a, b), speeds, factors, factors)


@st.composite
def phases(draw: st.DrawFn) -> Phases:
    marks = sorted(draw(st.lists(st.integers(0, 10**6), min_size=2, max_size=4, unique=True)))
    speeds = st.tuples(st.just(0.0), *[st.floats(1e-6, 1e6)] * draw(st.integers(1, 4)))
    per_s = draw(st.lists(speeds, min_size=len(marks) - 1, max_size=len(marks) - 1))
    return Phases(np.array(marks, float), np.array(per_s))


@st.composite
def decisions(draw: st.DrawFn, ids: tuple[str, ...] | None = None) -> Decisions:
    if ids is None:
        ids = tuple(draw(st.lists(texts, max_size=6, unique=True)))
    n = len(ids)

    def column(values: st.SearchStrategy[int] = whole) -> Any:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.int64)

    evidence = st.lists(st.tuples(texts, numbers), max_size=3).map(tuple)
    reasons = st.tuples(st.sampled_from(list(Reason)), evidence)
    small = st.integers(0, 3)
    return Decisions(
        ids=ids,
        gpus=column(small),
        moving=column(st.integers(0, 1)).astype(np.bool_) if draw(st.booleans()) else None,
        asked=column(small),
        low=column(),
        high=column(st.integers(-200, 200)),
        kind=column(st.integers(-1, 1)) if draw(st.booleans()) else None,
        capacity=tuple(draw(st.lists(st.integers(0, 10**6), max_size=3))),
        free=tuple(draw(st.lists(st.integers(0, 10**6), max_size=3))),
        special=draw(st.dictionaries(st.integers(0, n - 1), reasons, max_size=4)) if n else {},
    )
