"""Runs jobs as processes on this machine, and reports to the engine what becomes of them.

`execute` only records the desired placements; `next_events` waits for runner events and drives each job
towards its placement (job_run.py). Everything that must outlive the server is on disk before it matters, so
`resume` finds it again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from batuta.backends.local.addresses import PortReservations
from batuta.backends.local.containers import ContainerRuntimes
from batuta.backends.local.context import GpuOccupancy, JobContext, Timing, gpus_of
from batuta.backends.local.files import DirectoryPool, TrashCollector
from batuta.backends.local.job_environment import inherited_env, sdk_folder
from batuta.backends.local.job_files import JobFiles, folder_name, jobs_with_runs
from batuta.backends.local.job_manager import ExpectedJob, JobManager, clear_runs, recover
from batuta.backends.local.job_run import JobRun, server_fault
from batuta.backends.local.limits import LocalLimits
from batuta.backends.local.mounts import sweep_mount_points
from batuta.backends.local.processes import RunningReplica
from batuta.backends.local.replica_plan import Device, GpuInjector, HostGpus, Machine
from batuta.backends.local.supervisor.process_tree import CannotTell
from batuta.backends.local.tenants import Tenants, WrongAccount
from batuta.backends.local.watch import RunnerEvent, Watch
from batuta.core.cluster import Node, NodeName, Placement
from batuta.core.curve import power_curve
from batuta.core.event import Event, JobEnded
from batuta.core.job import Job, JobId, JobState
from batuta.core.job_table import Phase
from batuta.core.plan import Command, Preempt, Stop
from batuta.engine.fence import Fence
from batuta.engine.ports import EventBuffer, JournalUnavailable, SteadyClock
from batuta.engine.stragglers.rank_watch import RankRules
from batuta.spec.problem import InputError
from batuta.spec.task import Task
from batuta.spec.task_job import LONGEST_CURVE, PRIOR_EXPONENT

_LONGEST_WAIT_S = 3600.0
_log = logging.getLogger(__name__)


def _clear_all(files: JobFiles) -> None:
    clear_runs(files, files.run_numbers())
    files.tidy()


class LocalBackend:
    """Carries commands out as processes. For the engine's thread; `wake` and what is for people, for all."""

    def __init__(  # noqa: PLR0913  (all but three have a default)
        self,
        root: Path,
        nodes: Sequence[Node],
        tasks: Callable[[JobId], tuple[Task, Job]],
        *,
        devices: Mapping[NodeName, Sequence[Device]] | None = None,
        gpu_injector: GpuInjector | None = None,
        containers: ContainerRuntimes | None = None,
        limits: LocalLimits | None = None,
        on_result: Callable[[JobId, str], None] | None = None,
        inherited: Mapping[str, str] | None = None,
        since_s: float = -math.inf,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        ranks: RankRules = RankRules(),  # noqa: B008  (frozen)
        fence: Fence | None = None,
        journal: str = "",
        tenants: Tenants | None = None,
    ) -> None:
        """Files lie below `root`. `tasks` says what a job runs, and its job; it may raise KeyError or InputError.

        `devices` names each node's GPUs as CUDA knows them, numbers or UUIDs; without it they are numbered
        within their node. `gpu_injector` is what programs need beside that, `containers` runs tasks that have
        an image, `limits` are what replicas may have at most. `inherited` is passed on to jobs, by default what is
        harmless of the server's environment.
        `on_result` gets a job's return value as JSON, before the job's end is told. `since_s` is the World's
        time: should the clock have been set back since, events go on from there. `ranks` says when ranks hold
        a job up. `fence` is around what jobs can do without: the measuring of their speed, say. `journal` is
        the id of the journal that knows the jobs, for their folders. `tenants` says as whom jobs run; without it all
        run as the user of this process.
        """
        self.root = root.absolute()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tasks = tasks
        self._tenants = tenants
        self._clock = SteadyClock(time.time, since_s)
        self._inbox: queue.SimpleQueue[RunnerEvent | None] = queue.SimpleQueue()
        self._events = EventBuffer()
        self._later: list[Callable[[], None]] = []
        self._deferred: dict[JobId, list[Callable[[], None]]] = {}
        """By job: what could not be done yet, because its files could not be read."""
        self._retry_s = math.inf
        self._given: dict[JobId, Placement] = {}  # what commands of this moment give, to be taken from others
        doorbell = self.root / "doorbell"
        fence = fence or Fence()
        self._watch = Watch(self._inbox.put, doorbell, fence=fence)
        self._trash = TrashCollector(self.root, fence, None if tenants is None else tenants.area)
        occupancy = GpuOccupancy()
        gpu_injector = gpu_injector or HostGpus()
        self._jobs = JobManager(occupancy, timing, gpu_injector.is_ready, fence)
        machine = Machine(
            {node.name: index for index, node in enumerate(nodes)},
            devices or {node.name: range(node.gpus) for node in nodes},
            inherited_env(os.environ) if inherited is None else inherited,
            doorbell,
            sdk_folder(self.root),
            gpu_injector,
            containers or ContainerRuntimes(),
            limits,
            tenants,
        )
        self.context = JobContext(
            machine,
            PortReservations(),
            timing,
            occupancy,
            emit=self._events.append,
            watch=self._watch_replica,
            later=self._later.append,
            on_result=on_result,
            directory_pool=DirectoryPool(self.root, self._trash.call, journal),
            ranks=ranks,
        )

    def resume(self, living: Mapping[JobId, ExpectedJob]) -> None:
        """Takes up what a former server left, once, before anything else. What it finds is said as events."""
        sweep_mount_points()
        try:
            found = [(job, self._files(job)) for job, _ in jobs_with_runs(self.root)]
        except CannotTell as problem:
            raise OSError(f"the folders of jobs cannot be read: {problem}") from problem
        for job, files in found:
            if job not in living:
                self._attempt(job, partial(_clear_all, files))
        for job, expected in living.items():
            self._attempt(job, partial(self._recover, job, expected))

    def _recover(self, job: JobId, expected: ExpectedJob) -> None:
        files, (placement, phase), now_s = self._files(job), expected, self._clock()
        if placement is None and phase is not Phase.STOPPING and not files.run_numbers():
            return  # nothing is wanted of it, and nothing of it runs
        job_run = self._job_run(job, now_s)
        if job_run is None:
            clear_runs(files, files.run_numbers())
        else:
            recover(job_run, files, expected, now_s)
            self._jobs.touch(job_run)

    def _attempt(self, job: JobId, do: Callable[[], None]) -> None:
        """Does something for a job, after all that waits to be done for it; later if its files cannot be read now."""
        waiting = self._deferred.setdefault(job, [])
        waiting.append(do)
        try:
            while waiting:
                waiting[0]()
                waiting.pop(0)
        except CannotTell as problem:
            self._retry_s = min(self._retry_s, self._clock() + self.context.timing.retry_s)
            _log.warning("job %s has to wait: %s", job, problem, extra={"job": job})
        else:
            del self._deferred[job]

    def _retry_deferred(self, now_s: float) -> None:
        if now_s >= self._retry_s:
            self._retry_s = math.inf
            for job in list(self._deferred):
                self._attempt(job, lambda: None)
            self._take_from_others()

    def execute(self, commands: Sequence[Command], now_s: float) -> Sequence[Event]:
        """Notes what is wanted. It is begun with at the next call of `next_events`."""
        for command in commands:
            self._attempt(command.job, partial(self._want, command, now_s))
        self._take_from_others()
        return ()

    def _take_from_others(self) -> None:
        given, self._given = self._given, {}
        self._jobs.take_from_others(given)

    def _want(self, command: Command, now_s: float) -> None:
        job_run = self._known_job_run(command.job, now_s)
        if job_run is None:
            return
        if isinstance(command, Stop):
            job_run.is_ending, job_run.wanted = True, None
        elif isinstance(command, Preempt):
            job_run.wanted = None
        else:
            job_run.wanted = self._given[command.job] = command.placement
        self._jobs.touch(job_run)

    def next_events(self, until_s: float | None) -> Sequence[Event]:
        self._do_later()
        woken = False
        while True:
            now_s = self._clock()
            self._retry_deferred(now_s)
            self._jobs.drive(now_s)
            if self._events:
                return self._events.take(until_s, now_s)
            if until_s is not None and now_s >= until_s:
                return self._events.nothing_until(until_s, now_s)
            if woken:
                return []
            next_s = min(self._jobs.next_s(), self._retry_s)
            woken = self._wait(next_s if until_s is None else min(next_s, until_s))

    def changed(self, job: Job) -> None:
        """The user has changed the request: speed is to be told up to its new largest size."""
        job_run = self._jobs.runs.get(job.id)
        if job_run is not None:
            job_run.change(job)

    def lost(self, node: NodeName, gpu: int, placed: Collection[JobId]) -> None:
        """A GPU has failed. Jobs that are not `placed` elsewhere leave it; others are told where to go."""
        for job_run in self._jobs.runs.values():
            wanted = job_run.wanted
            if wanted is not None and job_run.job.id not in placed and (node, gpu) in gpus_of(wanted):
                job_run.wanted = None
                self._jobs.touch(job_run)

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
            self._jobs.close(self._clock(), within_s, self._clock, self._wait)
        self._watch.close()
        self._trash.close()

    def log_path(self, job: JobId, rank: int = 0) -> Path:
        return JobFiles(self.root, job).log(rank)

    def progress_path(self, job: JobId) -> Path:
        return self._files(job).progress

    def ranks(self, job: JobId) -> list[int]:
        """The ranks that have ever logged something."""
        return JobFiles(self.root, job).ranks()

    def result(self, job: JobId) -> str | None:
        """The job's return value as JSON; None when it gave none."""
        return JobFiles(self.root, job).read_result()

    def forget(self, job: JobId) -> None:
        """Removes all files of a job that is over, its logs and checkpoints too."""
        if job in self._jobs.runs:
            raise ValueError(f"job {job} is not over")
        self._files(job).remove()
        self._trash.call()

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
                    self._jobs.hear(news)
                news = self._inbox.get_nowait()
        except queue.Empty:
            return woken

    def _do_later(self) -> None:
        """What had to wait until all was durable: the engine asks for more only then."""
        for do in self._later:
            self._trash.call(do)
        self._later.clear()

    def _known_job_run(self, job: JobId, now_s: float) -> JobRun | None:
        """The run state of a job, with all that it has reported. None when that is its end."""
        is_new = job not in self._jobs.runs
        try:
            job_run = self._job_run(job, now_s)
            if is_new and job_run is not None:
                job_run.remember(now_s)
        except CannotTell:
            self._jobs.runs.pop(job, None)
            raise
        except Exception as error:
            # An unexpected error ends one job, and not all.
            _log.exception("job %s is given up before it has begun", job, extra={"job": job})
            self._jobs.runs.pop(job, None)
            self._events.append(JobEnded(now_s, job, JobState.FAILED, detail=server_fault(error)))
            return None
        return job_run

    def _job_run(self, job: JobId, now_s: float) -> JobRun | None:
        """The run state of a job. None when its task is not known; then that is its end."""
        job_run = self._jobs.runs.get(job)
        if job_run is None:
            try:
                task, known = self._tasks(job)
            except (KeyError, InputError) as problem:
                detail = f"what it runs is not known: {problem}"
                self._events.append(JobEnded(now_s, job, JobState.FAILED, detail=detail))
                return None
            except JournalUnavailable as problem:
                raise CannotTell(str(problem)) from problem
            # The World's job may have a curve that was measured, and the meter would learn from itself.
            known = replace(known, curve=power_curve(min(known.max, LONGEST_CURVE), PRIOR_EXPONENT))
            job_run = self._jobs.runs[job] = JobRun(self.context, self._files(job, known.user), task, known)
        return job_run

    def _files(self, job: JobId, user: str | None = None) -> JobFiles:
        """The files of a job that has begun, or of one that is to begin as this user."""
        tenants, name = self._tenants, folder_name(job)
        if tenants is None:
            return JobFiles(self.root, job)
        found = tenants.find(name)
        # What began as the server's own user before there were others is not begun again as another.
        if found is None and user is not None and not JobFiles(self.root, job).folder.exists():
            with contextlib.suppress(WrongAccount):  # said when it is started
                account = tenants.account(user)
                found = None if account is None else tenants.folder(name, account)
        return JobFiles(self.root, job, found)

    def _watch_replica(self, replica: RunningReplica, job: JobId, rank: int) -> None:
        self._jobs.owners[replica.run_id] = (job, rank)
        self._watch.add(replica)
