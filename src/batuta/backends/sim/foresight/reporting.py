"""Simulated machines whose jobs say how much they have left as soon as they run, as real ones do."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from batuta.backends.sim.machine import SimBackend
from batuta.core import event as ev
from batuta.core.command import Command
from batuta.core.job import JobId


@dataclass(slots=True)
class ReportingMachines:
    """A backend around another one."""

    machines: SimBackend
    reporting: Set[JobId]
    """The jobs that report."""

    def next_events(self, until_s: float | None) -> list[ev.Event]:
        return self._with_reports(self.machines.next_events(until_s))

    def execute(self, commands: Sequence[Command], now_s: float) -> list[ev.Event]:
        return self._with_reports(self.machines.execute(commands, now_s))

    def quiet(self) -> bool:
        return self.machines.quiet()

    def alone_s(self, job: JobId, gpus: float) -> float:
        return self.machines.alone_s(job, gpus)

    def _with_reports(self, events: list[ev.Event]) -> list[ev.Event]:
        started = [
            event for event in events if isinstance(event, ev.JobStarted) and event.job in self.reporting
        ]
        ended = {event.job for event in events if isinstance(event, ev.JobEnded)}
        return events + [
            ev.JobProgressed(event.time_s, event.job, self.machines.told_left_s(event.job))
            for event in started
            if event.job not in ended
        ]
