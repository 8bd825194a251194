"""Reads YAML from users as nodes with line and column, and collects all problems.

`YamlReader` reads the nodes. `StrictYamlReader` adds limits on size and aliases, resolves merge keys and
collects notes; `TaskReader` reads a task file. `object_node` makes the same nodes from plain values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import yaml

from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.quantity import shown

YamlNode: TypeAlias = yaml.Node
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 64
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_TAG = "tag:yaml.org,2002:"
_NULL, _MERGE = _TAG + "null", _TAG + "merge"
_TAGS = {
    _TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map", "set")
}
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_NOTHING: Mapping[str, tuple[str, str]] = {}
_T = TypeVar("_T")


class ObjectMark(NamedTuple):
    """The position of a node made from a plain value: its object, as in `ClusterQueue a`."""

    title: str


class YamlReader:
    """Checks the nodes of one file. An absent node is read as None or empty; a bad one is also a problem."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._above = 0

    def compose(self, text: str, above: int = 0) -> YamlNode | None:
        """Return the root node of a document that begins below `above` lines of its file."""
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
        """Return the root nodes of all documents up to the first that cannot be parsed."""
        self._above = 0
        roots: list[YamlNode] = []
        try:
            if self._is_too_deep(text):
                return []
            # One by one, to keep the documents before a syntax error.
            roots.extend(root for root in yaml.compose_all(text, Loader=_LOADER) if root is not None)
        except (yaml.YAMLError, RecursionError) as error:
            self._not_yaml(error)
        return roots

    def _is_too_deep(self, text: str) -> bool:
        if _depth(text) <= MAX_DEPTH:
            return False
        self.problems.append(Problem(f"is nested more than {MAX_DEPTH} levels deep", self.file, self._above + 1))
        return True

    def _not_yaml(self, error: yaml.YAMLError | RecursionError) -> None:
        above = self._above
        if isinstance(error, yaml.MarkedYAMLError):
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1 + above, mark.column + 1) if mark else (above + 1, 0)
            reason = error.problem or error.context or "cannot be parsed"
            self.problems.append(Problem(f"is not YAML: {reason}", self.file, line, column))
        else:
            self.problems.append(Problem(f"is not YAML: {error}", self.file, above + 1))

    def fault(self, node: YamlNode, message: str, fix: str = "") -> None:
        mark = node.start_mark
        if isinstance(mark, ObjectMark):
            self.problems.append(Problem(f"{mark.title}: {message}", self.file, fix=fix))
        else:
            line, column = mark.line + 1 + self._above, mark.column + 1
            self.problems.append(Problem(message, self.file, line, column, fix))

    def adopt(self, node: YamlNode, problems: Iterable[Problem], prefix: str = "") -> None:
        """Record at a node what another reader found wrong."""
        for problem in problems:
            self.fault(node, f"{prefix}{problem.message}", problem.fix)

    def mapping(
        self, node: YamlNode | None, what: str, known: Sequence[str] | None = None
    ) -> dict[str, YamlNode] | None:
        """Return values by key. Keys outside `known` and repeated keys are problems."""
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

    def sequence(self, node: YamlNode | None, what: str) -> list[YamlNode]:
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self._wrong_kind(node, what, "a list")
        return []

    def text(self, node: YamlNode | None, what: str) -> str | None:
        """Return a scalar as it is written."""
        if isinstance(node, yaml.ScalarNode) and node.value.strip() and node.tag != _NULL:
            return str(node.value.strip())
        self._wrong_kind(node, what, "a text")
        return None

    def whole(self, node: YamlNode | None, what: str, low: int, high: int) -> int | None:
        if isinstance(node, yaml.ScalarNode) and _WHOLE.fullmatch(node.value) and low <= int(node.value) <= high:
            return int(node.value)
        self._wrong_kind(node, what, f"a whole number within {low}..{high}")
        return None

    def number(self, node: YamlNode | None, what: str, low: float, high: float) -> float | None:
        if isinstance(node, yaml.ScalarNode) and "_" not in node.value:
            with suppress(ValueError):
                value = float(node.value)
                if low <= value <= high and math.isfinite(value):
                    return value
        most = "" if math.isinf(high) else f" and ≤ {high:g}"
        self._wrong_kind(node, what, f"a number ≥ {low:g}{most}")
        return None

    def _wrong_kind(self, node: YamlNode | None, what: str, wanted: str) -> None:
        if node is None:
            return
        if isinstance(node, yaml.ScalarNode):
            found = shown(node.value) if node.value else "nothing"
        else:
            found = "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
        self.fault(node, f"{what} must be {wanted}, found {found}")


