"""Profiles of applications: measured step times by placement, training statistics by batch size.

They are read from CSV files, whose problems are all reported with file and line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from batuta.backends.sim.traces.trace_format import CellParser, csv_rows, shown
from batuta.core.arrays import FloatArray, IntArray, frozen
from batuta.spec.problem import InputError, Problem, read_text

CellReader: TypeAlias = Callable[[CellParser, int, str, str], Any]
"""Makes a value of a cell, from its line, its column and its text."""

Row: TypeAlias = tuple[int, dict[str, Any]]  # line number and values by column


def read_rows(path: Path, columns: Mapping[str, CellReader], problems: list[Problem]) -> list[Row]:
    """The rows without fault; what is wrong with the file or with other rows is added to `problems`."""
    cells = CellParser(str(path))
    try:
        rows = [
            (line, {name: columns[name](cells, line, name, cell) for name, cell in zip(columns, row, strict=True)})
            for line, row in csv_rows(read_text(path), cells, tuple(columns))
        ]
    except InputError as error:
        problems.extend(error.problems)
        return []
    if not rows and not cells.problems:
        cells.fault(1, "has no rows")
    problems.extend(cells.problems)
    faulty = {problem.line for problem in cells.problems}
    return [row for row in rows if row[0] not in faulty]


def _digits(cells: CellParser, line: int, column: str, text: str) -> int:
    if re.fullmatch(r"[1-9]{1,18}", text.strip()):
        return int(text)
    cells.fault(line, f"{column} must be a row of digits 1–9, one per node, found {shown(text)}")
    return 1


_number = partial(CellParser.number, high=sys.float_info.max)
_not_negative = partial(_number, low=0.0, bounds="≥ 0")
_count = partial(CellParser.whole, low=1, high=2**31 - 1)
_TIMES = {"step_time": partial(_number, low=math.ulp(0.0), bounds="> 0"), "sync_time": _not_negative}
_PLACEMENT_KEY: dict[str, CellReader] = {"placement": _digits, "local_bsz": _count}
_SCALABILITY_KEY = dict.fromkeys(("num_nodes", "num_replicas", "local_bsz"), _count)


LAYOUT = 1  # part of the digest. Raise when what is derived from a profile, and kept, changes its meaning.


class ProfileError(InputError):
    """All faults of all profile files, each with its file and line."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the authors fixed by hand for an application; None means: as the files say."""

    epochs: int | None = None
    max_local: int | None = None
    max_gpus: int | None = None
    pinned_batch: int | None = None  # total batch size that Pollux does not tune


RULES = {
    "bert": Rule(epochs=2),
    "cifar10": Rule(epochs=100),
    "deepspeech2": Rule(epochs=80),
    "imagenet": Rule(epochs=90),
    "ncf": Rule(epochs=10, max_gpus=1, pinned_batch=32768),
    "yolov3": Rule(epochs=50, max_local=8),
}


