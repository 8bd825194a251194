"""What a job's own reports say of its checkpoints: whether it saves at all, and whether it has when asked.

For every backend that hears reports, from whatever place they come.
"""

from __future__ import annotations

from batuta.core.event import JobCheckpointed
from batuta.core.job import JobId
from batuta.spec.progress import ProgressReport

EVERY_S = 30.0
"""A script may save at every step: unless it was asked to, it is told no more often than this."""


class CheckpointWatch:
    """One job, through all its runs."""

    def __init__(self, job: JobId) -> None:
        self._job = job
        self._run = 0
        self._answered = self._unasked = 0
        """The last request of this run that was answered; checkpoints without a number since then."""
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
        """Takes in a report that was made at this time."""
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
        """A checkpoint is complete."""
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
