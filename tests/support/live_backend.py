"""An instant machine for a running engine: starts at once, ends when told."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from batuta.core import event as ev
from batuta.core.cluster import Placement
from batuta.core.job import JobId, JobState, Progress
from batuta.core.plan import Command, Preempt, Stop


class InstantBackend:
    """A LiveBackend whose jobs run as soon as they are commanded to; whatever else happens, a test says."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._events: list[ev.Event] = []
        self._woken = False
        self.running: dict[JobId, Placement] = {}
        """What runs where, as far as commands say."""
        self.slow_s = 0.0
        """How long each command takes to begin."""

    # ------------------------------------------------------------------------------------------ LiveBackend

    def next_events(self, until_s: float | None) -> Sequence[ev.Event]:
        with self._changed:
            while not self._events and not self._woken:
                left_s = None if until_s is None else until_s - self._clock()
                if left_s is not None and left_s <= 0:
                    return (ev.TimePassed(until_s or 0.0),)
                self._changed.wait(left_s)
            found, self._events, self._woken = self._events, [], False
            return found

    def quiet(self) -> bool:
        return False

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[ev.Event]:
        done: list[ev.Event] = []
        for command in commands:
            time.sleep(self.slow_s)
            if isinstance(command, Stop):
                self.running.pop(command.job, None)
                done.append(ev.JobEnded(now_s, command.job, JobState.CANCELLED))
            elif isinstance(command, Preempt):
                self.running.pop(command.job, None)
            else:
                self.running[command.job] = command.placement
                done.append(ev.JobStarted(now_s, command.job))
        return done

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    # ----------------------------------------------------------------------------------------- what tests say

    def tell(self, *events: ev.Event) -> None:
        """Lets something happen."""
        with self._changed:
            self._events += events
            self._changed.notify_all()

    def end(
        self,
        job: JobId,
        state: JobState = JobState.SUCCEEDED,
        exit_code: int | None = 0,
        detail: str = "",
    ) -> None:
        self.running.pop(job, None)
        self.tell(ev.JobEnded(self._clock(), job, state, exit_code=exit_code, detail=detail))

    def interrupt(self, job: JobId, wait_s: float = 0.0, exit_code: int = 1) -> None:
        """The job crashes, and may be tried again after a while."""
        self.running.pop(job, None)
        now_s = self._clock()
        self.tell(ev.JobInterrupted(now_s, job, not_before_s=now_s + wait_s, exit_code=exit_code))

    def progress(self, job: JobId, remaining_s: float, progress: Progress) -> None:
        self.tell(ev.JobProgressed(self._clock(), job, remaining_s, progress=progress))


class PlainFiles:
    """The files of jobs below one folder: logs/JOB/RANK.log and progress/JOB.jsonl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def log_path(self, job: JobId, rank: int) -> Path:
        return self._folder / "logs" / job / f"{rank}.log"

    def ranks(self, job: JobId) -> list[int]:
        folder = self._folder / "logs" / job
        return sorted(int(path.stem) for path in folder.glob("*.log")) if folder.is_dir() else []

    def progress_path(self, job: JobId) -> Path:
        return self._folder / "progress" / f"{job}.jsonl"

    def write_log(self, job: JobId, text: str | bytes, rank: int = 0) -> None:
        _append(self.log_path(job, rank), text)

    def write_progress(self, job: JobId, text: str) -> None:
        _append(self.progress_path(job), text)


def _append(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
