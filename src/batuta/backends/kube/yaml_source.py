"""A YAML file as plain values that still knows where each of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from batuta.spec.problem import InputError, Problem
from batuta.spec.text_file import read_text
from batuta.spec.yaml_nodes import YamlReader


@dataclass(frozen=True, slots=True)
class YamlSource:
    """One file whose top is a mapping."""

    file: str
    value: dict[str, Any]
    root: yaml.Node

    @staticmethod
    def read(path: Path) -> YamlSource:
        """The file, or its problems: not YAML, not a mapping, a key that stands there twice."""
        file, text = str(path), read_text(path)
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
        found = self.root
        for word in path:
            inner = _child(found, word)
            if inner is None:
                return None
            found = inner
        return self.file, found.start_mark.line + 1, found.start_mark.column + 1

    def nearest(self, path: Sequence[str | int]) -> tuple[str, int, int]:
        """The place of the value, or of the last one on the way to it that the file has."""
        for length in range(len(path), -1, -1):
            found = self.place(path[:length])
            if found is not None:
                return found
        return self.file, 1, 1


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
