"""Reads values from parsed JSON; collects all problems with the line and column of each value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any, NamedTuple, TypeAlias

from batuta.spec.problem import Problem, did_you_mean

JsonPath: TypeAlias = tuple[str | int, ...]  # keys and indexes from the top down to a value

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = JSONDecoder()
LARGEST = 10**9  # no count in a snapshot is larger; it keeps sums well inside 64 bits
_MISSING: Any = object()


class Position(NamedTuple):
    """Both count from 1."""

    line: int
    column: int


def format_path(path: JsonPath) -> str:
    """`("jobs", 3, "min")` as people write it: `jobs[3].min`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def find_positions(text: str, wanted: Collection[JsonPath]) -> dict[JsonPath, Position]:
    """The places of those wanted values that are there. The text must be valid JSON."""
    found: dict[JsonPath, int] = {}
    _walk(text, 0, (), set(wanted), found)
    return {path: Position(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)) for path, at in found.items()}


def _walk(text: str, at: int, path: JsonPath, wanted: set[JsonPath], found: dict[JsonPath, int]) -> int:
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


@dataclass(slots=True)
class JsonProblems:
    """What is wrong, each with the path of the value."""

    found: list[tuple[JsonPath, str, str]] = field(default_factory=list)

    def add(self, path: JsonPath, message: str, fix: str = "") -> None:
        self.found.append((path, message, fix))

    def problems(self, text: str, file: str) -> list[Problem]:
        """The same with file, line and column. A missing value is placed at what it is missing from."""
        wanted = {path[:end] for path, _, _ in self.found for end in range(len(path) + 1)}
        places = find_positions(text, wanted)
        result = []
        for path, message, fix in self.found:
            nearest = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in places)
            name = format_path(path)
            result.append(Problem(f"{name} {message}" if name else message, file, *places[nearest], fix))
        return result


@dataclass(slots=True)
class JsonObject:
    """One JSON object that is being read. Every reader returns a usable value, sound or not."""

    _values: dict[str, Any]
    _path: JsonPath
    _findings: JsonProblems
    _wrong: set[str] = field(default_factory=set)

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def all_sound(self, *keys: str) -> bool:
        """Whether nothing is wrong with these so far; only then is it fair to compare them."""
        return self._wrong.isdisjoint(keys)

    def wrong(self, key: str, message: str, fix: str = "", *below: int) -> None:
        """Notes a problem with the value of a key, or with what lies at an index below it."""
        self._wrong.add(key)
        self._findings.add((*self._path, key, *below), message, fix)

    def refuse_unknown(self, known: Sequence[str]) -> None:
        for key in self._values:
            if key not in known:
                self.wrong(key, "is not a known key", did_you_mean(key, known))

    def text(self, key: str) -> str:
        return str(self._read(key, lambda value: isinstance(value, str) and value, "a text that is not empty", ""))

    def number(self, key: str, default: float = _MISSING) -> float:
        """A finite number of at least 0."""
        found = self._read(
            key, lambda value: is_number(value) and value >= 0, "a finite number ≥ 0", 0.0, default, "a number ≥ 0"
        )
        return float(found)

    def moment(self, key: str) -> float:
        """A time in seconds, or NaN where it is absent or null."""
        return self.number(key) if self.has(key) else math.nan

    def count(self, key: str, least: int, default: int = _MISSING) -> int:
        def is_count(value: Any) -> bool:
            return is_number(value) and value == int(value) and least <= value <= LARGEST

        wanted = f"a whole number in {least}..{LARGEST}"
        return int(self._read(key, is_count, wanted, least, default, f"a whole number ≥ {least}"))

    def items(self, key: str) -> list[Any]:
        return list(self._read(key, lambda value: isinstance(value, list), "a list", [], fix="a list"))

    def table(self, key: str) -> dict[str, Any]:
        return dict(self._read(key, lambda value: isinstance(value, dict), "an object", {}, fix="an object"))

    def _read(
        self,
        key: str,
        is_sound: Callable[[Any], object],
        wanted: str,
        otherwise: Any,
        default: Any = _MISSING,
        fix: str = "",
    ) -> Any:
        """The value of a key; the default where it is absent; `otherwise`, and a problem, where it is wrong."""
        value = self._values.get(key)
        if value is None and default is not _MISSING:
            return default
        if value is None:
            self.wrong(key, "is missing", fix and f"give {fix}")
        elif not is_sound(value):
            self.wrong(key, f"must be {wanted}, found {_show(value)}")
        else:
            return value
        return otherwise


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
