"""One simulation from beginning to end: the engine on simulated machines, watched by a recorder."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from batuta.backends.sim.recorder import Recorder, job_results
from batuta.backends.sim.result import RunResult
from batuta.core.apply import apply
from batuta.core.arrays import FloatArray
from batuta.core.cluster import Node
from batuta.core.decide import STEPS, Rules
from batuta.core.event import Event, QuotaSet
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.engine.journal import NoJournal
from batuta.engine.loop import Cadence, Engine
from batuta.engine.ports import Backend, Journal


class SimulatedBackend(Backend, Protocol):
    """A backend that also knows the truth that reports need."""

    nodes: Sequence[Node]
    lost_gpu_s: dict[JobId, float]

    def opening(self) -> list[Event]: ...

    def alone_s(self, job: JobId, gpus: float) -> float:
        """Run time of a job alone on so many GPUs (a fraction means: that share of the time)."""
        ...

    def waiting(self) -> int: ...

    def close(self) -> None:
        """The run is over."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is called in its result, and how much of it is kept."""

    workload: str
    cluster: str
    seed: int = 0
    keep_segments: bool = True
    notes: tuple[str, ...] = ()
    quota: Quota = field(default_factory=Quota)
    """Who may use how much, from the beginning on."""


_WIDTH = len(STEPS) + 1
"""Marks of one cycle."""


@dataclass(slots=True)
class StepTimes:
    """Wall time of the steps of a cycle."""

    _marks: array[float] = field(default_factory=lambda: array("d"))
    """By cycle: when it began, then when each step was done. Worked out when the run is over."""
    _begun: float = 0.0

    def begin(self) -> None:
        self._begun = time.perf_counter()

    def after_step(self, step: str) -> None:
        if step == STEPS[0]:
            # Where quota is given out anew, what came before counts to this step.
            del self._marks[len(self._marks) - len(self._marks) % _WIDTH :]
            self._marks.append(self._begun)
        self._marks.append(time.perf_counter())

    def by_step_ms(self) -> FloatArray:
        """A row for each cycle, a column for each step. A cycle that was broken off is left out."""
        cycles = len(self._marks) // _WIDTH
        return np.diff(np.array(self._marks[: cycles * _WIDTH]).reshape(cycles, _WIDTH)) * 1e3


class _Progress:
    """Watches for the recorder, and tells how far the run is."""

    def __init__(
        self, recorder: Recorder, times: StepTimes, tell: Callable[[float, int], None] | None
    ) -> None:
        self._recorder = recorder
        # Straight through: these two are called for every event and every cycle.
        self.saw = recorder.saw
        self.deciding = times.begin
        self._tell = tell
        self._cycles = 0

    def postponed(self, world: World) -> None:
        self._recorder.look(world, world.now_s)

    def decided(self, world: World, plan: Plan) -> None:
        self._recorder.look(world, plan.time_s)
        self._cycles += 1
        if self._tell is not None and self._cycles % 256 == 0:
            self._tell(plan.time_s, len(world.past))


def simulate(
    backend: SimulatedBackend,
    rules: Rules,
    setting: Setting,
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
    journal: Journal | None = None,
    tell: Callable[[float, int], None] | None = None,
    watch: Callable[[World, Plan], None] | None = None,
    explains: bool | None = None,
) -> RunResult:
    """Runs a workload to its end, or until interrupted: then the result says that it is not complete.

    Plans say why each job has what it has if `explains` is set; None: if a journal or `watch` sees them.
    """
    if explains is None:
        explains = journal is not None or watch is not None
    rules = replace(rules, explains=explains)
    world, recorder, times = World(), Recorder(setting.keep_segments), StepTimes()
    journal = journal or NoJournal()
    opening = backend.opening()
    if setting.quota:
        opening.append(QuotaSet(0.0, setting.quota))
    for event in opening:
        journal.append(event)
        apply(world, event)
    watcher = _Progress(recorder, times, tell)
    if watch is not None:
        watcher = _Watched(recorder, times, tell, watch)
    engine = Engine(world, backend, rules, journal, watcher, cadence, times.after_step)
    begun_cpu_s = time.process_time()
    complete = True
    try:
        engine.run()
    except KeyboardInterrupt:
        complete = False
    cpu_s = time.process_time() - begun_cpu_s
    backend.close()
    recorder.close(world)
    timeline = recorder.timeline()
    step_ms = times.by_step_ms()
    notes = list(setting.notes)
    if complete and backend.waiting():
        notes.append(f"{backend.waiting()} jobs were never started")
    return RunResult(
        policy=rules.policy.name,
        workload=setting.workload,
        cluster=setting.cluster,
        seed=setting.seed,
        gpus=sum(node.gpus for node in backend.nodes),
        jobs=job_results(world, timeline, recorder, backend.lost_gpu_s, backend.alone_s),
        timeline=timeline,
        segments=tuple(recorder.segments),
        decide_ms=step_ms.sum(axis=1),
        step_ms=dict(zip(STEPS, (step_ms.sum(axis=0) / max(len(step_ms), 1)).tolist(), strict=True)),
        cpu_s=cpu_s,
        events=recorder.events,
        complete=complete,
        notes=tuple(notes),
    )


class _Watched(_Progress):
    """Also shows every plan to somebody, for the story of one job."""

    def __init__(
        self,
        recorder: Recorder,
        times: StepTimes,
        tell: Callable[[float, int], None] | None,
        watch: Callable[[World, Plan], None],
    ) -> None:
        super().__init__(recorder, times, tell)
        self._watch = watch

    def decided(self, world: World, plan: Plan) -> None:
        super().decided(world, plan)
        self._watch(world, plan)
