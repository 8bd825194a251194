"""Bad input as a value: the file, line and column, what is wrong, and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"\xfd7": "xz", b"BZ": "bzip2", b"\x28\xb5": "zstd"}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the user's input."""

    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    fix: str = ""

    def __str__(self) -> str:
        numbers = (self.line, self.column) if self.line else ()
        place = ":".join([self.file, *(str(number) for number in numbers if number)])
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.fix})" if self.fix else text


class InputError(Exception):
    """All problems of one input. The command line prints them and exits with 2."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    @staticmethod
    def of(message: str, **place: str | int) -> InputError:
        return InputError([Problem(message, **place)])  # type: ignore[arg-type]


class _Collector:
    """Adds the problems of an InputError that ends the body of a `with` statement to a list."""

    def __init__(self, problems: list[Problem], where: str) -> None:
        self._problems, self._where = problems, f"{where}: " if where else ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, InputError):
            return False
        self._problems += (replace(one, message=self._where + one.message) for one in error.problems)
        return True


def collect_problems(problems: list[Problem], where: str = "") -> _Collector:
    """Collect problems, so that the user sees all of them at once; `where` begins their messages."""
    return _Collector(problems, where)


def refuse(problems: Sequence[Problem]) -> None:
    """Raise InputError if there are problems."""
    if problems:
        raise InputError(problems)


def sorted_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return each problem once, by file and position."""
    return sorted(dict.fromkeys(problems), key=lambda one: (one.file, one.line, one.column))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a fix that names the most similar known word, or all of them when they are few."""
    near = get_close_matches(word, known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"known: {', '.join(known)}" if len(known) <= 16 else ""


def read_text(path: Path) -> str:
    """Return the whole file, decoded as UTF-8 without byte order mark. Raises InputError when it is empty."""
    name = str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError.of("no such file", file=name) from None
    except IsADirectoryError:
        raise InputError.of("is a folder, a file was expected", file=name) from None
    except OSError as error:
        raise InputError.of(f"cannot be read: {error.strerror or error}", file=name) from None
    if b"\0" in data:
        packed = _PACKED.get(data[:2])
        fix = f"it looks packed with {packed}: unpack it first" if packed else ""
        raise InputError.of("is a binary file, text was expected", file=name, fix=fix)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        message = f"is not UTF-8 text: byte 0x{data[error.start]:02x}"
        raise InputError.of(message, file=name, line=line, column=column, fix="save it as UTF-8") from None
    if not text.strip():
        raise InputError.of("is empty", file=name)
    return text
