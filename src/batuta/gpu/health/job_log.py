"""What jobs print about GPUs before they fail: the ends of their logs, held against the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from batuta.core.cluster import Span
from batuta.core.health_rules import Finding, HealthRules, Source
from batuta.core.job import JobId
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


def findings_in(
    rules: HealthRules, lines: Iterable[str], worker: Span, job: JobId, now_s: float
) -> Iterator[Finding]:
    """One finding for each rule that a line fits: a program says the same thing many times."""
    gpu = worker.gpus[0] if len(worker.gpus) == 1 else None
    told = set[str]()
    for line in lines:
        rule = rules.find(Source.LOG, 0, line)
        if rule is not None and rule.means not in told:
            told.add(rule.means)
            yield Finding(now_s, worker.node, Source.LOG, text=line, gpu=gpu, jobs=(job,))
