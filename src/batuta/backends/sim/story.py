"""The story of one job: every time the answer to "why does it have what it has?" changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from batuta.core.job import JobId
from batuta.core.plan import Decision, Plan
from batuta.core.reason import Reason
from batuta.core.world import World


@dataclass(frozen=True, slots=True)
class Chapter:
    """From this time on, this was the decision."""

    time_s: float
    decision: Decision
    command: str
    """What was done to the job at that moment; empty when nothing was."""


@dataclass(slots=True)
class Story:
    """Collects the decisions on one job while a simulation runs."""

    job: JobId
    chapters: list[Chapter] = field(default_factory=list)

    def watch(self, world: World, plan: Plan) -> None:
        decision = plan.decisions.of(self.job)
        if decision is None:
            return
        if decision.reason is Reason.IN_TRANSITION:
            return  # The command that began it has been told already.
        done = next((c for c in plan.commands if c.job == self.job), None)
        told = f"{type(done).__name__.lower()}: {done.reason.sentence(done.evidence)}" if done else ""
        last = self.chapters[-1].decision if self.chapters else None
        if done is None and last is not None and (last.reason, last.gpus) == (decision.reason, decision.gpus):
            return
        self.chapters.append(Chapter(plan.time_s, decision, told))
