"""Voda's per-epoch CSV as progress reports.

Each row is written when an epoch ends: `epoch` (its number, from 0), `start_time` (of the epoch, in the
local time of the machine), `epoch_time_sec`, `step_time_sec`, `workers`, `total_epochs`, and whatever else
the training framework logs, in any order; `NA` stands for a value that is missing. The file goes on after a
restart.
"""

from __future__ import annotations

import csv
import math
from datetime import UTC, datetime, tzinfo

from batuta.spec.progress import LONGEST_LINE_BYTES, MOST_METRICS, ProgressRead, ProgressReport

_OWN = ("epoch", "start_time", "epoch_time_sec", "step_time_sec", "workers", "total_epochs", "loss")


def parse_voda_csv(data: bytes, *, timezone: tzinfo = UTC, final: bool = False) -> ProgressRead:
    """All reports of a whole file (it has a line per epoch, so that reading it again costs nothing).

    `timezone` is that of the machine that wrote it. A last line without its end waits, unless it is `final`.
    """
    end = len(data) if final else data.rfind(b"\n") + 1
    header: list[str] = []
    reports: list[ProgressReport] = []
    garbage = 0
    for line in data[:end].decode("utf-8-sig", errors="replace").split("\n"):
        cells = _split(line)
        if not cells:
            garbage += bool(line.strip())
        elif "epoch" in cells and header in ([], cells):
            header = cells
        elif report := _read(
            dict(zip(header, cells, strict=True)) if len(header) == len(cells) else {}, timezone
        ):
            reports.append(report)
        else:
            garbage += 1
    return ProgressRead(tuple(reports), end, garbage)


def _split(line: str) -> list[str]:
    """The cells of one line; none when it is empty or no CSV."""
    if len(line) > LONGEST_LINE_BYTES or not line.strip():
        return []
    try:
        return [cell.strip() for cell in next(csv.reader([line], strict=True), [])]
    except csv.Error:
        return []


def _read(row: dict[str, str], timezone: tzinfo) -> ProgressReport | None:
    epoch = _number(row.get("epoch", ""))
    if epoch is None or epoch < 0 or epoch != int(epoch):
        return None
    epoch_time_s, step_time_s = _positive(row, "epoch_time_sec"), _positive(row, "step_time_sec")
    start_s = _moment_s(row.get("start_time", ""), timezone)
    workers, loss = _positive(row, "workers"), _number(row.get("loss", ""))
    others = {name: _number(text) for name, text in row.items() if name and name not in _OWN}
    values = {"loss": loss, **others}
    return ProgressReport(
        time_s=None if start_s is None else start_s + (epoch_time_s or 0.0),
        epoch=epoch + 1,
        total_epochs=_positive(row, "total_epochs"),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        metrics=tuple((k, v) for k, v in others.items() if v is not None and math.isfinite(v))[:MOST_METRICS],
        nonfinite=tuple(k for k, v in values.items() if v is not None and not math.isfinite(v))[
            :MOST_METRICS
        ],
        workers=int(workers) if workers is not None else None,
        step_time_s=step_time_s,
        epoch_time_s=epoch_time_s,
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _positive(row: dict[str, str], name: str) -> float | None:
    number = _number(row.get(name, ""))
    return number if number is not None and 0 < number < math.inf else None


def _moment_s(text: str, timezone: tzinfo) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone)).timestamp()
    except (ValueError, OverflowError):
        return None
