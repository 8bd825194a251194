"""One simulation from beginning to end: the engine on a simulated backend, with a recorder."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from batuta.backends.sim.recorder import Recorder, job_results
from batuta.backends.sim.result import RunResult
from batuta.core.arrays import FloatArray
from batuta.core.cluster import Node
from batuta.core.decide import STEPS, SchedulerProfile
from batuta.core.event import Event, QuotaSet
from batuta.core.job import JobId
from batuta.core.plan import Plan
from batuta.core.quota import DEFAULT_QUEUE, Quota, rest_of, tell_rest
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld, NoJournal
from batuta.engine.loop import Cadence, Engine
from batuta.engine.ports import Backend, Journal


class SimulatedBackend(Backend, Protocol):
    """A simulated backend, which also knows the truth that reports need."""

    nodes: Sequence[Node]
    lost_gpu_s: dict[JobId, float]

    def opening(self) -> list[Event]: ...

    def alone_s(self, job: JobId, gpus: float) -> float:
        """Run time of a job alone on this many GPUs (a fraction: that share of the time)."""
        ...

    def waiting(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The names of a run in its result, its quota, and how much is recorded."""

    workload: str
    cluster: str
    seed: int = 0
    keep_segments: bool = True
    notes: tuple[str, ...] = ()
    quota: Quota = field(default_factory=Quota)


_WIDTH = len(STEPS) + 1  # time stamps of one cycle


class _RunRecorder(Recorder):
    """Records a whole run: also the wall time of each step of a cycle. It passes plans on to the callbacks."""

    def __init__(
        self,
        keep_segments: bool,
        tell: Callable[[float, int], None] | None,
        watch: Callable[[World, Plan], None] | None,
    ) -> None:
        super().__init__(keep_segments)
        self._tell, self._watch = tell, watch
        self._cycles = 0
        self._begun = 0.0
        self._marks = array("d")
        """By cycle: when it began, then when each step was done. Worked out when the run is over."""

    def deciding(self) -> None:
        self._begun = time.perf_counter()

    def step_done(self, step: str) -> None:
        if step == STEPS[0]:
            # A cycle that admits again restarts its steps: what came before counts to this step.
            del self._marks[len(self._marks) - len(self._marks) % _WIDTH :]
            self._marks.append(self._begun)
        self._marks.append(time.perf_counter())

    def decided(self, world: World, plan: Plan) -> None:
        self.look(world, plan.time_s)
        self._cycles += 1
        if self._tell is not None and self._cycles % 256 == 0:
            self._tell(plan.time_s, len(world.past))
        if self._watch is not None:
            self._watch(world, plan)

    def by_step_ms(self) -> FloatArray:
        """A row for each cycle, a column for each step. A cycle that was interrupted is left out."""
        cycles = len(self._marks) // _WIDTH
        return np.diff(np.array(self._marks[: cycles * _WIDTH]).reshape(cycles, _WIDTH)) * 1e3


def simulate(
    backend: SimulatedBackend,
    rules: SchedulerProfile,
    setting: RunOptions,
    cadence: Cadence = Cadence(),  # noqa: B008  (frozen)
    journal: Journal | None = None,
    tell: Callable[[float, int], None] | None = None,
    watch: Callable[[World, Plan], None] | None = None,
    explains: bool | None = None,
) -> RunResult:
    """Runs a workload to its end, or until interrupted: then the result says that it is not complete.

    `tell` hears of the progress now and then, `watch` sees every plan. Plans explain each decision if
    `explains` is set; None: if a journal or `watch` sees them.
    """
    if explains is None:
        explains = journal is not None or watch is not None
    rules = replace(rules, explains=explains)
    world, recorder = World(), _RunRecorder(setting.keep_segments, tell, watch)
    opening = backend.opening()
    if setting.quota:
        opening.append(QuotaSet(0.0, setting.quota))
    state = JournaledWorld(world, journal or NoJournal())
    state.record_all(opening)
    engine = Engine(state, backend, rules, recorder, cadence)
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
    step_ms = recorder.by_step_ms()
    notes = list(setting.notes)
    if complete and backend.waiting():
        notes.append(f"{backend.waiting()} jobs were never started")
        if rest_of(world.effective_quota) and any(job.queue == DEFAULT_QUEUE for job in world.jobs.jobs):
            notes.append(tell_rest(world.effective_quota))
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
