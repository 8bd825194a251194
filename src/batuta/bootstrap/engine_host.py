"""An engine with what stands around it in every process that runs one: journal, metrics, traces, forecasts, API."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from batuta import __version__
from batuta.api.dependencies import JobFiles, ServerDependencies
from batuta.api.scheduler_counters import SchedulerCounters
from batuta.bootstrap.forecast_process import ForecastProcess
from batuta.bootstrap.offline import account
from batuta.core.cluster import NodeName
from batuta.core.decide import SchedulerProfile
from batuta.core.job import JobId
from batuta.core.world import World
from batuta.engine.assembly import Assembly, AssemblyOptions
from batuta.engine.observers import Observer
from batuta.engine.profile import find_policy
from batuta.engine.service import Service
from batuta.engine.stragglers.controller import StragglerController
from batuta.policies.registry import policy_summaries
from batuta.report.gpu_usage_page import render_usage
from batuta.store.store import Store
from batuta.telemetry.exporter import Telemetry


class EngineHost:
    """What a local server and the leader of a cluster have in common. A subclass adds a backend."""

    telemetry: Telemetry

    def __init__(self, store: Store, options: AssemblyOptions) -> None:
        self.store = store
        self.assembly = Assembly(store, options)
        self.cycles = SchedulerCounters()
        self.foresight = ForecastProcess()

    @property
    def service(self) -> Service:
        return self.assembly.service

    @property
    def world(self) -> World:
        return self.assembly.world

    def build_service(
        self,
        told: Telemetry,
        observers: Iterable[tuple[str, Observer]],
        forget: Callable[[JobId], None],
        next_due_s: Callable[[World], float] = lambda _: math.inf,
    ) -> Service:
        """Puts the engine together, measured and logged: see `Assembly.build`."""
        self.telemetry = told
        measuring: list[tuple[str, Observer]] = [("metrics", self.cycles)]
        if told.trace is not None:
            measuring.insert(0, ("traces of cycles", told.trace))
        # The log is last: lines of all others belong to the cycle in which they are written.
        return self.assembly.build(measuring, [*observers, ("cycle log", told.log)], forget, next_due_s)

    def watch_stragglers(self, suspect: Callable[[NodeName, JobId, str], None]) -> StragglerController:
        """Judges the reports that the backend gives to its `found`; `suspect` hears of nodes that hold jobs up."""
        found = StragglerController(self.assembly.requests.ask, suspect)
        self.service.after_step("stragglers", found.after_step)
        return found

    def dependencies(
        self, files: JobFiles, policy: str, profile_of: Callable[[str], SchedulerProfile], **own: Any
    ) -> ServerDependencies:
        """What the API needs of this engine; `own` is what only this kind of server has."""
        journal, snapshots = self.store.journal, self.store.snapshots
        return ServerDependencies(
            *(self.service, self.store, files, policy, policy_summaries(), find_policy, profile_of),
            cycles=self.cycles,
            version=__version__,
            experience=self.assembly.history,
            account=lambda from_s, to_s: account(journal, snapshots, from_s, to_s, time.time()).plain(),
            account_page=render_usage,
            shadow=self.assembly.shadow,
            foresight=self.foresight,
            spans=self.telemetry.exporter,
            **own,
        )

    def end(self) -> None:
        """Ends the engine, then what stands around it. A subclass says what else that is in `own_parts`."""
        traces, forecasts = ("traces", self.telemetry.close), ("looking ahead", self.foresight.close)
        self.assembly.end([traces, *self.own_parts(), forecasts])

    def own_parts(self) -> Iterable[tuple[str, Callable[[], None]]]:
        return ()
