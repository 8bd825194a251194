"""How far training is, in the status of a UnifiedJob: with Kubeflow Trainer's names, and for columns."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final

from batuta.core.progress import Progress

KEYS: Final = ("progress", "eta", "trainerStatus")
"""The parts of a status that are from here."""
_LONGEST_S: Final = 10**9
_UNITS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def trainer_status(progress: Progress | None, left_s: float | None, heard_s: float) -> dict[str, Any]:
    """What is to be written of progress that was heard at a time, when so much was left."""
    if progress is None:
        return {}
    numbers = {
        "loss": progress.loss,
        "samples_per_second": progress.samples_per_s,
        "step": progress.step,
        "epoch": progress.epoch,
    }
    percent = None if progress.fraction is None else math.floor(100 * progress.fraction)
    if percent is None:
        left_s = None  # what is left of a job that does not say how long it is, nobody knows
    return {
        # A merge patch keeps what it does not name: what is not known any more is named with nothing.
        "progress": None if percent is None else f"{percent}%",
        "eta": None if left_s is None else short_time(left_s),
        "trainerStatus": {
            "progressPercentage": percent,
            "estimatedRemainingSeconds": None if left_s is None else math.ceil(left_s),
            "metrics": [
                {"name": name, "value": str(value)} for name, value in numbers.items() if value is not None
            ],
            "lastUpdatedTime": datetime.fromtimestamp(heard_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
    }


def short_time(seconds: float) -> str:
    """A time span in two units at most, as kubectl writes ages: 45s, 12m30s, 3h5m, 2d4h."""
    whole = min(math.ceil(seconds), _LONGEST_S)
    for size, name, part, part_name in _UNITS:
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{name}{rest}{part_name}" if rest else f"{whole // size}{name}"
    return f"{whole}s"
