"""The part of Go's template language that the chart is written in; what it does not know it refuses.

Actions: if, else if, else, with, range, define, template calls by `include`, variables, pipelines, comments,
and `{{-`/`-}}`. A template that uses anything else, or a function that does not exist here, fails when it is
read, with file and line, and not at the one installation whose values lead there.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Function: TypeAlias = Callable[..., Any]
Scope: TypeAlias = ChainMap[str, Any]
"""The variables that are known at a place, the innermost block first."""
Value: TypeAlias = Callable[[Any, Scope], Any]
"""What a part of a template gives for a dot and the variables around it."""
Text: TypeAlias = Callable[[Any, Scope], str]
_ACTION: Final = re.compile(
    r"""\{\{(?P<left>-(?=\s))?\s*
    (?P<inner>/\*.*?\*/|(?:"(?:\\.|[^"\\])*"|[^"}])*?)
    \s*(?P<right>(?<=\s)-)?\}\}""",
    re.DOTALL | re.VERBOSE,
)
_TOKEN: Final = re.compile(
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
_ESCAPED: Final = {r"\"": '"', r"\\": "\\", r"\n": "\n", r"\t": "\t"}


class TemplateError(Exception):
    """A template says what this reader does not know, or asks for a value that is not there."""


@dataclass(slots=True)
class Templates:
    """All templates of a chart by name: those that files define, and the files themselves."""

    functions: Mapping[str, Function]
    _texts: dict[str, Text] = field(default_factory=dict)

    def read(self, name: str, text: str) -> None:
        self._texts[name] = _Reader(name, text, {**self.functions, "include": self.render}, self._texts).file()

    def render(self, name: str, data: Any) -> str:
        if name not in self._texts:
            raise TemplateError(f"there is no template {name}")
        return self._texts[name](data, ChainMap({"$": data}))


def as_text(value: Any) -> str:
    """As Go prints a value into a template. A list or a mapping has no business there."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | None):
        raise TemplateError(f"{type(value).__name__} cannot be printed; use toYaml")
    return "" if value is None else str(value)


