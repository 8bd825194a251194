"""What a job reports, from its files to the engine: new lines in, measured speed and progress out.

Beside `progress.jsonl`, Voda's per-epoch CSV is read where there is one (voda_source.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.progress_tail import ProgressTail
from batuta.backends.local.voda_source import VodaSource
from batuta.core.cluster import NodeName, Placement
from batuta.core.event import JobProgressed
from batuta.core.job import Job
from batuta.engine.report_meter import ReportMeter, sample_of
from batuta.engine.stragglers.rank_watch import RankRules, RankWatch
from batuta.prediction import Run, Sample, SpeedMeter, replay
from batuta.spec.progress import ProgressReport, parse_line
from batuta.spec.task import Task
from batuta.spec.task_ranks import rank_wishes

_MOST_READS = 64
"""Pieces of a long file per poll: a server that starts again catches up bit by bit."""
_LONG_BEFORE_S = 60.0
"""What is so much older than a run is of no run: more than a clock may be off."""


class ProgressFeed:
    """Reads one job's reports once each, and measures the job by them."""

    def __init__(self, files: JobFiles, task: Task, job: Job, ranks: RankRules = RankRules()) -> None:  # noqa: B008
        self.ranks = RankWatch(job.id, ranks.for_job(rank_wishes(dict(task.labels))))
        self._reports = ReportMeter(job)
        self._tail = ProgressTail(files.progress)
        self._voda = VodaSource(files, task)
        self._run = 0
        self._answered = 0
        """The highest number of a request of this run that was answered."""
        self._unasked = 0
        """Checkpoints without a number that were made since one was asked for."""

    @property
    def meter(self) -> SpeedMeter:
        return self._reports.meter

    def remember(self, past: Sequence[Run], now_s: float) -> None:
        """Feeds the meter anew with all that was reported so far, after a restart of the server."""
        reports = list(self._read(now_s, at_end=False))
        # A report without a time says how far the job was, and nothing any more about speed.
        time_s = min(run.began_s for run in past) - _LONG_BEFORE_S
        samples = []
        for report in reports:
            time_s = time_s if report.time_s is None else report.time_s
            samples.append(_sample(report, time_s))
        replay(self.meter, past, samples)
        if any(report.time_s is None for report in reports):
            # Nor when the present run had started up: nobody shall take the next report for its first.
            self.meter.transitions.progressed(-math.inf)

    def began(
        self, time_s: float, number: int, placement: Placement, places: Sequence[NodeName] = ()
    ) -> None:
        """A run begins, or has been going on since then; `places`: the node of each replica, if known."""
        self._run = number
        self._answered = self._unasked = 0
        self._reports.began(time_s, placement.size, len(placement.nodes))
        self.ranks.began(places, placement.nodes, number)

    def ended(self, time_s: float) -> None:
        self._reports.ended(time_s)

    def asked(self, time_s: float) -> None:
        """A checkpoint was asked for; what is made from now on counts."""
        self.meter.transitions.asked(time_s)
        self._unasked = 0

    def has_answered(self, request: int) -> bool:
        """Whether the request was answered: by its number, or by a checkpoint without one made since."""
        return self._answered >= request or self._unasked > 0

    def read(self, now_s: float, *, at_end: bool = False) -> None:
        """Reads what is new."""
        reports = list(self._read(now_s, at_end=at_end))
        for report in reports:
            self.ranks.hear(report, now_s)
        if reports:
            self._reports.add([_sample(report, now_s) for report in reports])

    def poll(self, now_s: float, *, at_end: bool = False) -> JobProgressed | None:
        """The same, and an event when it is worth one: at the end of a run, whatever is new."""
        self.read(now_s, at_end=at_end)
        return self._reports.news(now_s, at_last=at_end)

    def _read(self, now_s: float, *, at_end: bool) -> Iterator[ProgressReport]:
        for _ in range(_MOST_READS):
            lines = self._tail.poll(at_end=at_end)
            for line in lines:
                report = parse_line(line) if line else None
                if report is not None:
                    self._note_answer(report)
                    yield report
            if not lines:
                break
        yield from self._voda.poll(now_s, at_end=at_end)

    def _note_answer(self, report: ProgressReport) -> None:
        if not report.is_checkpoint or report.restart not in (None, self._run):
            return
        if report.request is None:
            self._unasked += 1
        else:
            self._answered = max(self._answered, report.request)


def _sample(report: ProgressReport, now_s: float) -> Sample:
    """Made when the report says, or when it was read where it does not."""
    return sample_of(report, now_s if report.time_s is None else report.time_s)
