"""Where findings come from in local mode: the kernel log, figures of GPUs, logs of jobs that failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from batuta.core.cluster import Span
from batuta.core.health_figures import Figures, FigureSource, news
from batuta.core.health_rules import Finding
from batuta.core.health_words import findings_in
from batuta.core.job import JobId
from batuta.gpu.attribution.owner import Owners
from batuta.gpu.health.job_log import RankLog
from batuta.gpu.health.kernel_line import parse_line
from batuta.gpu.health.ledger import Ledger, Note
from batuta.gpu.health.memory import HealthMemory
from batuta.gpu.health.places import Places

LOOK_S: Final = 10.0
"""Between looks at figures: they change slowly, and what cannot wait the driver writes into its log."""
_log = logging.getLogger(__name__)


class Sources:
    """All that is looked at. What is not there is None. Who has the memory has its lock, too."""

    def __init__(
        self,
        ledger: Ledger | None,
        places: Places,
        owners: Owners,
        figures: FigureSource | None,
        rank_log: Callable[[JobId, int], RankLog],
        look_s: float = LOOK_S,
    ) -> None:
        self._ledger, self._places, self._owners = ledger, places, owners
        self._figures, self._rank_log, self._look_s = figures, rank_log, look_s
        self._next_look_s = 0.0
        self.also_close: Callable[[], None] = lambda: None
        if ledger is not None:
            ledger.__enter__()

    def kernel_log(self, memory: HealthMemory) -> list[Finding]:
        """What the log says that is not in the book yet; the memory knows how far that is."""
        ledger = self._ledger
        if ledger is None:
            return []
        ledger.collect()
        for sentence in ledger.missed:
            _log.warning("kernel log: %s", sentence)
        found: list[Finding] = []
        for note in ledger.waiting:
            if note.number > memory.last_note:
                found += self._findings(note)
                memory.last_note = note.number
        return found

    def _findings(self, note: Note) -> Iterator[Finding]:
        error = parse_line(note.line)
        if error is None:
            return
        owner = self._owners.of(error.pid) if error.pid is not None else None
        jobs = (owner.job,) if owner is not None else ()
        places = self._places.of(note.line, error)
        if not places:
            _log.warning("an error of a GPU that is none of ours, or could be several: %s", note.line)
        for node, gpu in places:
            yield Finding(note.time_s, node, error.source, error.code, error.text, gpu, jobs)

    def done(self, number: int) -> None:
        """What was noted up to this number is in a book that is kept."""
        if self._ledger is not None:
            self._ledger.done(number)

    def look(self, *, at_once: bool = False) -> Figures:
        """Figures of all GPUs now and then, else nothing. For no lock: a driver may think for minutes."""
        if self._figures is None or (time.monotonic() < self._next_look_s and not at_once):
            return {}
        self._next_look_s = time.monotonic() + self._look_s
        return self._figures.read()

    def figures(self, memory: HealthMemory, found: Figures, now_s: float) -> list[Finding]:
        """What is new about the GPUs."""
        return list(news(memory.book.rules, memory.figures, found, now_s))

    def job_log(
        self, memory: HealthMemory, job: JobId, workers: Sequence[Span], now_s: float
    ) -> list[Finding]:
        """What the ranks of a job that failed have said about GPUs since they were last looked at."""
        found: list[Finding] = []
        for rank, worker in enumerate(workers):
            key = f"{job}/{rank}"
            log = self._rank_log(job, rank)
            lines, end = log.tail(memory.read.get(key, 0))
            own = list(findings_in(memory.book.rules, lines, worker, job, now_s))
            if own:
                memory.read.pop(key, None)
                memory.read[key] = end
            found += own
        return found

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.__exit__(None, None, None)
            self._ledger = None
        self.also_close()
