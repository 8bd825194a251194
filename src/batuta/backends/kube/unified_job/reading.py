"""Reading of what should be sound, and may not be: everything readable, and a sentence for everything else.

The CRD's schema keeps faulty objects out. One may still be there: written before the schema became
stricter, or under another version of it. It must neither stop the watch nor hide from its owner.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>[^`]*)`)?", re.DOTALL)
_MOST_FAULTS: Final = 32


def read_tolerantly(value: Any, kind: type[T], root: str) -> tuple[T, tuple[str, ...]]:
    """The value as far as it can be read, and what cannot. `root` is the value's own place."""
    faults: list[str] = []
    while len(faults) < _MOST_FAULTS:
        try:
            return msgspec.convert(value, kind), tuple(faults)
        except msgspec.ValidationError as error:
            what, path = _taken_apart(str(error))
        if not faults:
            value = copy.deepcopy(value)
        faults.append(f"{'.'.join((root, *path))}: {what}")
        if not path or not _drop(value, path):
            break
    return kind(), tuple(faults)


def _taken_apart(message: str) -> tuple[str, list[str]]:
    """What is wrong, and the keys that lead there; an element of a list stands for the list."""
    match = _PLACE.fullmatch(message)
    if match is None:
        return message, []
    path: list[str] = []
    for key in filter(None, (match["path"] or "").split(".")):
        name, bracket, _ = key.partition("[")
        path.append(name)
        if bracket:
            break
    what = match["what"]
    return (what[:1].lower() + what[1:]).replace("`", ""), path


def _drop(value: Any, path: list[str]) -> bool:
    """Takes out what cannot be read; False when it is not there to be taken out."""
    for key in path[:-1]:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict) or path[-1] not in value:
        return False
    del value[path[-1]]
    return True