@dataclass(frozen=True, slots=True, eq=False)
class PlacementTimes:
    """Rows of placements.csv: `placement` is read as a decimal number, one digit per node."""

    placement: IntArray
    local_bsz: IntArray
    step_s: FloatArray
    sync_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class ScalabilityTimes:
    """Rows of scalability.csv, in the order of the file (the triangulation depends on it)."""

    num_nodes: IntArray
    num_replicas: IntArray
    local_bsz: IntArray
    step_s: FloatArray
    sync_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """One row per validated batch size (ascending), one column per epoch."""

    batch_sizes: IntArray
    progress: FloatArray
    iteration: FloatArray
    grad_sqr: FloatArray
    grad_var: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class AppProfile:
    """All that is known of one application. Equal files have an equal digest."""

    name: str
    digest: str
    placements: PlacementTimes
    scalability: ScalabilityTimes
    validation: Validation
    rule: Rule
    epochs: int
    init_batch: int  # the smallest validated batch size: a step at this size is one unit of progress
    max_batch: int
    min_local: int
    max_local: int

    def max_gpus(self, batch: int) -> int:
        """The most GPUs that a total batch size can be split over."""
        return self.rule.max_gpus or max(1, batch // self.min_local)


def load_profiles(folder: Path) -> dict[str, AppProfile]:
    """Every application below the folder, by name; raises ProfileError with all faults at once."""
    problems: list[Problem] = []
    try:
        apps = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise ProfileError([Problem(f"cannot be read: {error.strerror or error}", str(folder))]) from None
    if not apps:
        problems.append(Problem("holds no application folder", str(folder)))
    loaded = [_load_app(app, problems) for app in apps]
    if problems:
        raise ProfileError(problems)
    return {profile.name: profile for profile in loaded if profile is not None}


def _load_app(folder: Path, problems: list[Problem]) -> AppProfile | None:
    rule = RULES.get(folder.name, Rule())
    files = _validation_files(folder, problems)
    before = len(problems)
    paths = folder / "placements.csv", folder / "scalability.csv"
    placed = _read_times(paths[0], _PLACEMENT_KEY, problems)
    scaled = _read_times(paths[1], _SCALABILITY_KEY, problems)
    statistics = _read_validations(folder, files, rule, problems)
    if len(problems) > before:
        return None
    placements, scalability = PlacementTimes(**placed), ScalabilityTimes(**scaled)
    validation = Validation(frozen(np.array(list(files), np.int64)), **statistics)
    return AppProfile(
        folder.name,
        _digest(f"{LAYOUT} {folder.name} {rule}", [*paths, *files.values()]),
        placements,
        scalability,
        validation,
        rule,
        epochs=validation.progress.shape[1],
        init_batch=int(validation.batch_sizes[0]),
        max_batch=int(validation.batch_sizes[-1]),
        min_local=int(placements.local_bsz.min()),
        max_local=rule.max_local or int(placements.local_bsz.max()),
    )


def _validation_files(folder: Path, problems: list[Problem]) -> dict[int, Path]:
    found = {}
    for path in sorted(folder.glob("validation-*.csv")):
        match = re.fullmatch(r"validation-([1-9][0-9]*)\.csv", path.name)
        if match:
            found[int(match[1])] = path
        else:
            problems.append(Problem("the name holds no batch size", str(path), fix="as in validation-128.csv"))
    return dict(sorted(found.items()))


def _digest(heading: str, paths: Iterable[Path]) -> str:
    whole = sha256(heading.encode())
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            content = b""  # reported with its name when it is parsed
        whole.update(f"\n{path.name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()[:32]


def _read_times(path: Path, key: Mapping[str, CellReader], problems: list[Problem]) -> dict[str, NDArray[Any]]:
    """The columns of placements.csv or scalability.csv; no two rows have the same key."""
    rows = read_rows(path, {**key, **_TIMES}, problems)
    seen: dict[tuple[int, ...], int] = {}
    for line, row in rows:
        first = seen.setdefault(tuple(row[name] for name in key), line)
        if first != line:
            problems.append(Problem(f"repeats line {first}", str(path), line))
        if row["sync_time"] > row["step_time"]:
            problems.append(Problem("sync_time is longer than step_time", str(path), line))
    ints = {name: frozen(np.array([row[name] for _, row in rows], np.int64)) for name in key}
    floats = {name.replace("_time", "_s"): frozen(np.array([row[name] for _, row in rows], float)) for name in _TIMES}
    return ints | floats


def _read_validations(
    folder: Path, files: dict[int, Path], rule: Rule, problems: list[Problem]
) -> dict[str, NDArray[Any]]:
    if not files:
        problems.append(Problem("no such file", str(folder / "validation-B.csv"), fix="B: a batch size"))
        return {}
    names = ("progress", "iteration", "grad_sqr", "grad_var")
    columns = {
        **dict.fromkeys(names, _not_negative),
        "metric": partial(_number, low=-sys.float_info.max, bounds="that is finite"),
    }
    tables = []
    for path in files.values():
        before = len(problems)
        rows = read_rows(path, columns, problems)
        _check_epochs(path, rows, problems)
        if len(problems) == before and rule.epochs and len(rows) < rule.epochs:
            problems.append(Problem(f"has {len(rows)} epochs, {folder.name} needs {rule.epochs}", str(path)))
        tables.append(rows)
    epochs = rule.epochs or min(map(len, tables))
    if any(len(rows) < epochs for rows in tables):
        return {}
    return {
        name: frozen(np.array([[row[name] for _, row in rows[:epochs]] for rows in tables], float)) for name in names
    }


def _check_epochs(path: Path, rows: list[Row], problems: list[Problem]) -> None:
    before = 0.0
    for line, row in rows:
        if row["progress"] < before:
            problems.append(Problem("progress is less than in the epoch before", str(path), line))
        if row["grad_sqr"] + row["grad_var"] <= 0:
            problems.append(Problem("grad_sqr and grad_var are both zero", str(path), line))
        before = row["progress"]
