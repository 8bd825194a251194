"""CSV files with known columns: every fault is reported with its file and line, not only the first."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from batuta.spec.problem import Problem

Parser: TypeAlias = Callable[[str], Any]
"""Makes a value of a cell, or raises ValueError with the words that complete `column is …`."""

Row: TypeAlias = tuple[int, dict[str, Any]]
"""Line number and values by column."""


def read_rows(path: Path, columns: Mapping[str, Parser], problems: list[Problem]) -> list[Row]:
    """The rows without fault; what is wrong with the file or with other rows is added to `problems`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            try:
                header = [cell.strip() for cell in next(reader)]
            except StopIteration:
                problems.append(Problem("the file is empty", str(path), 1, fix=_header_fix(columns)))
                return []
            missing = [name for name in columns if name not in header]
            problems.extend(
                Problem(f"column {name} is missing", str(path), 1, fix=_header_fix(columns))
                for name in missing
            )
            if missing:
                return []
            rows = _parse_rows(path, reader, header, columns, problems)
    except FileNotFoundError:
        problems.append(Problem("the file is missing", str(path)))
    except UnicodeDecodeError:
        problems.append(Problem("the file is not UTF-8 text", str(path)))
    except OSError as error:
        problems.append(Problem(f"cannot be read: {error.strerror or error}", str(path)))
    except csv.Error as error:
        problems.append(Problem(f"is not CSV: {error}", str(path), reader.line_num))
    else:
        if not rows and not any(problem.file == str(path) for problem in problems):
            problems.append(Problem("has no rows", str(path), 1))
        return rows
    return []


def _parse_rows(
    path: Path, reader: Any, header: list[str], columns: Mapping[str, Parser], problems: list[Problem]
) -> list[Row]:
    places = [(name, header.index(name), parse) for name, parse in columns.items()]
    rows: list[Row] = []
    for cells in reader:
        line = reader.line_num
        if not cells:
            continue  # a blank line, as at the end of a file written by hand
        if len(cells) != len(header):
            text = f"has {len(cells)} fields, the header has {len(header)}"
            problems.append(Problem(text, str(path), line))
            continue
        values = {}
        for name, place, parse in places:
            try:
                values[name] = parse(cells[place].strip())
            except ValueError as error:
                problems.append(Problem(f"{name} {error}", str(path), line))
        if len(values) == len(places):
            rows.append((line, values))
    return rows


def _header_fix(columns: Mapping[str, Parser]) -> str:
    return f"the first line should be {','.join(columns)}"


def text(cell: str) -> str:
    """Any words, but not none."""
    if not cell:
        raise ValueError("is empty")
    return cell


def number(cell: str) -> float:
    """A finite number."""
    try:
        value = float(_plain(cell))
    except ValueError:
        raise ValueError(f"is not a number: {cell!r}") from None
    if not math.isfinite(value):
        raise ValueError(f"is not a finite number: {cell!r}")
    return value


def at_least_zero(cell: str) -> float:
    """A finite number that is not negative."""
    value = number(cell)
    if value < 0:
        raise ValueError(f"is negative: {cell}")
    return value


def above_zero(cell: str) -> float:
    """A finite number greater than zero."""
    value = number(cell)
    if value <= 0:
        raise ValueError(f"is not above zero: {cell}")
    return value


def count(cell: str) -> int:
    """A whole number of at least one."""
    try:
        value = int(_plain(cell))
    except ValueError:
        raise ValueError(f"is not a whole number: {cell!r}") from None
    if not 1 <= value < 2**31:
        raise ValueError(f"is not between 1 and 2³¹: {cell}")
    return value


def _plain(cell: str) -> str:
    # Python reads 1_000 and digits of other scripts as numbers; in a measured file both are damage.
    if "_" in cell or not cell.isascii():
        raise ValueError
    return cell
