"""Where in a JSON text a value stands, so that an error can name its line."""

from __future__ import annotations

import re
from collections.abc import Collection
from json import JSONDecoder
from typing import NamedTuple, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the top down to a value."""

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()


class Place(NamedTuple):
    """Both count from 1."""

    line: int
    column: int


def write_path(path: Path) -> str:
    """`("jobs", 3, "min")` as people write it: `jobs[3].min`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def find_places(text: str, wanted: Collection[Path]) -> dict[Path, Place]:
    """The places of those wanted values that are there. The text must be valid JSON."""
    found: dict[Path, int] = {}
    _walk(text, 0, (), set(wanted), found)
    return {
        path: Place(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)) for path, at in found.items()
    }


def _walk(text: str, at: int, path: Path, wanted: set[Path], found: dict[Path, int]) -> int:
    """Notes wanted values from `at` on and returns where the value that begins there ends."""
    at = _skip_space(text, at)
    if path in wanted:
        found[path] = at
    opening = text[at]
    if opening not in "{[":
        return _DECODER.raw_decode(text, at)[1]
    closing = "}" if opening == "{" else "]"
    at = _skip_space(text, at + 1)
    index = 0
    while text[at] != closing:
        key: str | int = index
        if opening == "{":
            key, at = _DECODER.raw_decode(text, at)
            at = _skip_space(text, at) + 1
        at = _skip_space(text, _walk(text, at, (*path, key), wanted, found))
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1
    return at + 1


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
