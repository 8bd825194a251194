"""YAML as nodes that know their line and column, read step by step; problems are collected."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import yaml

from batuta.spec.problem import Problem, did_you_mean

YamlNode: TypeAlias = yaml.Node
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST = 64
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")


class PlainPlace(NamedTuple):
    """Whose a node is that was made of a plain value: `ClusterQueue a`."""

    title: str


class YamlReader:
    """Checks the nodes of one file. A bad one is noted, and None or nothing stands in for it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._above = 0

    def compose(self, text: str, above: int = 0) -> YamlNode | None:
        """The root node of a document that begins below `above` lines of its file."""
        self._above = above
        root: YamlNode | None = None
        try:
            too_deep = self._is_too_deep(text)
            root = None if too_deep else yaml.compose(text, Loader=_LOADER)
        except (yaml.YAMLError, RecursionError) as error:
            self._not_yaml(error)
            return None
        if root is None and not too_deep:
            self.problems.append(Problem("holds nothing but comments", self.file))
        return root

    def compose_all(self, text: str) -> list[YamlNode]:
        """The root nodes of all documents up to the first that cannot be parsed."""
        self._above = 0
        roots: list[YamlNode] = []
        try:
            if self._is_too_deep(text):
                return []
            # One by one, so that those before a mistake are kept.
            roots.extend(root for root in yaml.compose_all(text, Loader=_LOADER) if root is not None)
        except (yaml.YAMLError, RecursionError) as error:
            self._not_yaml(error)
        return roots

    def _is_too_deep(self, text: str) -> bool:
        if _deepest(text) <= DEEPEST:
            return False
        self.problems.append(
            Problem(f"is nested more than {DEEPEST} levels deep", self.file, self._above + 1)
        )
        return True

    def _not_yaml(self, error: yaml.YAMLError | RecursionError) -> None:
        above = self._above
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1 + above, mark.column + 1) if mark else (above + 1, 0)
            said = error.problem or error.context or "cannot be parsed"
            self.problems.append(Problem(f"is not YAML: {said}", self.file, line, column))
        else:
            self.problems.append(Problem(f"is not YAML: {error}", self.file, above + 1))

    def fault(self, node: YamlNode, message: str, fix: str = "") -> None:
        mark = node.start_mark
        if isinstance(mark, PlainPlace):
            self.problems.append(Problem(f"{mark.title}: {message}", self.file, fix=fix))
        else:
            line, column = mark.line + 1 + self._above, mark.column + 1
            self.problems.append(Problem(message, self.file, line, column, fix))

    def mapping(
        self, node: YamlNode, what: str, known: Sequence[str] | None = None
    ) -> dict[str, YamlNode] | None:
        """Values by key. Keys outside `known` and repeated ones are faults."""
        if not isinstance(node, yaml.MappingNode):
            self._wrong_kind(node, what, "a mapping")
            return None
        values: dict[str, YamlNode] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fault(key, f"a key of {what} must be a single word")
            elif known is not None and key.value not in known:
                self.fault(key, f"unknown key {key.value} in {what}", did_you_mean(key.value, known))
            elif key.value in values:
                self.fault(key, f"key {key.value} appears twice in {what}")
            else:
                values[key.value] = value
        return values

    def sequence(self, node: YamlNode, what: str) -> list[YamlNode]:
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self._wrong_kind(node, what, "a list")
        return []

    def text(self, node: YamlNode, what: str) -> str | None:
        """Any single value, as it is written."""
        null = node.tag == "tag:yaml.org,2002:null"
        if isinstance(node, yaml.ScalarNode) and node.value.strip() and not null:
            return str(node.value.strip())
        self._wrong_kind(node, what, "a text")
        return None

    def whole(self, node: YamlNode, what: str, low: int, high: int) -> int | None:
        if isinstance(node, yaml.ScalarNode) and _WHOLE.fullmatch(node.value):
            value = int(node.value)
            if low <= value <= high:
                return value
        self._wrong_kind(node, what, f"a whole number within {low}..{high}")
        return None

    def number(self, node: YamlNode, what: str, low: float, high: float) -> float | None:
        """A finite number within bounds."""
        if isinstance(node, yaml.ScalarNode) and "_" not in node.value:
            try:
                value = float(node.value)
            except ValueError:
                value = math.nan
            if low <= value <= high and math.isfinite(value):
                return value
        most = "" if math.isinf(high) else f" and ≤ {high:g}"
        self._wrong_kind(node, what, f"a number ≥ {low:g}{most}")
        return None

    def _wrong_kind(self, node: YamlNode, what: str, wanted: str) -> None:
        if isinstance(node, yaml.ScalarNode):
            found = _shown(node.value) if node.value else "nothing"
        else:
            found = "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
        self.fault(node, f"{what} must be {wanted}, found {found}")


def _deepest(text: str) -> int:
    """Levels of nesting, counted up to one too many: composing recurses, and the C parser would crash."""
    depth = deepest = 0
    # Composing meets the same error, at the end of what is counted here, and tells it.
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                deepest = max(deepest, depth)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if deepest > DEEPEST:
                break
    return deepest


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}…"
