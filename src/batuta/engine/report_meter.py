"""What a job's own reports mean to the World: reports in, one event out when there is enough that is new.

For every backend that hears reports, from whatever place they come.
"""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core.event import JobProgressed
from batuta.core.job import Job, Progress
from batuta.prediction import ProgressUpdate, Sample, SpeedMeter
from batuta.spec.progress import ProgressReport

_LEAST_LEFT_S = 1.0
"""How long a job without a total takes is unknown, but it is not over."""


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
        return None if news is None else self._event(now_s, news)

    def _event(self, now_s: float, news: ProgressUpdate) -> JobProgressed:
        if news.curve is not None:
            self._left.go_on(now_s, news.curve.at(self._gpus))
        remaining_s = news.remaining_s
        if remaining_s is None:
            remaining_s = max(self._left.at(now_s), _LEAST_LEFT_S)
        else:
            self._left.set(now_s, remaining_s)
        progress = Progress(
            fraction=news.fraction,
            step=news.step,
            total_steps=news.total_steps,
            epoch=news.epoch,
            loss=news.loss,
            step_s=news.step_s,
            samples_per_s=news.samples_per_s,
            epoch_s=news.epoch_s,
        )
        return JobProgressed(now_s, self._job.id, remaining_s, news.curve, news.restart_s, progress=progress)


class _WorkLeft:
    """What the World believes to be left, for jobs that do not say: an event has to name a number."""

    def __init__(self, left_s: float) -> None:
        self._left_s = left_s
        self._since_s = 0.0
        self._speed = 0.0

    def at(self, now_s: float) -> float:
        return self._left_s - self._speed * (now_s - self._since_s)

    def set(self, now_s: float, left_s: float) -> None:
        self._left_s, self._since_s = left_s, now_s

    def go_on(self, now_s: float, speed: float) -> None:
        self.set(now_s, self.at(now_s))
        self._speed = speed


def sample_of(report: ProgressReport, time_s: float) -> Sample:
    """A report as the meter takes it, made at this time."""
    return Sample(
        time_s,
        report.step,
        report.total_steps,
        report.epoch,
        report.total_epochs,
        report.samples,
        report.loss,
        report.rank,
        report.noise_scale,
    )
