"""What a server learns from its jobs, and tells about new ones: how long, how fast, how many GPUs.

The engine's thread only notes what happens. Learning is done by a thread of its own, from what was noted,
when enough has ended since the last time. What is told of a job is written down with it, so a replay of the
journal needs none of this.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from batuta.core.event import Event, JobEnded, JobProgressed, JobSubmitted, TrialMeasured
from batuta.core.job import Job, SizeChoice
from batuta.core.world import PastJob, World
from batuta.engine.fence import Fence
from batuta.engine.observers import Observer
from batuta.engine.ports import Settings
from batuta.engine.trials.measurement import remember
from batuta.prediction.application_history import ApplicationHistory, KnownSpeed, choose_size, settle
from batuta.prediction.duration import (
    Calibration,
    CalibrationRecord,
    DurationHistory,
    JobFeatures,
    RunningJobs,
    outcome_of,
)
from batuta.prediction.duration_model import FEWEST_JOBS, DurationModel, learn

_log = logging.getLogger(__name__)
SETTING = "application-history"  # where the speeds of applications are kept
LEARN_AFTER_S = 30.0  # not sooner after the last time …
LEARN_AFTER_SHARE = 0.05  # … and not before so many more jobs have ended, as a share of those that are known
SAVE_EVERY_S = 30.0
_REMEMBERED = 256  # jobs that ended last, so that an end that is told twice counts once


class History(Observer):
    """All that jobs of the past say about those to come. Any thread may ask; one feeds it."""

    def __init__(
        self,
        settings: Settings,
        *,
        boost: bool = True,
        clock: Callable[[], float] = time.monotonic,
        fence: Fence | None = None,
    ) -> None:
        self.applications = ApplicationHistory()
        self._durations = DurationHistory()
        self._record = CalibrationRecord()
        self._model: DurationModel | None = None
        self._settings, self._boost, self._clock = settings, boost, clock
        self._recent: deque[PastJob] = deque(maxlen=_REMEMBERED)
        self._learned_count, self._next_learn_s = 0, -math.inf
        self._saved_version, self._next_save_s = 0, -math.inf
        self._worker = (fence or Fence()).background("learning from jobs")

    def recall(self, world: World) -> None:
        """Takes in what a World that was recovered knows, and what was kept beside it."""
        for past in world.past.values():
            self._ended(past)
        text = self._settings.get(SETTING)
        try:
            self.applications.load(json.loads(text) if text else [])
        except ValueError as error:
            _log.warning("the speeds of applications are not known any more: %s", error)
        # What was kept beside the World may be half a minute older than what the journal has of trial runs.
        kept = (*world.trials.values(), *(past.trials for past in world.past.values()))
        for measured in (one for own in kept for one in own):
            remember(self.applications, measured)
        self._saved_version = self.applications.version
        # A server that has nothing to do takes no step, and shall know something when the first job comes.
        self.after_step(world)

    def saw(self, world: World, event: Event) -> None:
        if isinstance(event, JobProgressed):
            self.applications.saw(world, event)
        elif isinstance(event, TrialMeasured):
            remember(self.applications, event.measured)
        elif isinstance(event, JobEnded):
            past = world.past.get(event.job)
            # By itself and not by its id, which another job may have had before.
            if past is not None and not any(one is past for one in self._recent):
                self._recent.append(past)
                self._ended(past)

    def _ended(self, past: PastJob) -> None:
        if past.job.trial_of is not None:
            return  # it was ended when it was measured: how long it took says nothing
        self._durations.add(past)
        self._record.add(past)
        told, outcome, model = past.job.expected, outcome_of(past), self._model
        if told is not None and outcome is not None and model is not None:
            model.tracker.ended(math.log(outcome.work_s), np.log(told.seconds))

    def after_step(self, world: World) -> None:
        """Begins to learn when there is enough that is new; the engine's thread only starts it."""
        if not self._worker.is_ready:
            return
        now_s, known = self._clock(), self._durations.count
        due = max(FEWEST_JOBS - self._learned_count, LEARN_AFTER_SHARE * self._learned_count, 1)
        if known - self._learned_count >= due and now_s >= self._next_learn_s:
            self._worker.begin(self._learn, RunningJobs.of(world), known)
        elif self.applications.version != self._saved_version and now_s >= self._next_save_s:
            # The engine's thread takes the copy, for it alone changes the original.
            self._worker.begin(self._save, self.applications.version, self.applications.dump())

    def finish(self, within_s: float = 10.0) -> None:
        """Waits for what is under way and keeps what would be lost. The engine has ended before."""
        self._worker.join(within_s)
        if self.applications.version != self._saved_version:
            self._worker.do(self._save, self.applications.version, self.applications.dump())

    def advise(self, job: Job, *, open_up_to: int | None, for_good: bool) -> Job:
        """The job with what earlier ones say of it: its curve, its work, and its size where that is open.

        `open_up_to`: the most GPUs to choose, None where its user said a size. `for_good`: it keeps that size.
        """
        known = self._speed_of(job)
        if open_up_to is not None:
            job = settle(job, choose_size(job, known, open_up_to), for_good=for_good)
        if known is not None:
            job = replace(job, curve=known.curve(job.curve, job.max))
        model = self._model
        if model is not None:
            expected = model.predict(JobFeatures.of(job))
            job = replace(job, work_s=expected.p50_s, expected=expected)
        return job

    def choose(self, job: Job, most: int) -> SizeChoice:
        """The size for a job whose user left it open, up to `most` GPUs."""
        return choose_size(job, self._speed_of(job), most)

    def knows(self, job: Job) -> bool:
        """Whether the speed of a job's application is known."""
        return self._speed_of(job) is not None

    def _speed_of(self, job: Job) -> KnownSpeed | None:
        return None if job.share else self.applications.of(job)

    def calibration(self) -> Calibration:
        return self._record.now()

    def advising(self, tell: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a function that tells the same with advice on every new job, for jobs that come as events."""

        def tell_advised(event: Event) -> None:
            if isinstance(event, JobSubmitted):
                event = replace(event, job=self.advise(event.job, open_up_to=None, for_good=False))
            tell(event)

        return tell_advised

    def _learn(self, running: RunningJobs, known: int) -> None:
        """Until it works, jobs are believed to take as long as before."""
        outcomes = [*self._durations.ended(), *running.outcomes()]
        self._model = learn(outcomes, boost=self._boost, previous=self._model) or self._model
        self._learned_count, self._next_learn_s = known, self._clock() + LEARN_AFTER_S

    def _save(self, version: int, speeds: object) -> None:
        self._settings.put(SETTING, json.dumps(speeds))
        self._saved_version, self._next_save_s = version, self._clock() + SAVE_EVERY_S
