"""What a trace reader gets (file, rows, cells, options), and how a format declares itself."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from batuta.backends.sim.speed_models import LARGEST_JOB_GPUS, parse_speed
from batuta.backends.sim.workload import Workload
from batuta.spec.problem import InputError, Problem, did_you_mean

MEASURED = "elasticflow:"
_LARGEST_FACTOR = 1024.0


@dataclass(frozen=True, slots=True)
class Elasticity:
    """A job of recorded size n may have ⌊n × min_factor⌋ (at least 1) to ⌈n × max_factor⌉ GPUs.

    `curve` names a speed model (see `speed_models`), or `elasticflow:T4`: every job trains one
    of the models that ElasticFlow measured on that GPU type, drawn with a seed.
    """

    min_factor: float = 1.0
    max_factor: float = 1.0
    curve: str = "linear"

    @property
    def rigid(self) -> bool:
        return self.min_factor == 1.0 and self.max_factor == 1.0

    @property
    def measured_on(self) -> str:
        """The GPU type of measured curves; empty when the curve is a model."""
        return self.curve[len(MEASURED) :] if self.curve.startswith(MEASURED) else ""

    @staticmethod
    def parse(sizes: str = "rigid", curve: str = "linear") -> Elasticity:
        """From `rigid` or `MIN:MAX` (factors of the recorded size, such as `0.5:2`) and a curve's name."""
        curve = curve.strip()
        if curve.lower().startswith(MEASURED):
            gpu_type = curve[len(MEASURED) :].strip()
            if not gpu_type:
                raise InputError.of(f"curve {curve!r} names no GPU type", fix=f"for example {MEASURED}T4")
            curve = MEASURED + gpu_type
        else:
            curve = str(parse_speed(curve))
        low, high = _factors(sizes.strip())
        return Elasticity(low, high, curve)


RIGID = Elasticity()


def _factors(text: str) -> tuple[float, float]:
    if text.lower() == "rigid":
        return 1.0, 1.0
    fix = "write rigid, or MIN:MAX as factors of the recorded size, such as 0.5:2"
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise InputError.of(f"elastic sizes {text!r} are not understood", fix=fix) from None
    if not (math.isfinite(low) and 0 <= low <= 1 <= high <= _LARGEST_FACTOR):
        raise InputError.of(
            f"elastic sizes {text!r}: MIN must be within 0..1 and MAX within 1..{_LARGEST_FACTOR:g}", fix=fix
        )
    return low, high


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that has been read as text."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        """The file as problems name it."""
        return str(self.path)

    @property
    def title(self) -> str:
        """The workload's name where the file gives none."""
        return self.path.stem

    @property
    def first_line(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.text.split("\n") if line.strip()), "").rstrip("\r")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options that the file does not tell."""

    elasticity: Elasticity = RIGID
    profiles: Path | None = None
    """Folder of measured throughputs; None looks beside the trace."""
    seed: int = 0
    """Draws the model that each job trains, where curves are measured ones."""


RIGID_OPTIONS = TraceOptions()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format: its name, how to recognise it, how to read it."""

    name: str
    looks: str
    """What such a file looks like, for users."""
    recognises: Callable[[str], bool]
    """Whether a file with this first line is of this format."""
    read: Callable[[TraceFile, TraceOptions], Workload]
    rigid: bool = True
    """Whether its jobs are recorded at one size only, so that `TraceOptions.elasticity` applies."""


_LATEST = 1e12


def header_of(first_line: str) -> list[str]:
    """The column names of a CSV file; none when the line is not CSV."""
    try:
        return [name.strip() for name in next(csv.reader([first_line]), [])]
    except csv.Error:
        return []


def has_columns(first_line: str, columns: Sequence[str]) -> bool:
    return set(columns) <= set(header_of(first_line))


class CellParser:
    """Parses the cells of one file. A bad cell adds to `problems` and gives a harmless value."""

    __slots__ = ("file", "problems")

    def __init__(self, file: TraceFile) -> None:
        self.file = file.name
        self.problems: list[Problem] = []

    def fault(self, line: int, message: str, fix: str = "") -> None:
        self.problems.append(Problem(message, self.file, line, fix=fix))

    def seconds(self, line: int, column: str, text: str) -> float:
        """A number of seconds within 0..1e12."""
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


def csv_rows(file: TraceFile, cells: CellParser, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
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
    """The text for a message, cut when it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}…"
