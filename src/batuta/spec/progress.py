"""Progress that training scripts report: JSON lines in `$BATUTA_PROGRESS`, or Voda's per-epoch CSV.

    {"time": 1722.5, "rank": 0, "step": 10, "total_steps": 100, "samples": 640, "loss": 0.3, "lr": 0.1}
    {"time": 1730.0, "rank": 0, "event": "checkpoint", "path": "/ckpt/10", "step": 10, "request": 2}
    {"time": 1722.6, "rank": 3, "step": 10, "own_s": 4.1, "own_steps": 20}
    {"time": 1790.0, "rank": 3, "event": "waiting"}
    {"time": 1720.0, "rank": 0, "event": "saves-on-request"}

All keys are optional, but a line needs at least one of them. `epoch` counts finished epochs. `own_s` is
how long a rank worked for its last `own_steps` steps without waiting for others, or a list of that by
rank. Numbers under other names, at the top or under `metrics`, are metrics. NaN and infinities, written as
JSON's null with the name in `nonfinite` or as Python writes them, are noted but have no value. The parser
rejects a line with a known key and a value of the wrong type.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

LONGEST_LINE_BYTES = 2**20
MOST_METRICS = 256
MOST_RANKS = 16_384
_COUNTS = ("rank", "replica", "restart", "step", "total_steps", "request", "own_steps")
_NUMBERS = ("time", "epoch", "total_epochs", "samples", "loss", "noise_scale")
_OTHER = ("event", "path", "metrics", "nonfinite", "own_s")
_KNOWN = frozenset((*_COUNTS, *_NUMBERS, *_OTHER))
_LARGEST = 2**63 - 1
_OWN = ("epoch", "start_time", "epoch_time_sec", "step_time_sec", "workers", "total_epochs", "loss")


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """One report. None: not reported."""

    time_s: float | None = None
    rank: int | None = None
    replica: int | None = None
    restart: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    total_epochs: float | None = None
    samples: float | None = None
    loss: float | None = None
    noise_scale: float | None = None  # the gradient noise scale, in samples
    metrics: tuple[tuple[str, float], ...] = ()
    nonfinite: tuple[str, ...] = ()
    """Names of values that were NaN or infinite: a loss here means that the training diverged."""
    workers: int | None = None
    step_time_s: float | None = None
    epoch_time_s: float | None = None
    is_checkpoint: bool = False
    checkpoint_path: str = ""
    request: int | None = None  # the number of the request that this checkpoint answers; None: it was made without one
    own_s: tuple[float, ...] = ()
    """How long the rank worked by itself for its last steps; one number per rank if there are several."""
    own_steps: int = 1
    is_waiting: bool = False  # the rank has been waiting for the other ranks for a long time
    saves_on_request: bool = False  # the script checks for checkpoint requests and saves when asked

    @property
    def fraction(self) -> float | None:
        """How much of the whole is done, from steps or else from epochs."""
        for done, total in ((self.step, self.total_steps), (self.epoch, self.total_epochs)):
            if done is not None and total:
                return min(done / total, 1.0)
        return None


def parse_line(line: bytes | str) -> ProgressReport | None:
    """Return the report in one line; None for a line that is no report. Never raises."""
    if len(line) > LONGEST_LINE_BYTES:
        return None
    try:
        values = json.loads(line)
        return _read(values) if isinstance(values, dict) else None
    except (ValueError, RecursionError, _NotAReport):
        return None


class _NotAReport(Exception):
    """A known key has a value of the wrong kind."""


def _read(values: dict[str, Any]) -> ProgressReport:
    metrics = values.get("metrics") or {}
    is_report = bool(values.keys() & _KNOWN) or any(_as_number(value) is not None for value in values.values())
    if not isinstance(metrics, dict) or not is_report:
        raise _NotAReport
    nonfinite = values.get("nonfinite") or []
    if not isinstance(nonfinite, list) or not all(isinstance(name, str) for name in nonfinite):
        raise _NotAReport
    broken = dict.fromkeys(nonfinite)
    known: dict[str, Any] = {key: _count(values, key) for key in _COUNTS}
    known |= {key: _number(values, key, broken) for key in _NUMBERS}
    others = {name: value for name, value in values.items() if name not in _KNOWN}
    found: dict[str, float] = {}
    for name, value in (*others.items(), *metrics.items()):
        number = _as_number(value)
        if number is None or len(found) + len(broken) >= MOST_METRICS:
            continue
        if math.isfinite(number):
            found[name[:200]] = number
        else:
            broken[name[:200]] = None
    path = values.get("path", "")
    event = values.get("event", "")
    if not isinstance(path, str) or not isinstance(event, str):
        raise _NotAReport
    for key in ("time", "epoch", "total_epochs", "samples"):
        if (known[key] or 0) < 0:
            raise _NotAReport
    return ProgressReport(
        time_s=known.pop("time"),
        own_steps=known.pop("own_steps") or 1,
        **known,
        metrics=tuple(found.items()),
        nonfinite=tuple(broken),
        is_checkpoint=event == "checkpoint",
        checkpoint_path=path if event == "checkpoint" else "",
        own_s=_own_s(values.get("own_s")),
        is_waiting=event == "waiting",
        saves_on_request=event == "saves-on-request",
    )


def _own_s(value: object) -> tuple[float, ...]:
    """Seconds, of one rank or several; NaN where there is none of a rank."""
    if value is None:
        return ()
    several = value if isinstance(value, list) else [value]
    if len(several) > MOST_RANKS:
        raise _NotAReport
    found = []
    for one in several:
        number = math.nan if one is None else _as_number(one)
        if number is None or number < 0:
            raise _NotAReport
        found.append(number)
    return tuple(found)


def _count(values: dict[str, Any], key: str) -> int | None:
    """A whole number of at least 0; 10.0 is one too."""
    value = values.get(key)
    if value is None:
        return None
    number = _as_number(value)
    if number is None or not 0 <= number <= _LARGEST or number != int(number):
        raise _NotAReport
    return int(value)


def _number(values: dict[str, Any], key: str, broken: dict[str, None]) -> float | None:
    value = values.get(key)
    if value is None:
        return None
    number = _as_number(value)
    if number is None:
        raise _NotAReport
    if math.isfinite(number):
        return number
    broken[key] = None
    return None


def _as_number(value: object) -> float | None:
    """None for what is no number; a whole number beyond all floats counts as infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def parse_voda_csv(data: bytes, *, timezone: tzinfo = UTC, final: bool = False) -> tuple[ProgressReport, ...]:
    """Return all reports of a whole file of Voda (a line per epoch, so reading it again is cheap).

    Each row is written when an epoch ends: `epoch` (its number, from 0), `start_time` (of the epoch, in local
    time of the machine), `epoch_time_sec`, `step_time_sec`, `workers`, `total_epochs`, and whatever else the
    training framework logs, in any order; `NA` is a missing value. The file continues after a restart.
    `timezone` is that of the machine that wrote it. A last line without its end waits, unless it is `final`.
    """
    end = len(data) if final else data.rfind(b"\n") + 1
    header: list[str] = []
    reports: list[ProgressReport] = []
    for line in data[:end].decode("utf-8-sig", errors="replace").split("\n"):
        cells = _split(line)
        if "epoch" in cells and header in ([], cells):
            header = cells
        elif len(header) == len(cells) and (report := _read_voda_row(dict(zip(header, cells, strict=True)), timezone)):
            reports.append(report)
    return tuple(reports)


