"""Runs jobs as real processes on this machine, and tells the engine what becomes of them.

`execute` only notes what is wanted; `next_events` waits for news and drives each job towards it (job_run.py).
Everything that must outlive the server is on disk before it matters, so `resume` finds it again.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from batuta.backends.local.blanks import Blanks
from batuta.backends.local.equipment import Equipment, PlainGpus
from batuta.backends.local.job_files import JobFiles, jobs_with_runs
from batuta.backends.local.job_run import JobRun
from batuta.backends.local.job_voice import fault_of_ours
from batuta.backends.local.passed_env import passed_env
from batuta.backends.local.place_plan import Device, Machine
from batuta.backends.local.ports import PortReservations
from batuta.backends.local.processes import RunningReplica
from batuta.backends.local.recovery import Held, clear_runs, held_in, recover
from batuta.backends.local.site import Excuse, Occupancy, Site, Timing, gpus_of, no_excuse, no_hold_up
from batuta.backends.local.spec import DEFAULT_LOG_CAP_BYTES
from batuta.backends.local.trash import Janitor
from batuta.backends.local.watch import News, Watch
from batuta.backends.local.yard import Yard
from batuta.core.cluster import Node, NodeName, Placement, Span
from batuta.core.command import Command, Preempt, Stop
from batuta.core.curve import power_curve
from batuta.core.event import Event, JobEnded
from batuta.core.job import Job, JobId, JobState
from batuta.engine.clock import SteadyClock
from batuta.engine.said import Said
from batuta.engine.stragglers.rank_watch import HeldUp, RankRules
from batuta.spec.problem import InputError
from batuta.spec.task import Task
from batuta.spec.task_job import LONGEST_CURVE, PRIOR_EXPONENT, task_to_job

__all__ = ["Held", "LocalBackend", "Timing", "held_in"]

Known: TypeAlias = Task | tuple[Task, Job | str]
"""What is to be run; alone, with its job, or with its user. Its job is made from it where it is not given."""
_LONGEST_WAIT_S = 3600.0
_log = logging.getLogger(__name__)


class LocalBackend:
    """Carries commands out as processes. For the engine's thread; `wake` and what is for people, for all."""

    def __init__(  # noqa: PLR0913  (all but three have a default)
        self,
        root: Path,
        nodes: Sequence[Node],
        tasks: Callable[[JobId], Known],
        *,
        devices: Mapping[NodeName, Sequence[Device]] | None = None,
        equipment: Equipment | None = None,
        on_result: Callable[[JobId, str], None] | None = None,
        inherited: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        since_s: float = -math.inf,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        log_cap_bytes: int = DEFAULT_LOG_CAP_BYTES,
        ranks: RankRules = RankRules(),  # noqa: B008  (frozen)
    ) -> None:
        """Files lie below `root`. `tasks` says what a job runs; it may raise KeyError or InputError.

        `devices` names each node's GPUs as CUDA knows them, numbers or UUIDs; without it they are numbered
        within their node. `equipment` is what programs need beside that. `inherited` is passed on to jobs, by
        default what is harmless of the server's own environment.
        `on_result` gets a job's return value as JSON, before the job's end is told. `since_s` is the World's
        time: should the clock have been set back since, events go on from there. `ranks` says when ranks hold
        a job up.
        """
        self.root = root.absolute()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._nodes = tuple(nodes)
        self._tasks = tasks
        self._clock = SteadyClock(clock, since_s)
        self._inbox: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._said = Said()
        self._later: list[Callable[[], None]] = []
        self.excuse: Excuse = no_excuse
        """Asked about every job that has failed."""
        self.on_held_up: Callable[[HeldUp], None] = no_hold_up
        """Told of jobs that are held up by some of their ranks, in the engine's thread."""
        doorbell = self.root / "doorbell"
        self._watch = Watch(self._inbox.put, doorbell)
        self._janitor = Janitor(self.root)
        occupancy = Occupancy()
        equipment = equipment or PlainGpus()
        self._yard = Yard(occupancy, timing, equipment.is_ready)
        machine = Machine(
            {node.name: index for index, node in enumerate(self._nodes)},
            devices or {node.name: range(node.gpus) for node in self._nodes},
            passed_env(os.environ) if inherited is None else inherited,
            doorbell,
            log_cap_bytes,
            equipment,
        )
        self._site = Site(
            machine,
            PortReservations(),
            timing,
            occupancy,
            say=self._said.append,
            watch=self._watch_replica,
            later=self._later.append,
            on_result=on_result,
            blanks=Blanks(self.root, self._janitor.call),
            excuse=self._excuse,
            held_up=self._tell_held_up,
            ranks=ranks,
        )

    # ------------------------------------------------------------------------------- what the engine asks

    def resume(self, living: Mapping[JobId, Held]) -> None:
        """Takes up what a former server left, once, before anything else. What it finds is said as events."""
        now_s = self._clock()
        for job, files in jobs_with_runs(self.root):
            if job not in living:
                clear_runs(files, files.run_numbers())
                files.tidy()
        for job, held in living.items():
            files = JobFiles(self.root, job)
            if held.is_idle and not files.run_numbers():
                continue
            machine = self._machine(job, now_s)
            if machine is None:
                clear_runs(files, files.run_numbers())
            else:
                recover(machine, files, held, now_s)
                self._yard.touch(machine)

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        """Notes what is wanted. It is begun with at the next call of `next_events`."""
        given: dict[JobId, Placement] = {}
        for command in commands:
            machine = self._known_machine(command.job, now_s)
            if machine is None:
                continue
            if isinstance(command, Stop):
                machine.is_ending, machine.wanted = True, None
            elif isinstance(command, Preempt):
                machine.wanted = None
            else:
                machine.wanted = given[command.job] = command.placement
            self._yard.touch(machine)
        self._yard.take_from_others(given)
        return ()

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        self._do_later()
        woken = False
        while True:
            now_s = self._clock()
            self._yard.drive(now_s)
            if self._said:
                return self._said.take(until_s)
            if until_s is not None and now_s >= until_s:
                return self._said.nothing_until(until_s)
            if woken:
                return []
            next_s = self._yard.next_s()
            woken = self._wait(next_s if until_s is None else min(next_s, until_s))

    def changed(self, job: Job) -> None:
        """The user has changed the request: speed is to be told up to its new largest size."""
        machine = self._yard.machines.get(job.id)
        if machine is not None:
            machine.change(job)

    def lost(self, node: NodeName, gpu: int, placed: Collection[JobId]) -> None:
        """A GPU has failed. Jobs that are not `placed` elsewhere leave it; others are told where to go."""
        for machine in self._yard.machines.values():
            wanted = machine.wanted
            if wanted is not None and machine.job.id not in placed and (node, gpu) in gpus_of(wanted):
                machine.wanted = None
                self._yard.touch(machine)

    def quiet(self) -> bool:
        return False

    def wake(self) -> None:
        """Makes `next_events` return soon. May be called by any thread."""
        self._inbox.put(None)

    def shutdown(self, *, keep_jobs: bool, within_s: float = 120.0) -> None:
        """Ends this object's service: jobs go on, or are stopped so that they come back at the next start.

        Those are asked for a checkpoint and get their grace, but no more than `within_s` for all together.
        """
        self._do_later()
        if not keep_jobs:
            self._yard.close(self._clock(), within_s, self._clock, self._wait)
        self._watch.close()
        self._janitor.close()

    # ----------------------------------------------------------------------------------------- for people

    def log_path(self, job: JobId, rank: int = 0) -> Path:
        return JobFiles(self.root, job).log(rank)

    def progress_path(self, job: JobId) -> Path:
        return JobFiles(self.root, job).progress

    def ranks(self, job: JobId) -> list[int]:
        """The ranks that have ever logged something."""
        return JobFiles(self.root, job).ranks()

    def result(self, job: JobId) -> str | None:
        """The job's return value as JSON; None when it gave none."""
        return JobFiles(self.root, job).read_result()

    def forget(self, job: JobId) -> None:
        """Removes all files of a job that is over, its logs and checkpoints too."""
        if job in self._yard.machines:
            raise ValueError(f"job {job} is not over")
        JobFiles(self.root, job).remove()
        self._janitor.call()

    # --------------------------------------------------------------------------------------- how it works

    def _wait(self, until_s: float) -> bool:
        """Waits for news, at most until a time; whether it was woken."""
        timeout_s = min(max(0.0, until_s - self._clock()), _LONGEST_WAIT_S)
        woken = False
        try:
            news = self._inbox.get(timeout=timeout_s)
            while True:
                if news is None:
                    woken = True
                else:
                    self._yard.hear(news)
                news = self._inbox.get_nowait()
        except queue.Empty:
            return woken

    def _do_later(self) -> None:
        """What had to wait until all was durable: the engine asks for more only then."""
        for do in self._later:
            self._janitor.call(do)
        self._later.clear()

    def _known_machine(self, job: JobId, now_s: float) -> JobRun | None:
        """The machine of a job, with all that it has reported. None when that is its end."""
        is_new = job not in self._yard.machines
        try:
            machine = self._machine(job, now_s)
            if is_new and machine is not None:
                machine.remember(now_s)
        except Exception as error:
            # What nobody thought of is the end of one job, and not of all.
            _log.exception("job %s is given up before it has begun", job, extra={"job": job})
            self._yard.machines.pop(job, None)
            self._said.append(JobEnded(now_s, job, JobState.FAILED, detail=fault_of_ours(error)))
            return None
        return machine

    def _machine(self, job: JobId, now_s: float) -> JobRun | None:
        """The machine of a job. None when nobody knows what the job runs; then that is its end."""
        machine = self._yard.machines.get(job)
        if machine is None:
            try:
                task, known = self._known(job)
            except (KeyError, InputError) as problem:
                detail = f"what it runs is not known: {problem}"
                self._said.append(JobEnded(now_s, job, JobState.FAILED, detail=detail))
                return None
            machine = JobRun(self._site, JobFiles(self.root, job), task, known)
            self._yard.machines[job] = machine
        return machine

    def _known(self, job: JobId) -> tuple[Task, Job]:
        found = self._tasks(job)
        task, about = found if isinstance(found, tuple) else (found, "")
        if isinstance(about, Job):
            # The World's job may have a curve that was measured, and the meter would learn from itself.
            prior = power_curve(min(about.max, LONGEST_CURVE), PRIOR_EXPONENT)
            return task, replace(about, curve=prior)
        return task, task_to_job(task, job, 0.0, user=about, nodes=self._nodes)

    def _excuse(self, job: JobId, workers: Sequence[Span], since_s: float) -> str:
        return self.excuse(job, workers, since_s)

    def _tell_held_up(self, found: HeldUp) -> None:
        self.on_held_up(found)

    def _watch_replica(self, replica: RunningReplica, job: JobId, rank: int) -> None:
        self._yard.owners[replica.run_id] = (job, rank)
        self._watch.add(replica)
