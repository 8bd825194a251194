"""What jobs of this machine say of their progress: the lines that `batuta.sdk` adds to their files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

_MOST_BYTES: Final = 1 << 16
"""Read at a time; who writes more between two looks is heard in part, the newest lines first."""


class Said(NamedTuple):
    """One report of a job."""

    job: str
    time_s: float
    step: float
    total_steps: float | None


class ProgressFiles:
    """Reads what was added since the last look. Only the first rank counts: all of them say the same."""

    def __init__(self) -> None:
        self._read_bytes: dict[str, int] = {}

    def heard(self, files: Mapping[str, str]) -> Iterator[Said]:
        """`files`: where each job reports."""
        self._read_bytes = {job: count for job, count in self._read_bytes.items() if job in files}
        for job, path in files.items():
            for line in self._news(job, Path(path)):
                if (said := _parsed(job, line)) is not None:
                    yield said

    def _news(self, job: str, path: Path) -> list[bytes]:
        """Whole lines; what has no end yet is left for the next look."""
        try:
            # A job chooses the path: a pipe would make us wait for it.
            if not path.is_file():
                return []
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = self._read_bytes.get(job, 0)
                begin = max(begin if begin <= size else 0, size - _MOST_BYTES)
                file.seek(begin)
                whole, _, rest = file.read(_MOST_BYTES).rpartition(b"\n")
                self._read_bytes[job] = file.tell() - len(rest)
                return whole.split(b"\n")
        except OSError:
            return []


def _parsed(job: str, line: bytes) -> Said | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or found.get("rank", 0) != 0:
        return None
    time_s, step, total = (_number(found.get(key)) for key in ("time", "step", "total_steps"))
    return None if time_s is None or step is None else Said(job, time_s, step, total)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
