"""What training scripts report: JSON lines in `$BATUTA_PROGRESS`, read piece by piece as they are written.

    {"time": 1722.5, "rank": 0, "step": 10, "total_steps": 100, "samples": 640, "loss": 0.3, "lr": 0.1}
    {"time": 1730.0, "rank": 0, "event": "checkpoint", "path": "/ckpt/10", "step": 10, "request": 2}
    {"time": 1722.6, "rank": 3, "step": 10, "own_s": 4.1, "own_steps": 20}
    {"time": 1790.0, "rank": 3, "event": "waiting"}

All keys are optional, as long as there is one of them. `epoch` counts epochs that are finished. `own_s` is
how long a rank worked for its last `own_steps` steps without waiting for others, or a list of that by rank.
Numbers under other names, at the top or under `metrics`, are metrics. NaN and infinities, written as JSON's
null with the name in `nonfinite` or as Python writes them, are noted but have no value. A line with a known
key and a value of the wrong kind is not used at all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

LONGEST_LINE_BYTES = 2**20
MOST_METRICS = 256
MOST_RANKS = 16_384
_COUNTS = ("rank", "replica", "restart", "step", "total_steps", "request", "own_steps")
_NUMBERS = ("time", "epoch", "total_epochs", "samples", "loss", "noise_scale")
_OTHER = ("event", "path", "metrics", "nonfinite", "own_s")
_KNOWN = frozenset((*_COUNTS, *_NUMBERS, *_OTHER))
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """One report. None: not said."""

    time_s: float | None = None
    rank: int | None = None
    replica: int | None = None
    restart: int | None = None
    step: int | None = None
    total_steps: int | None = None
    epoch: float | None = None
    """Epochs finished so far."""
    total_epochs: float | None = None
    samples: float | None = None
    loss: float | None = None
    noise_scale: float | None = None
    """The gradient noise scale, in samples."""
    metrics: tuple[tuple[str, float], ...] = ()
    nonfinite: tuple[str, ...] = ()
    """Names of values that were NaN or infinite: a loss here is a training that has broken down."""
    workers: int | None = None
    step_time_s: float | None = None
    epoch_time_s: float | None = None
    is_checkpoint: bool = False
    checkpoint_path: str = ""
    request: int | None = None
    """The number of the request that this checkpoint answers; None: it was made without one."""
    own_s: tuple[float, ...] = ()
    """How long the rank worked by itself for its last steps; of all ranks, if there are several numbers."""
    own_steps: int = 1
    is_waiting: bool = False
    """The rank has been waiting for the others for long."""

    @property
    def fraction(self) -> float | None:
        """How much of the whole is done, from steps or else from epochs."""
        for done, total in ((self.step, self.total_steps), (self.epoch, self.total_epochs)):
            if done is not None and total:
                return min(done / total, 1.0)
        return None


@dataclass(frozen=True, slots=True)
class ProgressRead:
    """What one piece of a file held."""

    reports: tuple[ProgressReport, ...] = ()
    consumed: int = 0
    """Bytes that are done with; the next piece begins there."""
    garbage: int = 0
    """Lines that are no reports."""


def parse_progress(data: bytes, *, final: bool = False) -> ProgressRead:
    """The reports in a piece of the file that begins at a line's beginning.

    The last line waits until its end is written; `final` takes it as it is, when nobody writes any more.
    """
    end = data.rfind(b"\n") + 1
    if final or len(data) - end > LONGEST_LINE_BYTES:
        end = len(data)
    reports: list[ProgressReport] = []
    garbage = 0
    for line in data[:end].split(b"\n"):
        if not line.strip():
            continue
        report = parse_line(line)
        if report is None:
            garbage += 1
        else:
            reports.append(report)
    return ProgressRead(tuple(reports), end, garbage)


def parse_line(line: bytes | str) -> ProgressReport | None:
    """One report; None for what is none. Never raises."""
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
    if not isinstance(metrics, dict) or not (values.keys() & _KNOWN or _any_number(values)):
        raise _NotAReport
    nonfinite = values.get("nonfinite") or []
    if not isinstance(nonfinite, list) or not all(isinstance(name, str) for name in nonfinite):
        raise _NotAReport
    broken = dict.fromkeys(nonfinite)
    counts = {key: _count(values, key) for key in _COUNTS}
    numbers = {key: _number(values, key, broken) for key in _NUMBERS}
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
        if (numbers[key] or 0) < 0:
            raise _NotAReport
    return ProgressReport(
        time_s=numbers["time"],
        rank=counts["rank"],
        replica=counts["replica"],
        restart=counts["restart"],
        step=counts["step"],
        total_steps=counts["total_steps"],
        epoch=numbers["epoch"],
        total_epochs=numbers["total_epochs"],
        samples=numbers["samples"],
        loss=numbers["loss"],
        noise_scale=numbers["noise_scale"],
        metrics=tuple(found.items()),
        nonfinite=tuple(broken),
        is_checkpoint=event == "checkpoint",
        checkpoint_path=path if event == "checkpoint" else "",
        request=counts["request"],
        own_s=_own_s(values.get("own_s")),
        own_steps=counts["own_steps"] or 1,
        is_waiting=event == "waiting",
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


def _any_number(values: dict[str, Any]) -> bool:
    return any(_as_number(value) is not None for value in values.values())


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
