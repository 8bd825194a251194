"""What a line of a log says: how far the training is, that there is a checkpoint, or what came of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, TypeAlias

from batuta.backends.kube.progress.log_lines import ReportLine
from batuta.spec.progress import ProgressReport, parse_line

LONGEST_RESULT: Final = 2**14
_RESULT: Final = "result"


@dataclass(frozen=True, slots=True)
class Reported:
    """A report, or a checkpoint that was made."""

    report: ProgressReport
    time_s: float | None
    """When the line was written, by the clock of its node."""


@dataclass(frozen=True, slots=True)
class ResultGiven:
    """What the script gave to `batuta.sdk.result`, as JSON."""

    text: str


Said: TypeAlias = Reported | ResultGiven


def said_in(line: ReportLine) -> Said | None:
    """What a line says; None for what is no report. Never raises."""
    if b'"result"' in line.text and (result := _result_in(line.text)) is not None:
        return result
    report = parse_line(line.text)
    return None if report is None else Reported(report, line.time_s)


def _result_in(text: bytes) -> ResultGiven | None:
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("event") != _RESULT or "value" not in values:
            return None
        # NaN is no JSON, and whoever reads the result may be strict.
        found = json.dumps(values["value"], allow_nan=False, separators=(",", ":"), ensure_ascii=False)
        found.encode()  # half a character cannot be stored
    except (ValueError, RecursionError):
        return None
    return ResultGiven(found) if len(found) <= LONGEST_RESULT else None
