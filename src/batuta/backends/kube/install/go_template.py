"""The part of Go's template language that the chart is written in; what it does not know it refuses.

Actions: if, else if, else, with, range, define, template calls by `include`, variables, pipelines, comments,
and `{{-`/`-}}`. A template that uses anything else, or a function that does not exist here, fails when it is
read, with file and line, and not at the one installation whose values lead there.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Function: TypeAlias = Callable[..., Any]
Variables: TypeAlias = ChainMap[str, Any]

INCLUDE: Final = "include"


class TemplateError(Exception):
    """A template says what this reader does not know, or asks for a value that is not there."""


_ACTION = re.compile(
    r"""\{\{(?P<left>-(?=\s))?\s*
    (?P<inner>/\*.*?\*/|(?:"(?:\\.|[^"\\])*"|[^"}])*?)
    \s*(?P<right>(?<=\s)-)?\}\}""",
    re.DOTALL | re.VERBOSE,
)
_TOKEN = re.compile(
    r"""\s*(?P<token>
      "(?:\\.|[^"\\])*"             # a text
    | -?\d+(?:\.\d+)?               # a number
    | \$\w*(?:\.[A-Za-z]\w*)*       # a variable, and fields of it
    | (?:\.[A-Za-z]\w*)+ | \.       # fields of the dot, or the dot
    | [A-Za-z]\w*                   # a function or a word of the language
    | \)(?:\.[A-Za-z]\w*)*          # the end of a group, and fields of what it gives
    | := | [=|(,]
    )""",
    re.VERBOSE,
)
_ESCAPED = {r"\"": '"', r"\\": "\\", r"\n": "\n", r"\t": "\t"}


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, a number, true or false."""

    value: Any


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of the dot (no base), of a variable (its name) or of what a pipeline gives."""

    base: str | Pipeline
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A function (or None for a value alone) and its operands."""

    function: str | None
    operands: tuple[Literal | Fields, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each of which gets what the one before gave as its last argument."""

    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Print:
    """Prints what a pipeline gives, or keeps it in a variable."""

    pipeline: Pipeline
    variable: str = ""
    declares: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """if, with or range."""

    word: str
    pipeline: Pipeline
    variables: tuple[str, ...]
    then: Block
    otherwise: Block


Block: TypeAlias = "tuple[str | Print | Branch, ...]"


@dataclass(slots=True)
class Templates:
    """All templates of a chart by name: those that files define, and the files themselves."""

    functions: Mapping[str, Function]
    _blocks: dict[str, Block] = field(default_factory=dict)

    def read(self, name: str, text: str) -> None:
        """Adds a file, and what it defines."""
        self._blocks[name] = _Reader(name, text, {*self.functions, INCLUDE}, self._blocks).file()

    def render(self, name: str, data: Any) -> str:
        if name not in self._blocks:
            raise TemplateError(f"there is no template {name}")
        return "".join(self._block(self._blocks[name], data, ChainMap({"$": data})))

    def _block(self, block: Block, dot: Any, variables: Variables) -> Iterator[str]:
        for node in block:
            if isinstance(node, str):
                yield node
            elif isinstance(node, Branch):
                yield from self._branch(node, dot, variables.new_child())
            elif node.variable:
                self._keep(node, self._pipeline(node.pipeline, dot, variables), variables)
            else:
                yield as_text(self._pipeline(node.pipeline, dot, variables))

    def _branch(self, branch: Branch, dot: Any, variables: Variables) -> Iterator[str]:
        value = self._pipeline(branch.pipeline, dot, variables)
        if not value:
            yield from self._block(branch.otherwise, dot, variables)
        elif branch.word == "range":
            pairs = sorted(value.items()) if isinstance(value, Mapping) else enumerate(value)
            for key, one in pairs:
                named = dict(zip(branch.variables, (key, one)[2 - len(branch.variables) :], strict=True))
                yield from self._block(branch.then, one, variables.new_child(named))
        else:
            inner = value if branch.word == "with" else dot
            yield from self._block(branch.then, inner, variables)

    @staticmethod
    def _keep(node: Print, value: Any, variables: Variables) -> None:
        """A declaration is known in its block; an assignment changes the variable where it was declared."""
        scopes: Sequence[MutableMapping[str, Any]] = variables.maps
        if node.declares:
            scopes[0][node.variable] = value
        else:
            next(scope for scope in scopes if node.variable in scope)[node.variable] = value

    def _pipeline(self, pipeline: Pipeline, dot: Any, variables: Variables) -> Any:
        passed: tuple[Any, ...] = ()
        for command in pipeline.commands:
            operands = [self._operand(one, dot, variables) for one in command.operands]
            if command.function == INCLUDE:
                value = self.render(*operands, *passed)
            elif command.function is not None:
                value = self.functions[command.function](*operands, *passed)
            else:
                value, *arguments = *operands, *passed
                value = value(*arguments) if arguments else value
            passed = (value,)
        return passed[0]

    def _operand(self, operand: Literal | Fields, dot: Any, variables: Variables) -> Any:
        if isinstance(operand, Literal):
            return operand.value
        base = operand.base
        if isinstance(base, Pipeline):
            found = self._pipeline(base, dot, variables)
        else:
            found = variables[base] if base else dot
        for name in operand.names:
            try:
                found = found[name]
            except (KeyError, TypeError):
                raise TemplateError(f"there is no .{'.'.join(operand.names)}") from None
        return found


def as_text(value: Any) -> str:
    """As Go prints a value into a template. A list or a mapping has no business there."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | None):
        raise TemplateError(f"{type(value).__name__} cannot be printed; use toYaml")
    return "" if value is None else str(value)


class _Reader:
    """One file."""

    def __init__(self, name: str, text: str, functions: set[str], defined: dict[str, Block]) -> None:
        self._name, self._functions, self._defined = name, functions, defined
        self._line = 1
        self._parts = list(self._split(text))[::-1]

    def file(self) -> Block:
        block, end = self._read_block()
        if end:
            raise self._error(f"{end[0]} without a beginning")
        return block

    def _split(self, text: str) -> Iterator[tuple[int, str | list[str]]]:
        """Texts and actions in turns, each with its line; white space is trimmed where an action says so."""
        position, trim = 0, False
        for action in _ACTION.finditer(text):
            between = text[position : action.start()]
            if "{{" in between:
                break
            between = between.lstrip() if trim else between
            yield 0, between.rstrip() if action["left"] else between
            self._line = text.count("\n", 0, action.start()) + 1
            if not action["inner"].startswith("/*"):
                yield self._line, self._tokens(action["inner"])
            position, trim = action.end(), bool(action["right"])
        rest = text[position:]
        if "{{" in rest:
            raise self._error("an action that cannot be read follows")
        yield 0, rest.lstrip() if trim else rest

    def _tokens(self, text: str) -> list[str]:
        found, position = [], 0
        while position < len(text):
            if (match := _TOKEN.match(text, position)) is None:
                raise self._error(f"cannot read {text[position:].strip()!r}")
            found.append(match["token"])
            position = match.end()
        return found[::-1]

    def _read_block(self) -> tuple[Block, list[str]]:
        """What stands until an `else` or `end` that has no beginning in here, and that action."""
        nodes: list[str | Print | Branch] = []
        while self._parts:
            line, part = self._parts.pop()
            if isinstance(part, str):
                nodes += [part] if part else []
                continue
            self._line = line
            word = part[-1] if part else ""
            if word in ("else", "end"):
                return tuple(nodes), part[::-1]
            if word == "define":
                name = self._literal(part[0]).value
                self._defined[name], _ = self._read_block()
            elif word in ("if", "with", "range"):
                nodes.append(self._branch(part))
            else:
                nodes.append(self._print(part))
        return tuple(nodes), []

    def _branch(self, tokens: list[str]) -> Branch:
        word, line = tokens.pop(), self._line
        variables: list[str] = []
        if word == "range" and ":=" in tokens:
            while (token := tokens.pop()) != ":=":
                variables += [token] if token != "," else []
        pipeline = self._whole(tokens)
        then, end = self._read_block()
        otherwise: Block = ()
        if end[:2] == ["else", "if"]:
            otherwise = (self._branch(end[:0:-1]),)
        elif end == ["else"]:
            otherwise, end = self._read_block()
        if end[:2] != ["else", "if"] and end != ["end"]:
            self._line = line
            raise self._error(f"{word} without an end")
        return Branch(word, pipeline, tuple(variables), then, otherwise)

    def _print(self, tokens: list[str]) -> Print:
        if len(tokens) > 1 and tokens[-2] in (":=", "="):
            variable, sign = tokens.pop(), tokens.pop()
            return Print(self._whole(tokens), variable, sign == ":=")
        return Print(self._whole(tokens))

    def _whole(self, tokens: list[str]) -> Pipeline:
        pipeline = self._pipeline(tokens)
        if tokens:
            raise self._error(f"{tokens[-1]!r} is not expected here")
        return pipeline

    def _pipeline(self, tokens: list[str]) -> Pipeline:
        commands = [self._command(tokens)]
        while tokens and tokens[-1] == "|":
            tokens.pop()
            commands.append(self._command(tokens))
        return Pipeline(tuple(commands))

    def _command(self, tokens: list[str]) -> Command:
        function = None
        if tokens and tokens[-1][0].isalpha() and tokens[-1] not in ("true", "false"):
            function = tokens.pop()
            if function not in self._functions:
                raise self._error(f"there is no function {function}")
        operands = []
        while tokens and tokens[-1] != "|" and not tokens[-1].startswith(")"):
            operands.append(self._operand(tokens))
        if function is None and not operands:
            raise self._error("a value is missing")
        return Command(function, tuple(operands))

    def _operand(self, tokens: list[str]) -> Literal | Fields:
        token = tokens.pop()
        if token == "(":
            inner = self._pipeline(tokens)
            if not tokens:
                raise self._error("a ) is missing")
            return Fields(inner, _names(tokens.pop()))
        if token[0] in ".$":
            return Fields(token.partition(".")[0], _names(token))
        return self._literal(token)

    def _literal(self, token: str) -> Literal:
        if token.startswith('"'):
            return Literal(re.sub(r"\\.", lambda found: _ESCAPED[found[0]], token[1:-1]))
        if token in ("true", "false"):
            return Literal(token == "true")
        try:
            return Literal(float(token) if "." in token else int(token))
        except ValueError:
            raise self._error(f"{token!r} is not expected here") from None

    def _error(self, message: str) -> TemplateError:
        return TemplateError(f"{self._name}:{self._line}: {message}")


def _names(token: str) -> tuple[str, ...]:
    return tuple(name for name in token.split(".")[1:] if name)
