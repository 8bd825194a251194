"""Rows and cells of a table file; what is wrong with them is collected, not raised one at a time."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter

from batuta.backends.sim.speed import LARGEST_JOB_GPUS
from batuta.backends.sim.traces.trace_format import TraceFile
from batuta.spec.problem import InputError, Problem, did_you_mean

_LATEST = 1e12


def header_of(first_line: str) -> list[str]:
    """The column names of a CSV file; none when the line is not CSV."""
    try:
        return [name.strip() for name in next(csv.reader([first_line]), [])]
    except csv.Error:
        return []


def has_columns(first_line: str, columns: Sequence[str]) -> bool:
    return set(columns) <= set(header_of(first_line))


class Cells:
    """Turns the cells of one file into values. A bad one is noted, and a harmless value stands in for it."""

    __slots__ = ("file", "problems")

    def __init__(self, file: TraceFile) -> None:
        self.file = file.name
        self.problems: list[Problem] = []

    def fault(self, line: int, message: str, fix: str = "") -> None:
        self.problems.append(Problem(message, self.file, line, fix=fix))

    def seconds(self, line: int, column: str, text: str) -> float:
        """A number that is not negative, nor beyond all history."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if 0.0 <= value <= _LATEST and "_" not in text:
            return value
        self.fault(line, f"{column} must be a number within 0..1e12, found {_shown(text)}")
        return 0.0

    def whole(self, line: int, column: str, text: str, low: int, high: int) -> int:
        """A whole number within bounds; 4.0 counts as one."""
        try:
            value = int(text)
        except ValueError:
            try:
                real = float(text)
                value = int(real) if real.is_integer() else low - 1
            except (ValueError, OverflowError):
                value = low - 1
        if low <= value <= high and "_" not in text:
            return value
        self.fault(line, f"{column} must be a whole number within {low}..{high}, found {_shown(text)}")
        return low

    def gpus(self, line: int, column: str, text: str, low: int = 1) -> int:
        return self.whole(line, column, text, low, LARGEST_JOB_GPUS)

    def name(self, line: int, column: str, text: str) -> str:
        text = text.strip()
        if not text:
            self.fault(line, f"{column} must not be empty")
        return text


def csv_rows(file: TraceFile, cells: Cells, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the named columns of every row below the header. Blank lines are passed over."""
    reader = csv.reader(io.StringIO(file.text, newline=""))
    line, names = 1, [""]
    try:
        for header in reader:
            if header:
                names = [name.strip() for name in header]
                break
        places = _places(file, names, columns, reader.line_num)
        pick = itemgetter(*places)
        line = reader.line_num + 1
        for row in reader:
            if len(row) == len(names):
                yield line, pick(row)
            elif row and (len(row) > 1 or row[0].strip()):
                cells.fault(line, f"{len(row)} column{'s'[: len(row) != 1]}, the header has {len(names)}")
            line = reader.line_num + 1
    except csv.Error as error:
        cells.fault(line, f"is not CSV: {error}")


def _places(file: TraceFile, names: list[str], columns: Sequence[str], line: int) -> list[int]:
    missing = [column for column in columns if column not in names]
    if missing:
        raise InputError(
            [
                Problem(f"column {column} is missing", file.name, line, fix=did_you_mean(column, names))
                for column in missing
            ]
        )
    return [names.index(column) for column in columns]


def _shown(text: str) -> str:
    """The text as evidence, cut when it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}…"