def _depth(text: str) -> int:
    """Return the levels of nesting, at most one above the limit: the C parser recurses and would crash."""
    depth = deepest = 0
    # `compose` meets the same error and reports it.
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                deepest = max(deepest, depth)
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if deepest > MAX_DEPTH:
                break
    return deepest


def is_null(node: YamlNode | None) -> bool:
    """Whether the key is absent or has no value."""
    return node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _NULL)


def scalar_at(node: YamlNode | None, key: str) -> str | None:
    """Return a scalar of a mapping, without any check."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key and isinstance(value, yaml.ScalarNode):
                return str(value.value)
    return None


def is_empty(node: YamlNode | None) -> bool:
    """Whether a value is null, an empty mapping or an empty list."""
    return is_null(node) or (isinstance(node, yaml.MappingNode | yaml.SequenceNode) and not node.value)


class StrictYamlReader(YamlReader):
    """Reads untrusted files: bounded size and aliases. `notes` lists what is accepted and not used."""

    largest_bytes: ClassVar[int] = 2**20
    most_values: ClassVar[int] = 20_000
    """Values in one file, each alias counted with all that it expands to: the limit stops alias bombs."""
    size_fix: ClassVar[str] = ""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.notes: list[str] = []

    def compose_sound(self, text: str) -> list[YamlNode]:
        """Return the roots of all documents of a text, up to the first syntax error."""
        if not self.check_text(text):
            return []
        text = json_as_yaml(text)
        roots = self.compose_all(text)
        self.problems = [_explained(problem, text) for problem in self.problems]
        written = [root for root in roots if not is_null(root)]
        if not written and not self.problems:
            self.problems.append(Problem("holds nothing but comments", self.file))
        return written if self.resolve(written) else []

    def blame(self, node: YamlNode | None, message: str, fix: str = "") -> None:
        """Record a problem at a node, or of the whole file where the value came from the command line."""
        if node is None:
            self.problems.append(Problem(message, self.file, fix=fix))
        else:
            self.fault(node, message, fix)

    def section(
        self,
        node: YamlNode | None,
        what: str,
        known: Sequence[str],
        unused: Sequence[str] = (),
        refused: Mapping[str, tuple[str, str]] = _NOTHING,
    ) -> dict[str, YamlNode]:
        """Return values by known key, without null values. Keys in `unused` are noted and left out.

        Keys in `refused` are problems unless they are empty: each has the reason and the fix.
        """
        if is_null(node):
            return {}
        before = len(self.problems)
        values = self.mapping(node, what, (*known, *unused, *refused)) or {}
        for k, problem in enumerate(self.problems[before:], start=before):
            if problem.message.startswith("unknown key") and not problem.fix.startswith("did you mean"):
                self.problems[k] = replace(problem, fix=f"known: {', '.join(known)}")
        path = "" if what == "a task" else f"{what}."
        for key in (key for key in unused if key in values):
            self.notes.append(f"{path}{key} is not used by Batuta")
        for key, (why, fix) in refused.items():
            if key in values and not is_empty(values[key]):
                self.fault(values[key], f"{path}{key}: {why}", fix)
        return {key: value for key, value in values.items() if key in known and not is_null(value)}

    def parsed(self, node: YamlNode | None, what: str, parse: Callable[[str], _T]) -> _T | None:
        """Return the parsed value of a scalar; record the parser's problems at the node."""
        text = self.text(node, what)
        if node is None or text is None:
            return None
        try:
            return parse(text)
        except InputError as error:
            self.adopt(node, error.problems, f"{what}: ")
            return None

    def option(self, flag: str, text: str, parse: Callable[[str], _T]) -> _T | None:
        """Return the parsed value of a command-line option that overrides the file; record the problems."""
        try:
            return parse(text)
        except InputError as error:
            self.problems += [Problem(f"{flag} {one.message}", fix=one.fix) for one in error.problems]
            return None

    def word(self, node: YamlNode | None, what: str, accepted: Sequence[str]) -> str | None:
        text = self.text(node, what)
        if node is not None and text is not None and text not in accepted:
            near = did_you_mean(text, accepted)
            fix = near if near.startswith("did") else f"one of {', '.join(accepted)}"
            self.fault(node, f"{what} cannot be {text[:60]!r}", fix)
            return None
        return text

    def check_text(self, text: str) -> bool:
        """Whether a text is small enough, not empty and printable."""
        # A character takes at least one byte: encode only texts of a sane length.
        if len(text) > self.largest_bytes or len(text.encode(errors="replace")) > self.largest_bytes:
            problem = Problem(f"is larger than {self.largest_bytes >> 20} MiB", self.file, fix=self.size_fix)
        elif not text.strip():
            problem = Problem("is empty", self.file)
        elif match := _UNPRINTABLE.search(text):
            at = match.start()
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            problem = Problem(f"holds the control character U+{ord(match[0]):04X}", self.file, line, column)
        else:
            return True
        self.problems.append(problem)
        return False

    def resolve(self, roots: Sequence[YamlNode]) -> bool:
        """Check tags, cycles and the number of values; merge `<<` keys into their mappings."""
        before = len(self.problems)
        total = sum(self._walk(root, {}, set()) for root in roots)
        if total > self.most_values and len(self.problems) == before:
            message = f"holds more than {self.most_values:,} values, each alias counted with what it stands for"
            self.problems.append(Problem(message, self.file, fix="use fewer aliases"))
        return len(self.problems) == before

    def _walk(self, node: YamlNode, sizes: dict[int, int], open_nodes: set[int]) -> int:
        """Return how many values a node expands to. Anchors precede their aliases, so depth is bounded."""
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
        """Replace `<<: *other` by the keys of the other mapping that are not given here."""
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
    """Return a JSON text as the YAML parser reads it; any other text unchanged. Lines and columns stay.

    JSON may be indented with tabs, which a JSON string cannot hold unescaped, and writes characters beyond
    the basic plane as two escapes, where YAML has one.
    """
    if not text.lstrip().startswith(("{", "[")):
        return text
    if "\t" in text and _is_json(text):
        text = text.replace("\t", " ")
    return join_surrogates(text)


