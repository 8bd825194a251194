"""Events in every form that they can be stored in, worked out from the types of their fields.

Every kind of event; every optional field with a value and without; every member of every enum; every command
with every reason; numbers that JSON has no word for. A new kind, field or member is in here by itself.
"""

import math
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from batuta.core.curve import SpeedCurve
from batuta.core.event import Event
from batuta.core.phases import Phases
from batuta.core.plan import Decisions
from batuta.core.reason import Evidence, Reason

EVENT_TYPES: tuple[type, ...] = get_args(Event)
CROWD = 80
"""Jobs in a plan of which the next one is stored as a change."""


class Form(NamedTuple):
    """Something that stored values show: of which type, in which field, and what about it."""

    of: Any
    field: str
    value: object


# ---------------------------------------------------------------------------------------------- making


def every_form() -> Iterator[tuple[Any, set[Form]]]:
    """Events of which each shows a form that none before it does, and what it shows.

    They tell no story: they cannot be applied one after another.
    """
    known: set[Form] = set()
    for kind in EVENT_TYPES:
        for event in samples(kind):
            forms = shown(event)
            if not forms <= known:
                known |= forms
                yield event, forms


def samples(hint: Any) -> list[Any]:
    """Values of a type that together show all that it can hold; the last one holds the most."""
    own: dict[Any, Callable[[], list[Any]]] = {
        float: lambda: [math.nan, -math.inf, math.inf, 0.1 + 0.2, 12.25],
        int: lambda: [0, -3, 7],
        str: lambda: ["", 'two "words"\n', "\N{OWL} ü", "word"],
        bool: lambda: [False, True],
        type(None): lambda: [None],
        SpeedCurve: lambda: [SpeedCurve((0.0, 1.0)), SpeedCurve((0.0, 1.0, 1.75), 0.9, 0.5)],
        Phases: lambda: [Phases(np.array([0.0, 5.0, 9.0]), np.array([[0.0, 1.0, 1.5], [0.0, 2.0, 3.25]]))],
        Decisions: _decisions,
    }
    if hint in own:
        return own[hint]()
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        ordered = sorted(args, key=lambda arg: arg is not type(None))
        return [value for arg in ordered for value in samples(arg)]
    if origin is tuple and args[-1] is Ellipsis:
        return [(), tuple(samples(args[0]))]
    if origin is tuple:
        return _rows([samples(arg) for arg in args], tuple)
    if issubclass(hint, Enum):
        return list(hint)
    if hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return _rows([samples(hints[name]) for name in hint._fields], lambda values: hint(*values))
    assert is_dataclass(hint), f"no samples of {hint}: add some here"
    return _objects(hint)


def _objects(kind: Any) -> list[Any]:
    """With its defaults alone, with all that it can have, and that with each field in each of its forms."""
    hints = get_type_hints(kind)
    by_field = {field.name: samples(hints[field.name]) for field in fields(kind)}
    full = {name: values[-1] for name, values in by_field.items()}
    needed = {f.name: full[f.name] for f in fields(kind) if f.default is f.default_factory is MISSING}
    others = [full | {name: value} for name, values in by_field.items() for value in values[:-1]]
    return [kind(**values) for values in (needed, *others, full)]


def _rows(columns: list[list[Any]], build: Callable[[list[Any]], Any]) -> list[Any]:
    full = [values[-1] for values in columns]
    others = [[*full[:k], value, *full[k + 1 :]] for k, own in enumerate(columns) for value in own[:-1]]
    return [build(values) for values in (*others, full)]


def _decisions() -> list[Decisions]:
    """None; as few columns as possible; a crowd, and a change of it, with every reason and kind of number."""
    none = np.zeros(0, np.int64)
    one = np.ones(1, np.int64)
    empty = Decisions((), none, None, none, none, none, None, (), (), {})
    small = Decisions(("j1",), one, None, one, one, one, None, (8,), (3,), {})
    ids = tuple(f"j{k}" for k in range(max(CROWD, len(Reason))))
    column = np.arange(len(ids), dtype=np.int64)
    special: dict[int, tuple[Reason, Evidence]] = {
        row: (reason, (("gpus", row), ("wait_s", row + 0.5)) if row % 2 else ()) for row, reason in enumerate(Reason)
    }
    # Seldom alike, so that they take some room and a change of them is worth it.
    sizes = (column * 7919 + 13) % 1009
    crowd = Decisions(
        ids, sizes, column % 3 == 0, sizes + 1, column, sizes * 3, column % 3 - 1, (64, 8), (0, 3), special
    )
    fewer = ids[:20] + ids[30:] + ("new",)
    row = np.arange(len(fewer), dtype=np.int64)
    kept = np.r_[sizes[:20], sizes[30:], 5]
    changed = Decisions(
        fewer,
        kept,
        None,
        kept + 1,
        row,
        kept * 3,
        None,
        (64,),
        (1,),
        {3: (Reason.IDLE, (("gpus", 4.0), ("idle_s", 9.5)))},
    )
    return [empty, small, crowd, changed]


# --------------------------------------------------------------------------------------------- looking


def shown(value: Any) -> set[Form]:
    """All forms that a value shows, with those of its parts."""
    found: set[Form] = set()
    _look(value, type(value), "", found)
    return found


def _look(value: Any, owner: Any, field: str, found: set[Form]) -> None:
    found.add(Form(owner, field, _aspect(value)))
    if isinstance(value, Phases | SpeedCurve | Decisions):
        return
    if is_dataclass(value):
        for own in fields(value):
            _look(getattr(value, own.name), type(value), own.name, found)
    elif hasattr(value, "_fields"):
        for name, part in zip(value._fields, value, strict=True):
            _look(part, type(value), name, found)
    elif isinstance(value, tuple):
        for part in value:
            _look(part, owner, f"{field}[]", found)


def _aspect(value: Any) -> object:
    """What is of interest about a value: of an enum the member, of others mostly whether it is there."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        return "plain" if value.isalnum() and value.isascii() else "special" if value else "empty"
    if isinstance(value, Decisions):
        return len(value), value.moving is None, value.kind is None
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "some" if value else "none"
    return type(value)
