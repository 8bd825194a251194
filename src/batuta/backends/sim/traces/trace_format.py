"""What a trace reader gets (file, rows, cells, options), and how a format declares itself."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from operator import attrgetter, itemgetter
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
        return str(self.path)

    @property
    def title(self) -> str:
        """The workload's name where the file gives none."""
        return self.path.stem

    @property
    def first_line(self) -> str:
        return next((line for line in self.text.split("\n") if line.strip()), "").rstrip("\r")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Options that the file does not tell."""

    elasticity: Elasticity = RIGID
    profiles: Path | None = None  # folder of measured throughputs; None looks beside the trace
    seed: int = 0  # draws the model that each job trains, where curves are measured ones


RIGID_OPTIONS = TraceOptions()


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format: its name, how to recognise it, how to read it."""

    name: str
    looks: str  # what such a file looks like, for users
    recognises: Callable[[str], bool]  # whether a file with this first line is of this format
    read: Callable[[TraceFile, TraceOptions], Workload]
    rigid: bool = True  # whether its jobs are recorded at one size only, so that `TraceOptions.elasticity` applies


_LATEST = 1e12


def has_columns(first_line: str, columns: Sequence[str]) -> bool:
    """Whether the first line of a file is the header of a CSV table with these columns."""
    try:
        return set(columns) <= {name.strip() for name in next(csv.reader([first_line]), [])}
    except csv.Error:
        return False


class CellParser:
    """Parses the cells of one file. A bad cell adds to `problems` and gives a harmless value."""

    __slots__ = ("_ids", "file", "problems")

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._ids: dict[str, int] = {}

    def fault(self, line: int, message: str, fix: str = "") -> None:
        self.problems.append(Problem(message, self.file, line, fix=fix))

    def number(self, line: int, column: str, text: str, low: float, high: float, bounds: str) -> float:
        """A number within bounds, which a message names as `bounds`."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # Python reads 1_000 and digits of other scripts as numbers; in a trace both are damage.
        if low <= value <= high and "_" not in text and text.isascii():
            return value
        self.fault(line, f"{column} must be a number {bounds}, found {shown(text)}")
        return 0.0

    def seconds(self, line: int, column: str, text: str) -> float:
        return self.number(line, column, text, 0.0, _LATEST, "within 0..1e12")

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
        if low <= value <= high and "_" not in text and text.isascii():
            return value
        self.fault(line, f"{column} must be a whole number within {low}..{high}, found {shown(text)}")
        return low

    def gpus(self, line: int, column: str, text: str, low: int = 1) -> int:
        return self.whole(line, column, text, low, LARGEST_JOB_GPUS)

    def name(self, line: int, column: str, text: str) -> str:
        text = text.strip()
        if not text:
            self.fault(line, f"{column} must not be empty")
        return text

    def unique_id(self, line: int, column: str, text: str) -> str:
        name = self.name(line, column, text)
        if name:
            self.claim_id(line, name)
        return name

    def claim_id(self, line: int, job_id: str) -> None:
        """Notes that the job of this line has this id, which no earlier line may have."""
        first = self._ids.setdefault(job_id, line)
        if first != line:
            self.fault(line, f"id {job_id} is taken by line {first}", "ids must be unique")

    def check(self, jobs: Sized) -> None:
        """Raises every problem of the file, also that there are no jobs."""
        if not jobs and not self.problems:
            self.fault(0, "holds no jobs")
        if self.problems:
            raise InputError(sorted(self.problems, key=attrgetter("line")))


def csv_rows(text: str, cells: CellParser, columns: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line number and the named columns of every row below the header. Blank lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""))
    line, names = 1, [""]
    try:
        for header in reader:
            if header:
                names = [name.strip() for name in header]
                break
        missing = [column for column in columns if column not in names]
        if missing:
            fixes = {column: did_you_mean(column, names) for column in missing}
            place = cells.file, reader.line_num
            raise InputError([Problem(f"column {name} is missing", *place, fix=fix) for name, fix in fixes.items()])
        pick = itemgetter(*(names.index(column) for column in columns))
        line = reader.line_num + 1
        for row in reader:
            if len(row) == len(names):
                yield line, pick(row)
            elif row and (len(row) > 1 or row[0].strip()):
                cells.fault(line, f"{len(row)} column{'s'[: len(row) != 1]}, the header has {len(names)}")
            line = reader.line_num + 1
    except csv.Error as error:
        cells.fault(line, f"is not CSV: {error}")


def shown(value: object) -> str:
    """The value for a message, cut when it is long."""
    try:
        text = repr(value)
    except RecursionError:
        text = "something deeply nested"
    return text if len(text) <= 60 else f"{text[:59]}…"