def join_surrogates(text: str) -> str:
    """Replace pairs of escapes for one character by the character."""

    def join(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return chr(0x10000 + ((int(match[1], 16) - 0xD800) << 10) + int(match[2], 16) - 0xDC00)

    return _ESCAPE.sub(join, text)


def _explained(problem: Problem, text: str) -> Problem:
    """Return a clearer problem where the parser meets a second document or a tab."""
    if "found another document" in problem.message:
        fix = "one file is one task: launch those of a pipeline one by one"
        return replace(problem, message="holds more than one document", fix=fix)
    lines = text.splitlines()
    line = lines[problem.line - 1] if 0 < problem.line <= len(lines) else ""
    if "cannot start any token" in problem.message and line[problem.column - 1 : problem.column] == "\t":
        return replace(problem, message="is not YAML: a tab", fix="indent with spaces")
    return problem


def _is_json(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return True
    return False


class TaskReader(StrictYamlReader):
    """Reads the nodes of one task file."""

    size_fix = "a task file is small"

    def compose_task(self, text: str) -> YamlNode | None:
        """Return the root of the only document; None when there are problems."""
        if not self.check_text(text):
            return None
        if text.lstrip().startswith("{"):
            text = join_surrogates(text)
        root = self.compose(text)
        self.problems = [_explained(problem, text) for problem in self.problems]
        return root if root is not None and self.resolve([root]) else None

    def script(self, node: YamlNode | None, what: str) -> str:
        """Return a text unchanged, with all blanks."""
        if not isinstance(node, yaml.ScalarNode):
            self.text(node, what)
            return ""
        if "\0" in node.value:
            self.fault(node, f"{what} holds a NUL character, which no command can")
        return str(node.value)


def object_node(value: Any) -> YamlNode:
    """Return the node of an object from JSON or the API server; problems name its kind and name."""
    return _node(value, ObjectMark(_title(value)), 0)


def _title(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "object"
    metadata = value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{value.get('kind') or 'object'} {name or ''}".strip()


def _node(value: Any, place: Any, depth: int) -> YamlNode:
    if depth > MAX_DEPTH:
        raise InputError.of(f"{place.title}: is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        pairs = [(_node(str(key), place, depth + 1), _node(one, place, depth + 1)) for key, one in value.items()]
        return yaml.MappingNode(_TAG + "map", pairs, place, place)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = [_node(one, place, depth + 1) for one in value]
        return yaml.SequenceNode(_TAG + "seq", items, place, place)
    tag, text = _scalar(value)
    return yaml.ScalarNode(_TAG + tag, text, place, place)


def _scalar(value: Any) -> tuple[str, str]:
    if value is None:
        return "null", "null"
    if isinstance(value, bool):
        return "bool", str(value).lower()
    return ("int" if isinstance(value, int) else "float" if isinstance(value, float) else "str"), str(value)
