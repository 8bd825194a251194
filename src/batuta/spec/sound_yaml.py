"""YAML that people wrote: bounded in size and depth, aliases and merge keys resolved, notes collected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import yaml

from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.yaml_nodes import YamlNode, YamlReader

_TAG = "tag:yaml.org,2002:"
_NULL, _MERGE = _TAG + "null", _TAG + "merge"
_TAGS = {
    _TAG + name
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map", "set")
}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_T = TypeVar("_T")


def is_null(node: YamlNode | None) -> bool:
    """Whether nothing is said: the key is absent, or has no value."""
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _NULL)


class SoundReader(YamlReader):
    """Reads the nodes of one file. `notes` are what was accepted and is not used."""

    largest_bytes: ClassVar[int] = 2**20
    most_values: ClassVar[int] = 20_000
    """Values in one file, each alias counted with all that it stands for: bombs of aliases end here."""
    size_fix: ClassVar[str] = ""
    """How to mend a file that is too large."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.notes: list[str] = []

    def compose_sound(self, text: str) -> list[YamlNode]:
        """The roots of all documents of a text; those after a problem are left out."""
        if not self.check_text(text):
            return []
        text = json_as_yaml(text)
        roots = self.compose_all(text)
        self.problems = [explain_tab(problem, text) for problem in self.problems]
        written = [root for root in roots if not is_null(root)]
        if not written and not self.problems:
            self.problems.append(Problem("holds nothing but comments", self.file))
        return written if self.resolve(written) else []

    def blame(self, node: YamlNode | None, message: str, fix: str = "") -> None:
        """A problem at a node, or of the file as a whole where the command line is to blame."""
        if node is None:
            self.problems.append(Problem(message, self.file, fix=fix))
        else:
            self.fault(node, message, fix)

    def section(
        self, node: YamlNode | None, what: str, known: Sequence[str], unused: Sequence[str] = ()
    ) -> dict[str, YamlNode]:
        """Values by known key, those without a value left out. Keys in `unused` are noted and left out."""
        if node is None or is_null(node):
            return {}
        before = len(self.problems)
        values = self.mapping(node, what, (*known, *unused)) or {}
        for k, problem in enumerate(self.problems[before:], start=before):
            if problem.message.startswith("unknown key") and not problem.fix.startswith("did you mean"):
                self.problems[k] = replace(problem, fix=f"known: {', '.join(known)}")
        path = "" if what == "a task" else f"{what}."
        for key in (key for key in unused if key in values):
            self.notes.append(f"{path}{key} is not used by Batuta")
        return {key: value for key, value in values.items() if key in known and not is_null(value)}

    def parsed(self, node: YamlNode, what: str, parse: Callable[[str], _T]) -> _T | None:
        """What a parser makes of a single value; its problems are noted at the node."""
        text = self.text(node, what)
        if text is None:
            return None
        try:
            return parse(text)
        except InputError as error:
            for problem in error.problems:
                self.fault(node, f"{what}: {problem.message}", problem.fix)
            return None

    def word(self, node: YamlNode, what: str, accepted: Sequence[str]) -> str | None:
        """One of a few words."""
        text = self.text(node, what)
        if text is not None and text not in accepted:
            near = did_you_mean(text, accepted)
            fix = near if near.startswith("did") else f"one of {', '.join(accepted)}"
            self.fault(node, f"{what} cannot be {text[:60]!r}", fix)
            return None
        return text

    def check_text(self, text: str) -> bool:
        """Whether a text may be parsed at all."""
        problem: Problem | None = None
        # A character takes a byte at least, so that only texts of a sane length are searched.
        too_large = len(text) > self.largest_bytes
        if too_large or len(text.encode(errors="replace")) > self.largest_bytes:
            problem = Problem(f"is larger than {self.largest_bytes >> 20} MiB", self.file, fix=self.size_fix)
        elif not text.strip():
            problem = Problem("is empty", self.file)
        elif match := _UNPRINTABLE.search(text):
            at = match.start()
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            problem = Problem(f"holds the control character U+{ord(match[0]):04X}", self.file, line, column)
        if problem is not None:
            self.problems.append(problem)
        return problem is None

    def resolve(self, roots: Sequence[YamlNode]) -> bool:
        """Checks tags, cycles and the number of values; puts merged keys into their mappings."""
        before = len(self.problems)
        total = sum(self._walk(root, {}, set()) for root in roots)
        if total > self.most_values and len(self.problems) == before:
            message = (
                f"holds more than {self.most_values:,} values, each alias counted with what it stands for"
            )
            self.problems.append(Problem(message, self.file, fix="use fewer aliases"))
        return len(self.problems) == before

    def _walk(self, node: YamlNode, sizes: dict[int, int], open_nodes: set[int]) -> int:
        """How many values a node stands for. Anchors come before their aliases, so that depth is bounded."""
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in open_nodes:
            self.fault(node, "is a part of itself through an alias")
            return 1
        if node.tag not in _TAGS:
            self.fault(node, f"the tag {node.tag[:60]} is unknown", "write plain YAML, without tags")
        open_nodes.add(id(node))
        total = 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                total += self._walk(key, sizes, open_nodes) + self._walk(value, sizes, open_nodes)
            self._merge(node)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(self._walk(item, sizes, open_nodes) for item in node.value)
        open_nodes.discard(id(node))
        sizes[id(node)] = total
        return total

    def _merge(self, node: yaml.MappingNode) -> None:
        """Replaces `<<: *other` by the keys of the other mapping that are not given here."""
        merged = [value for key, value in node.value if key.tag == _MERGE]
        if not merged:
            return
        own = [(key, value) for key, value in node.value if key.tag != _MERGE]
        given = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        sources = [part for value in merged for part in (value.value if value.id == "sequence" else [value])]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self.fault(source, "only mappings can be merged with <<")
                continue
            for key, value in source.value:
                if isinstance(key, yaml.ScalarNode) and key.value not in given:
                    given.add(key.value)
                    own.append((key, value))
        node.value = own


def json_as_yaml(text: str) -> str:
    """A JSON text so that a YAML parser reads it; any other text as it is. No line or column changes.

    JSON may be indented with tabs, which stand in no JSON string as they are, and it writes characters beyond
    the basic plane as two escapes, where YAML knows one.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    if "\t" in text and _is_json(text):
        text = text.replace("\t", " ")
    return join_surrogates(text)


def join_surrogates(text: str) -> str:
    """Pairs of escapes for one character as that character."""

    def join(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return chr(0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00)

    return _ESCAPE.sub(join, text)


def explain_tab(problem: Problem, text: str) -> Problem:
    """The parser's words in ours, where a tab is in the way."""
    lines = text.splitlines()
    line = lines[problem.line - 1] if 0 < problem.line <= len(lines) else ""
    if "cannot start any token" in problem.message and line[problem.column - 1 : problem.column] == "\t":
        return replace(problem, message="is not YAML: a tab", fix="indent with spaces")
    return problem


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