def _split(line: str) -> list[str]:
    """Return the cells of one line; none when it is empty or not CSV."""
    if len(line) > LONGEST_LINE_BYTES or not line.strip():
        return []
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True), [])]
    except csv.Error:
        return []


def _read_voda_row(row: dict[str, str], timezone: tzinfo) -> ProgressReport | None:
    epoch = _parse_float(row.get("epoch", ""))
    if epoch is None or epoch < 0 or epoch != int(epoch):
        return None
    epoch_time_s, step_time_s = _positive(row, "epoch_time_sec"), _positive(row, "step_time_sec")
    start_s = _moment_s(row.get("start_time", ""), timezone)
    workers, loss = _positive(row, "workers"), _parse_float(row.get("loss", ""))
    others = {name: _parse_float(text) for name, text in row.items() if name and name not in _OWN}
    values = {"loss": loss, **others}
    return ProgressReport(
        time_s=None if start_s is None else start_s + (epoch_time_s or 0.0),
        epoch=epoch + 1,
        total_epochs=_positive(row, "total_epochs"),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        metrics=tuple((k, v) for k, v in others.items() if v is not None and math.isfinite(v))[:MOST_METRICS],
        nonfinite=tuple(k for k, v in values.items() if v is not None and not math.isfinite(v))[:MOST_METRICS],
        workers=int(workers) if workers is not None else None,
        step_time_s=step_time_s,
        epoch_time_s=epoch_time_s,
    )


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _positive(row: dict[str, str], name: str) -> float | None:
    number = _parse_float(row.get(name, ""))
    return number if number is not None and 0 < number < math.inf else None


def _moment_s(text: str, timezone: tzinfo) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone)).timestamp()
    except (ValueError, OverflowError):
        return None
