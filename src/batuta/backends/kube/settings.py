"""Settings in camelCase, validated as a whole: all problems at once, each with its file, line and column.

`YamlSource` reads a YAML file into plain values and keeps the position of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from batuta.spec.problem import InputError, Problem, did_you_mean, read_text
from batuta.spec.yaml_reader import YamlReader


class Settings(BaseModel):
    """A mapping that people write in camelCase; an unknown key is an error."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )


Model = TypeVar("Model", bound=Settings)
KeyPath: TypeAlias = Sequence[str | int]
Locate: TypeAlias = Callable[[KeyPath], tuple[str, int, int]]
"""Where the value at a path was written: file, line, column."""


def nowhere(path: KeyPath) -> tuple[str, int, int]:
    """For values that were written in no file."""
    return "", 0, 0


def validated(model: type[Model], value: Any, locate: Locate = nowhere) -> Model:
    """The value as a model, or an InputError with every problem, its place and what would be right."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [_problem(model, fault, locate) for fault in error.errors(include_url=False)]
        raise InputError(problems) from None


def _problem(model: type[Settings], fault: Any, locate: Locate) -> Problem:
    path: KeyPath = fault["loc"]
    place, name = locate(path), ".".join(map(str, path))
    if fault["type"] == "extra_forbidden":
        fix = did_you_mean(str(path[-1]), _known_keys(model, path[:-1]))
        return Problem(f"unknown key {name}", *place, fix=fix)
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch":
        said = f"{fault['input']!r} does not match {fault['ctx']['pattern']}"
    elif fault["type"] != "value_error":
        found = "" if isinstance(fault["input"], dict | list) else f", found {fault['input']!r}"
        said = said[0].lower() + said[1:] + found
    return Problem(f"{name}: {said}" if name else said, *place)


def _known_keys(model: type[Settings], path: KeyPath) -> list[str]:
    """The keys that may stand in the mapping at a path."""
    for word in path:
        field = next((one for one in model.model_fields.values() if one.alias == word), None)
        inner = field.annotation if field is not None else None
        if not (isinstance(inner, type) and issubclass(inner, Settings)):
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


@dataclass(frozen=True, slots=True)
class YamlSource:
    """One file whose top is a mapping."""

    file: str
    value: dict[str, Any]
    root: yaml.Node

    @staticmethod
    def read(path: Path) -> YamlSource:
        """The file, or its problems: see `parse`."""
        return YamlSource.parse(str(path), read_text(path))

    @staticmethod
    def parse(file: str, text: str) -> YamlSource:
        """The text of a file, or its problems: not YAML, not a mapping, a key that stands there twice."""
        reader = YamlReader(file)
        root = reader.compose(text)
        if root is not None and not isinstance(root, yaml.MappingNode):
            reader.fault(root, "is not a mapping of names to values")
        if root is not None:
            reader.problems.extend(_repeated(root, file))
        if root is None or reader.problems:
            raise InputError(reader.problems)
        try:
            return YamlSource(file, yaml.safe_load(text), root)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError.of(f"is not YAML: {error}", file=file) from None

    def place(self, path: Sequence[str | int]) -> tuple[str, int, int] | None:
        """Line and column of the value at a path, or None when the file says nothing about it."""
        found = self.node(path)
        return None if found is None else (self.file, found.start_mark.line + 1, found.start_mark.column + 1)

    def node(self, path: KeyPath) -> yaml.Node | None:
        """The value at a path as it is written, or None when the file says nothing about it."""
        found: yaml.Node | None = self.root
        for word in path:
            found = None if found is None else _child(found, word)
        return found

    def nearest(self, path: Sequence[str | int]) -> tuple[str, int, int]:
        """The place of the value, or of the last one on the way to it that the file has."""
        places = (self.place(path[:length]) for length in range(len(path), -1, -1))
        return next(place for place in places if place is not None)


def _child(node: yaml.Node, word: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(word)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(word, int) and word < len(node.value):
        inner: yaml.Node = node.value[word]
        return inner
    return None


def _repeated(node: yaml.Node, file: str) -> list[Problem]:
    """YAML's libraries take the last one in silence."""
    found: list[Problem] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                mark = key.start_mark
                found.append(Problem(f"{name} stands here twice", file, mark.line + 1, mark.column + 1))
            seen.add(name)
            found += _repeated(value, file)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            found += _repeated(value, file)
    return found
