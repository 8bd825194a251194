"""Reads one mapping of a Kubernetes object key by key; collects problems with their position."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import yaml

from batuta.core.node_table import TYPE_LABEL
from batuta.spec.problem import Problem
from batuta.spec.quantity import parse_milli, parse_quantity, shown
from batuta.spec.yaml_reader import StrictYamlReader, YamlNode, is_null

_STR, _BOOL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:bool"
_TRUTH = {"true": True, "false": False}
_LABEL = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
_NAME, _VALUE = re.compile(_DNS), re.compile(f"(?:{_LABEL})?")
_QUALIFIED = re.compile(rf"(?:(?={_DNS}/)[-a-z0-9.]{{1,253}}/)?{_LABEL}")
_LONGEST = 253 + 1 + 63
NAME_FIX = "lower-case letters, digits, dashes and dots, at most 253, as in team-a"
QUALIFIED_FIX = "as in nvidia.com/gpu"
_E = TypeVar("_E", bound=Enum)


class ObjectReader(StrictYamlReader):
    """Reads the objects of one file, or plain values."""

    largest_bytes = 2**24
    most_values = 1_000_000
    size_fix = "split it into several files"


class Item(NamedTuple):
    """A value with its path in the object."""

    node: YamlNode
    path: str


class Section:
    """Values by key; unknown keys are problems. A key with null or an empty text is absent, as to Kubernetes.

    `unused` are keys that are ignored, with the consequence.
    """

    def __init__(
        self,
        reader: ObjectReader,
        node: YamlNode | None,
        path: str,
        known: Sequence[str],
        unused: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.reader, self.node, self.path = reader, node, path
        found = {} if is_null(node) else reader.mapping(node, path or "an object", (*known, *unused)) or {}
        said = {key: value for key, value in found.items() if not (is_null(value) or value.value == "")}
        self._values = {key: value for key, value in said.items() if key in known}
        self.unused = [
            f"{path}.{key} is not used by Batuta{consequence and ': '}{consequence}"
            for key, consequence in unused.items()
            if key in said
        ]

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def fault(self, key: str, message: str, fix: str = "") -> None:
        """A problem of a key, or of the whole part where the key is absent."""
        node = self._values.get(key, self.node)
        if node is None:
            self.reader.problems.append(Problem(message, self.reader.file, fix=fix))
        else:
            self.reader.fault(node, message, fix)

    def require(self, key: str, what: str = "", fix: str = "") -> bool:
        """Whether a key is there; it is a problem when it is not."""
        if key not in self._values:
            self.fault(key, f"{self.path} needs {what or key}", fix)
        return key in self._values

    def value(self, key: str) -> YamlNode | None:
        return self._values.get(key)

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def section(self, key: str, known: Sequence[str], unused: Mapping[str, str] = MappingProxyType({})) -> Section:
        """A mapping below; an empty one where it is absent."""
        return Section(self.reader, self._values.get(key), self.at(key), known, unused)

    def items(self, key: str, most: int) -> list[Item]:
        """The values of a list; a list that is too long is a problem, and read up to there."""
        nodes = self.reader.sequence(self._values.get(key), self.at(key))
        if len(nodes) > most:
            self.fault(key, f"{self.at(key)} has {len(nodes)} entries", f"at most {most}")
        return [Item(one, f"{self.at(key)}[{index}]") for index, one in enumerate(nodes[:most])]

    def sections(self, key: str, most: int, known: Sequence[str]) -> Iterator[Section]:
        return (Section(self.reader, *item, known) for item in self.items(key, most))

    def entries(self, key: str, most: int) -> Iterator[tuple[str, Item]]:
        """The keys and values of a mapping with free keys."""
        found = self.reader.mapping(self._values.get(key), self.at(key)) or {}
        if len(found) > most:
            self.fault(key, f"{self.at(key)} has {len(found)} entries", f"at most {most}")
        for name, value in list(found.items())[:most]:
            yield name, Item(value, f"{self.at(key)}.{name}")

    def text(self, key: str, default: str = "") -> str:
        node = self._values.get(key)
        return default if node is None else read_text_value(self.reader, Item(node, self.at(key)))

    def name(self, key: str) -> str:
        """The name of an object; empty when it is absent or none."""
        found = self.text(key)
        if found and (len(found) > 253 or not _NAME.fullmatch(found)):
            self.fault(key, f"{self.at(key)} cannot be {shown(found)}", NAME_FIX)
            return ""
        return found

    def choice(self, key: str, accepted: type[_E], default: _E, also: Mapping[str, _E] | None = None) -> _E:
        """One of the words of an enum; `also` are older words for the same."""
        words = {str(one.value): one for one in accepted} | dict(also or {})
        found = self.reader.word(self._values.get(key), self.at(key), tuple(words))
        return default if found is None else words[found]

    def word(self, key: str, accepted: Sequence[str], default: str) -> str:
        return self.reader.word(self._values.get(key), self.at(key), accepted) or default

    def flag(self, key: str, default: bool) -> bool:
        node = self._values.get(key)
        if node is None:
            return default
        found = _TRUTH.get(node.value) if node.tag == _BOOL else None
        if found is None:
            self.fault(key, f"{self.at(key)} must be true or false")
        return default if found is None else found

    def whole(self, key: str, low: int, high: int) -> int | None:
        return self.reader.whole(self._values.get(key), self.at(key), low, high)

    def quantity(self, key: str) -> Fraction | None:
        return self.reader.parsed(self._values.get(key), self.at(key), parse_quantity)

    def milli(self, key: str) -> int | None:
        """A quantity that is not negative, in thousandths; None where it is absent or wrong."""
        node = self._values.get(key)
        return None if node is None else read_milli(self.reader, Item(node, self.at(key)))

    def labels(self, key: str, most: int = 64) -> tuple[tuple[str, str], ...]:
        found = []
        for name, item in self.entries(key, most):
            value = read_text_value(self.reader, item, may_be_empty=True)
            check_label(self.reader, item, name, value)
            found.append((name, value))
        return tuple(sorted(found))


def read_text_value(reader: ObjectReader, item: Item, *, may_be_empty: bool = False) -> str:
    """A text. What YAML takes for a number or for true has to be quoted, as the API server wants it."""
    node = item.node
    if isinstance(node, yaml.ScalarNode) and node.tag == _STR and (node.value or may_be_empty):
        return str(node.value)
    if isinstance(node, yaml.ScalarNode) and node.value and node.tag != _STR:
        reader.fault(node, f"{item.path} must be a text, found {shown(node.value)}", f'write "{node.value}"')
    else:
        reader.text(node, item.path)  # says what was found instead
    return ""


def read_milli(reader: ObjectReader, item: Item) -> int | None:
    """A quantity that is not negative, in thousandths."""
    found = reader.parsed(item.node, item.path, parse_milli)
    if found is not None and found < 0:
        reader.fault(item.node, f"{item.path} must not be negative", "0 or more")
        return None
    return found


def check_resource(reader: ObjectReader, item: Item, name: str) -> None:
    if name and not _is_qualified(name):
        reader.fault(item.node, f"{item.path}: {shown(name)} is not the name of a resource", QUALIFIED_FIX)


def check_label(reader: ObjectReader, item: Item, key: str, value: str) -> None:
    if not _is_qualified(key):
        reader.fault(item.node, f"{item.path}: {shown(key)} is not the key of a label", QUALIFIED_FIX)
    # A type of GPU is called as people call it, with blanks and all.
    if key != TYPE_LABEL and (len(value) > 63 or not _VALUE.fullmatch(value)):
        fix = "at most 63 letters, digits, dashes, dots and underscores"
        reader.fault(item.node, f"{item.path}: {shown(value)} is not the value of a label", fix)


def _is_qualified(name: str) -> bool:
    return len(name) <= _LONGEST and _QUALIFIED.fullmatch(name) is not None
