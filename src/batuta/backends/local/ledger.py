"""What is remembered of a job's runs that are over: `job.json`. It outlives the server, and the runs."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batuta.backends.local.run_record import RunRecord
from batuta.backends.local.small_files import read_json, write_json
from batuta.prediction import Run

_MOST_PAST = 64
CALM_S = 300.0
"""A run this long was no crash at the start: the back-off begins anew."""


@dataclass(slots=True)
class Ledger:
    """Kept by one server at a time. To note an end is not to keep it: a job that is over needs no file."""

    path: Path
    counted: int = -1
    """The last run whose end is in here. To hear of an end twice must not count it twice."""
    failures: int = 0
    """Those that count towards the limit."""
    streak: int = 0
    """Ends that nobody wanted, one after another: the exponent of the back-off."""
    ran_s: float = 0.0
    """How long all runs together have run, for the time limit."""
    past: list[Run] = field(default_factory=list)
    """The last runs, for the meter."""

    def note(self, number: int, run: Run | None, ran_s: float, *, failed: bool, unwanted: bool) -> None:
        """Takes down the end of a run, once."""
        if number <= self.counted:
            return
        self.counted = number
        self.failures += failed
        if unwanted:
            self.streak = 1 if ran_s >= CALM_S else self.streak + 1
        self.ran_s += ran_s
        if run is not None:
            self.past = [*self.past[1 - _MOST_PAST :], run]

    def keep(self) -> None:
        """Writes it down; what cannot be written now is written with the next end."""
        content = {
            "counted": self.counted,
            "failures": self.failures,
            "streak": self.streak,
            "ran_s": self.ran_s,
            "past": [dataclasses.asdict(run) for run in self.past],
        }
        with contextlib.suppress(OSError):
            write_json(self.path, content)


def past_run(record: RunRecord, checkpointed_s: float | None = None, stopped_s: float | None = None) -> Run:
    """A run as the meter wants to know it."""
    return Run(
        record.started_s,
        record.placement.size,
        len(record.placement.nodes),
        asked_s=record.asked_s,
        checkpointed_s=checkpointed_s,
        stopped_s=stopped_s,
    )


def read_ledger(path: Path) -> Ledger:
    """The ledger at a path; an empty one where there is none."""
    content = read_json(path)
    try:
        return _ledger(path, content) if content is not None else Ledger(path)
    except (KeyError, TypeError, ValueError):
        return Ledger(path)


def _ledger(path: Path, content: Any) -> Ledger:
    return Ledger(
        path,
        int(content["counted"]),
        int(content["failures"]),
        int(content["streak"]),
        float(content["ran_s"]),
        [Run(**run) for run in content["past"]],
    )
