"""What the engine is told of one job, and what is done once it has taken note."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.ledger import Ledger
from batuta.backends.local.live_run import LiveRun
from batuta.backends.local.outcome import End, Outcome, survivors_in
from batuta.backends.local.site import Site
from batuta.core.event import JobEnded, JobInterrupted, JobStarted, TransitionTimed
from batuta.core.job import JobId, JobState
from batuta.spec.task import Task

_log = logging.getLogger(__name__)
_LATE_S = 5.0
"""An end that is found so late happened while no server ran, or none could look."""


@dataclass(slots=True)
class Steps:
    """How long the steps of a transition took so far."""

    checkpoint_s: float | None = None
    stop_s: float | None = None


def fault_of_ours(error: Exception) -> str:
    return f"a fault of the server, not of the job: {error!r} (server.log has the details)"


class JobVoice:
    """Says what became of a job. Nothing of a run is thrown away before its end is durable."""

    def __init__(self, site: Site, files: JobFiles, task: Task, job: JobId, ledger: Ledger) -> None:
        self.steps = Steps()
        self._site = site
        self._files = files
        self._task = task
        self._job = job
        self._ledger = ledger

    def started(self, run: LiveRun, now_s: float) -> None:
        run.is_announced = True
        self._site.say(JobStarted(now_s, self._job))
        if run.record.started_on is not None:
            return  # it changed its workers by itself, in a time that nobody knows
        since_s = run.running_since_s
        start_s = None if since_s is None else max(0.0, since_s - run.record.started_s)
        self._timed(now_s, run.record.placement.size, start_s)

    def left(self, run: LiveRun, now_s: float) -> None:
        """It has left its GPUs and has no others. The engine knows that since it wanted so."""
        self._files.discard_run(run.record.number)
        if self.steps.stop_s is not None:
            self._timed(now_s, 0, None)

    def moved(self, run: LiveRun) -> None:
        """It has left its GPUs for others, on which it will be started."""
        self._files.discard_run(run.record.number)

    def interrupted(self, now_s: float, outcome: Outcome, run: LiveRun | None = None) -> None:
        """It is gone, and waits again: at least for its back-off, unless only the server was shut down."""
        ledger, number = self._ledger, None if run is None else run.record.number
        at_once = run is not None and run.record.interrupted
        wait_s = 0.0 if at_once else self._site.timing.back_off(ledger.streak)
        detail = outcome.detail
        if outcome.end is End.FAILED and ledger.failures:
            most = self._task.max_restarts_on_errors
            detail += f" (restart {ledger.failures} of {most}, after {wait_s:g} s)"
        event = JobInterrupted(
            now_s, self._job, not_before_s=now_s + wait_s, exit_code=outcome.exit_code, detail=detail
        )
        self._site.say(event)
        if number is not None:
            self._site.later(lambda: self._files.discard_run(number))

    def ended(self, now_s: float, state: JobState, outcome: Outcome, run: LiveRun | None = None) -> None:
        """It is over for good."""
        self._hand_over_result()
        detail = outcome.detail
        survivors = () if run is None else survivors_in(run.states)
        if survivors:
            note = f"processes {', '.join(map(str, survivors))} could not be killed"
            detail = f"{detail}; {note}" if detail else note
        ended_s = None if run is None else run.ended_s
        found_late = ended_s is not None and ended_s < now_s - _LATE_S
        self._site.say(
            JobEnded(
                now_s,
                self._job,
                state,
                exit_code=outcome.exit_code,
                detail=detail,
                ended_s=ended_s if found_late else None,
            )
        )
        self._site.later(self._files.tidy)

    def broken(self, now_s: float, error: Exception) -> None:
        """It is over for a fault of ours, whatever became of it."""
        self._site.say(JobEnded(now_s, self._job, JobState.FAILED, detail=fault_of_ours(error)))
        self._site.later(self._files.tidy)

    def _hand_over_result(self) -> None:
        text = self._files.read_result()
        if text is None or self._site.on_result is None:
            return
        try:
            self._site.on_result(self._job, text)
        except Exception:
            # It stays in its file; the end of a job is not to be lost for it.
            _log.exception(
                "the result of job %s could not be handed over", self._job, extra={"job": self._job}
            )

    def _timed(self, now_s: float, gpus: int, start_s: float | None) -> None:
        steps, self.steps = self.steps, Steps()
        self._site.say(TransitionTimed(now_s, self._job, gpus, steps.checkpoint_s, steps.stop_s, start_s))
