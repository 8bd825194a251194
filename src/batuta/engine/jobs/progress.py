"""What a job's own reports mean to the World: reports in, events out when there is enough that is new.

For every backend that hears reports, from whatever place they come. `JobProgress` is the one reader: it
measures speed (`ReportMeter`), notes checkpoints (`CheckpointWatch`) and watches ranks. What a report is, and
that it makes sense, `spec/progress.py` says for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from batuta.core.cluster import NodeName
from batuta.core.event import JobCheckpointed, JobProgressed
from batuta.core.job import Job, JobId
from batuta.engine.stragglers.rank_watch import RankWatch
from batuta.prediction import Sample, SpeedMeter
from batuta.spec.progress import ProgressReport

_LEAST_LEFT_S = 1.0  # how long a job without a total takes is unknown, but it is not over
_SAID = attrgetter(*Sample._fields[1:])  # what a report says, in the order of a sample's fields after its time
EVERY_S = 30.0  # a script may save at every step: unless it was asked to, it is told no more often than this


class ReportMeter:
    """Measures one job by its reports, and says what is left of it."""

    def __init__(self, job: Job) -> None:
        """`job` as it was submitted: see `SpeedMeter`."""
        self.meter = SpeedMeter(job)
        self._job = job
        self._left = _WorkLeft(job.work_s)
        self._gpus = 0

    def began(self, time_s: float, gpus: int, nodes: int) -> None:
        """A run begins at this size, or has been going on since then."""
        self._gpus = gpus
        self.meter.began(time_s, gpus, nodes)
        self._left.go_on(time_s, self._job.curve.at(gpus))

    def ended(self, time_s: float) -> None:
        self.meter.ended(time_s)
        self._left.go_on(time_s, 0.0)

    def add(self, samples: Iterable[Sample]) -> None:
        self.meter.add(samples)

    def news(self, now_s: float, *, at_last: bool = False) -> JobProgressed | None:
        """An event, when there is something worth one: `at_last`, whatever is new."""
        news = self.meter.news(now_s, at_last=at_last)
        if news is None:
            return None
        if news.curve is not None:
            self._left.go_on(now_s, news.curve.at(self._gpus))
        remaining_s = news.remaining_s
        if remaining_s is None:
            remaining_s = max(self._left.at(now_s), _LEAST_LEFT_S)
        else:
            self._left.set(now_s, remaining_s)
        return JobProgressed(now_s, self._job.id, remaining_s, news.curve, news.restart_s, progress=news.progress)


@dataclass(slots=True)
class _WorkLeft:
    """What the World believes to be left, for jobs that do not say: an event has to name a number."""

    left_s: float
    since_s: float = 0.0
    speed: float = 0.0

    def at(self, now_s: float) -> float:
        return self.left_s - self.speed * (now_s - self.since_s)

    def set(self, now_s: float, left_s: float) -> None:
        self.left_s, self.since_s = left_s, now_s

    def go_on(self, now_s: float, speed: float) -> None:
        self.set(now_s, self.at(now_s))
        self.speed = speed


def sample_of(report: ProgressReport, time_s: float) -> Sample:
    """Return a report that was made at this time, as the meter takes it."""
    return Sample(time_s, *_SAID(report))


class CheckpointWatch:
    """One job, through all its runs."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._run = 0
        self._answered = self._unasked = 0  # last request answered in this run; checkpoints without a number since
        self._heard = self._is_urgent = False
        self._saved_s: float | None = None
        self._told: JobCheckpointed | None = None

    @property
    def are_seen(self) -> bool:
        """Whether the job has saved, or shown that it saves when it is asked."""
        return self._heard

    def began(self, run: int) -> None:
        """A run begins, or goes on: requests are numbered anew in each."""
        if run != self._run:
            self._run, self._answered, self._unasked = run, 0, 0

    def asked(self) -> None:
        """A checkpoint was asked for; what is made from now on counts."""
        self._unasked = 0
        self._is_urgent = True

    def has_answered(self, request: int) -> bool:
        """Whether a request was answered: by its number, or by a checkpoint without one made since."""
        return self._answered >= request or self._unasked > 0

    def hear(self, report: ProgressReport, time_s: float) -> None:
        self._heard |= report.saves_on_request
        if not report.is_checkpoint:
            return
        self.saved(time_s)
        if report.restart not in (None, self._run):
            return
        if report.request is None:
            self._unasked += 1
        else:
            self._answered = max(self._answered, report.request)

    def saved(self, time_s: float) -> None:
        self._heard = True
        self._saved_s = time_s if self._saved_s is None else max(self._saved_s, time_s)

    def news(self, now_s: float, *, at_last: bool = False) -> JobCheckpointed | None:
        """An event, when there is something worth one: `at_last`, whatever is new."""
        saved_s, told = self._saved_s, self._told
        if saved_s is not None:
            saved_s = min(saved_s, now_s)
        if not self._heard or (told is not None and told.saved_s == saved_s):
            return None
        is_known = told is not None and told.saved_s is not None and now_s < told.time_s + EVERY_S
        if is_known and not (at_last or self._is_urgent):
            return None
        self._is_urgent = False
        self._told = JobCheckpointed(now_s, self._job, saved_s)
        return self._told


class TimedReport(NamedTuple):
    """A report, and when it was made: by the clock that is believed."""

    report: ProgressReport
    made_s: float


class JobProgress:
    """Reads what one job reports, through all its runs."""

    def __init__(self, job: JobId, ranks: RankWatch) -> None:
        self.ranks = ranks
        self.checkpoints = CheckpointWatch(job)
        self._reports: ReportMeter | None = None

    def know(self, job: Job) -> ReportMeter:
        """Begins to measure the job, as it was submitted, if that has not begun."""
        if self._reports is None:
            self._reports = ReportMeter(job)
        return self._reports

    def began(
        self, job: Job, run: int, gpus: int, nodes: Collection[NodeName], places: Sequence[NodeName], time_s: float
    ) -> None:
        """A run begins, or goes on at another size, since then; `places`: the node of each rank, if known."""
        self.checkpoints.began(run)
        self.know(job).began(time_s, gpus or 1, len(nodes))  # a CPU-only job has one speed
        self.ranks.began(places, nodes, run)

    def ended(self, time_s: float) -> None:
        if self._reports is not None:
            self._reports.ended(time_s)

    def changed(self, job: Job) -> None:
        if self._reports is not None:
            self._reports.meter.changed(job)

    def asked(self, time_s: float) -> None:
        self.checkpoints.asked()
        if self._reports is not None:
            self._reports.meter.transitions.asked(time_s)

    def note(self, reports: Iterable[TimedReport]) -> None:
        """Takes in what reports say of checkpoints, whether a run goes on or not."""
        for one in reports:
            self.checkpoints.hear(one.report, one.made_s)

    def measure(self, reports: Sequence[TimedReport], now_s: float) -> None:
        """Takes in what reports say of the run that goes on."""
        if self._reports is None:
            return
        for one in reports:
            self.ranks.hear(one.report, now_s)
        if reports:
            self._reports.add([sample_of(one.report, one.made_s) for one in reports])

    def news(self, now_s: float, *, at_last: bool = False) -> JobProgressed | None:
        return None if self._reports is None else self._reports.news(now_s, at_last=at_last)
