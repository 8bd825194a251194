"""A backend on trial: two jobs on one node, what to expect of it in time, and everything it has said.

A rig is a way to make a backend with two equal jobs, `a` and `b`, that are submitted at once and each fit on
one GPU of the node `n0`, which has two. Real ones take real seconds, so a rig names its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from batuta.core import event as ev
from batuta.core.job import JobId
from batuta.core.plan import Command
from batuta.engine.ports import Backend


@dataclass
class Rig:
    """A backend with two jobs, and everything it has said."""

    backend: Backend
    step_s: float
    """How long one look at it may take."""
    run_s: float
    """About how long a job runs on one GPU, without its start."""
    tolerance_s: float
    """How much of a run a checkpoint may miss, and times may be off."""
    falls_quiet: bool = True
    """A real machine never does: something may always happen."""
    patience_s: float = 0.0
    """How long to wait for what should come at once, on a busy machine."""
    close: Callable[[], None] = lambda: None
    said: list[ev.Event] = field(default_factory=list)
    now_s: float = 0.0

    def look(self, until_s: float | None) -> Sequence[ev.Event]:
        events = self.backend.next_events(until_s)
        self.said += events
        self.now_s = max([self.now_s, *(event.time_s for event in events)])
        return events

    def do(self, *commands: Command) -> None:
        self.said += self.backend.execute(commands, self.now_s)

    def wait(self, done: Callable[[], bool], at_most_s: float) -> None:
        """Looks on until something is the case."""
        for _ in self.until(done, at_most_s):
            assert self.look(self.now_s + self.step_s)

    def until(self, done: Callable[[], bool], at_most_s: float) -> Iterator[None]:
        """One turn after the other until something is the case; somebody has to look in each of them."""
        end_s = self.now_s + at_most_s
        while not done():
            assert self.now_s < end_s + self.patience_s, f"not within {at_most_s} s; said: {self.said}"
            yield

    def idle(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.wait(lambda: self.now_s >= end_s, 2 * seconds)

    def wait_for_jobs(self) -> None:
        """Looks on until both are submitted."""
        self.wait(lambda: sum(isinstance(event, ev.JobSubmitted) for event in self.said) == 2, 10 * self.run_s)

    def wait_for_start(self, job: JobId, times: int = 1) -> None:
        self.wait(lambda: len(self.starts(job)) >= times, 10 * self.run_s)

    def wait_for_end(self, job: JobId) -> None:
        self.wait(lambda: bool(self.ends(job)), 10 * self.run_s)

    def starts(self, job: JobId) -> list[float]:
        return [event.time_s for event in self.said if isinstance(event, ev.JobStarted) and event.job == job]

    def ends(self, job: JobId) -> list[float]:
        return [event.time_s for event in self.said if isinstance(event, ev.JobEnded) and event.job == job]
