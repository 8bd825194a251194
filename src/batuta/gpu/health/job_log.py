"""The ends of the logs of jobs, where programs say why they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from batuta.gpu.health.kernel_line import LONGEST

TAIL_BYTES: Final = 64 << 10
"""A program that fails says why at its end. More of a log is not read, however long it is."""


class RankLog:
    """The log of one rank."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tail(self, offset: int) -> tuple[list[str], int]:
        """The last lines behind an offset, and the offset behind them. A log that shrank is a new one."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                begin = max(offset if offset <= end else 0, end - TAIL_BYTES)
                file.seek(begin)
                data = file.read(end - begin)
        except OSError:
            return [], offset
        return [line[:LONGEST] for line in data.decode(errors="replace").splitlines()], end