class _Reader:
    """One file, of which every part becomes a function of the dot and the variables."""

    def __init__(self, name: str, text: str, functions: Mapping[str, Function], defined: dict[str, Text]) -> None:
        self._name, self._functions, self._defined = name, functions, defined
        self._line = 1
        self._parts = list(self._split(text))[::-1]

    def file(self) -> Text:
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

    def _read_block(self) -> tuple[Text, list[str]]:
        """What stands until an `else` or `end` that has no beginning in here, and that action."""
        texts: list[Text] = []
        end: list[str] = []
        while self._parts and not end:
            line, part = self._parts.pop()
            if isinstance(part, str):
                texts.append(_constant(part))
                continue
            self._line = line
            word = part[-1] if part else ""
            if word in ("else", "end"):
                end = part[::-1]
            elif word == "define":
                name = self._literal(part[0])
                self._defined[name], _ = self._read_block()
            elif word in ("if", "with", "range"):
                texts.append(self._branch(part))
            else:
                texts.append(self._print(part))
        return lambda dot, scope: "".join([text(dot, scope) for text in texts]), end

    def _branch(self, tokens: list[str]) -> Text:
        word, line = tokens.pop(), self._line
        variables: list[str] = []
        if word == "range" and ":=" in tokens:
            while (token := tokens.pop()) != ":=":
                variables += [token] if token != "," else []
        pipeline = self._whole(tokens)
        then, end = self._read_block()
        otherwise: Text = _constant("")
        if end[:2] == ["else", "if"]:
            otherwise = self._branch(end[:0:-1])
        elif end == ["else"]:
            otherwise, end = self._read_block()
        if end[:2] != ["else", "if"] and end != ["end"]:
            self._line = line
            raise self._error(f"{word} without an end")

        def render(dot: Any, around: Scope) -> str:
            scope = around.new_child()
            value = pipeline(dot, scope)
            if not value:
                return otherwise(dot, scope)
            if word != "range":
                return then(value if word == "with" else dot, scope)
            texts = []
            for pair in sorted(value.items()) if isinstance(value, Mapping) else enumerate(value):
                named = dict(zip(variables, pair[2 - len(variables) :], strict=True))
                texts.append(then(pair[1], scope.new_child(named)))
            return "".join(texts)

        return render

    def _print(self, tokens: list[str]) -> Text:
        if len(tokens) < 2 or tokens[-2] not in (":=", "="):
            printed = self._whole(tokens)
            return lambda dot, scope: as_text(printed(dot, scope))
        variable, sign = tokens.pop(), tokens.pop()
        value = self._whole(tokens)

        def keep(dot: Any, scope: Scope) -> str:
            """A declaration is known in its block; an assignment changes the variable where it was declared."""
            owner = scope.maps[0] if sign == ":=" else next(one for one in scope.maps if variable in one)
            owner[variable] = value(dot, scope)
            return ""

        return keep

    def _whole(self, tokens: list[str]) -> Value:
        pipeline = self._pipeline(tokens)
        if tokens:
            raise self._error(f"{tokens[-1]!r} is not expected here")
        return pipeline

    def _pipeline(self, tokens: list[str]) -> Value:
        """Commands, each of which gets what the one before gave as its last argument."""
        commands = [self._command(tokens)]
        while tokens and tokens[-1] == "|":
            tokens.pop()
            commands.append(self._command(tokens))

        def run(dot: Any, scope: Scope) -> Any:
            passed: tuple[Any, ...] = ()
            for function, operands in commands:
                passed = (function(*[operand(dot, scope) for operand in operands], *passed),)
            return passed[0]

        return run

    def _command(self, tokens: list[str]) -> tuple[Function, Sequence[Value]]:
        function: Function | None = None
        if tokens and tokens[-1][0].isalpha() and tokens[-1] not in ("true", "false"):
            name = tokens.pop()
            if name not in self._functions:
                raise self._error(f"there is no function {name}")
            function = self._functions[name]
        operands = []
        while tokens and tokens[-1] != "|" and not tokens[-1].startswith(")"):
            operands.append(self._operand(tokens))
        if function is None and not operands:
            raise self._error("a value is missing")
        return function or _called, operands

    def _operand(self, tokens: list[str]) -> Value:
        token = tokens.pop()
        if token == "(":
            inner = self._pipeline(tokens)
            if not tokens:
                raise self._error("a ) is missing")
            return _fields(inner, tokens.pop())
        if token[0] == "$":
            variable = token.partition(".")[0]
            return _fields(lambda dot, scope: scope[variable], token)
        return _fields(lambda dot, scope: dot, token) if token[0] == "." else _constant(self._literal(token))

    def _literal(self, token: str) -> Any:
        if token.startswith('"'):
            return re.sub(r"\\.", lambda found: _ESCAPED[found[0]], token[1:-1])
        if token in ("true", "false"):
            return token == "true"
        try:
            return float(token) if "." in token else int(token)
        except ValueError:
            raise self._error(f"{token!r} is not expected here") from None

    def _error(self, message: str) -> TemplateError:
        return TemplateError(f"{self._name}:{self._line}: {message}")


def _constant(value: Any) -> Value:
    return lambda dot, scope: value


def _called(value: Any, *arguments: Any) -> Any:
    """A value alone, or a method such as `.Files.Get` with its arguments."""
    return value(*arguments) if arguments else value


def _fields(base: Value, token: str) -> Value:
    """The fields of a value that a token such as `.a.b`, `$x.a` or `).a` names."""
    names = [name for name in token.split(".")[1:] if name]

    def get(dot: Any, scope: Scope) -> Any:
        found = base(dot, scope)
        for name in names:
            try:
                found = found[name]
            except (KeyError, TypeError):
                raise TemplateError(f"there is no .{'.'.join(names)}") from None
        return found

    return get
