"""Bad input as a value: where it is, what is wrong, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with what the user wrote."""

    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    fix: str = ""

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.fix})" if self.fix else text


class InputError(Exception):
    """All problems of one input at once. The command line prints them and exits with 2."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    @staticmethod
    def of(message: str, **place: str | int) -> InputError:
        return InputError([Problem(message, **place)])  # type: ignore[arg-type]


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by file and place."""
    return sorted(dict.fromkeys(problems), key=lambda one: (one.file, one.line, one.column))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A fix that names the nearest known word, or all of them when they are few."""
    near = get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(known)}" if len(known) <= 16 else ""
