"""An experiment: names and numbers from the command line become one simulated run, or several in parallel."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from batuta.backends.sim.backend import SimBackend, SimOptions
from batuta.backends.sim.failures import FailureRecord, read_failures
from batuta.backends.sim.goodput.backend import GoodputBackend, JobLengths, Tuning
from batuta.backends.sim.goodput.model import Exploration
from batuta.backends.sim.result import RunResult
from batuta.backends.sim.run import RunOptions, SimulatedBackend, simulate
from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions
from batuta.backends.sim.workload import Workload, profiles_beside, resample, with_locality
from batuta.core.cluster import Node
from batuta.core.plan import Plan
from batuta.core.policy import Policy
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.engine.loop import Cadence
from batuta.engine.profile import profile_for
from batuta.policies.checked import PolicyAnswerError
from batuta.spec.cluster import read_cluster
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_files
from batuta.spec.problem import InputError

DEFAULT_CLUSTERS = {"sample": "8x4", "pollux": "16x4:T4"}  # for workloads that were made for a certain cluster
GOODPUT_ROUND_S = 60.0  # the goodput model is defined in rounds; these are its authors'


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run: all that changes its outcome, as names and numbers that another process can be sent."""

    policy: str
    workload: str
    cluster: str
    format: str | None = None
    elastic: str = "rigid"
    speed: str = "linear"
    limit: int | None = None  # only this many jobs, the first ones
    seed: int = 0
    round_s: float | None = None
    min_interval_s: float = 0.0
    restart_s: float | None = None
    weigh: bool = True
    profiles: str | None = None
    knowledge: str = "history"
    lengths: str = "1"  # shares of their epochs that jobs of a goodput replay run for, as `0.2-1`
    failures: str | None = None
    queues: str | None = None  # a file of quota; None: no quota
    keep_segments: bool = True
    locality: float = 1.0  # factor on the speed of a job whose GPUs lie on more than one node


@lru_cache(maxsize=8)
def _load_workload(path: str, format: str | None, elastic: str, speed: str, profiles: str | None = None) -> Workload:
    """Reads a workload once per process."""
    folder = Path(profiles) if profiles else None
    return read_workload(path, format, TraceOptions(Elasticity.parse(elastic, speed), profiles=folder))


def workload_of(experiment: Experiment) -> Workload:
    """The workload that an experiment names, as it is in its source."""
    return _load_workload(
        experiment.workload, experiment.format, experiment.elastic, experiment.speed, experiment.profiles
    )


def quota_for(experiment: Experiment) -> Quota:
    """The quota of an experiment, or all that is wrong with its file."""
    if experiment.queues is None:
        return Quota()
    return merge(Quota(), read_quota_files([Path(experiment.queues)]))


def default_cluster(workload: Workload) -> str | None:
    return DEFAULT_CLUSTERS.get(workload.name) or DEFAULT_CLUSTERS.get(workload.format)


def cadence_for(experiment: Experiment, policy: Policy) -> Cadence:
    every_s = policy.traits.decide_every_s if experiment.round_s is None else None
    return Cadence(experiment.round_s, experiment.min_interval_s, every_s=every_s)


def run_experiment(
    experiment: Experiment,
    tell: Callable[[float, int], None] | None = None,
    watch: Callable[[World, Plan], None] | None = None,
) -> RunResult:
    whole = workload_of(experiment)
    workload = resample(replace(whole, jobs=whole.jobs[: experiment.limit]), experiment.seed)
    nodes = read_cluster(experiment.cluster)
    goodput = any(sim.goodput is not None for sim in workload.jobs)
    if goodput and experiment.round_s is None:
        experiment = replace(experiment, round_s=GOODPUT_ROUND_S)
    rules = profile_for(experiment.policy, experiment.weigh, freeze=not goodput)
    backend: SimulatedBackend
    if goodput:
        backend = _goodput_backend(experiment, workload, nodes, rules.policy)
    else:
        jobs, failures = with_locality(workload.jobs, experiment.locality), _failures(experiment, workload, nodes)
        backend = SimBackend(jobs, nodes, SimOptions(restart_s=experiment.restart_s), failures)
    setting = RunOptions(
        workload=workload.name,
        cluster=experiment.cluster,
        seed=experiment.seed,
        keep_segments=experiment.keep_segments,
        notes=workload.notes,
        quota=quota_for(experiment),
    )
    cadence = cadence_for(experiment, rules.policy)
    try:
        return simulate(backend, rules, setting, cadence, tell=tell, watch=watch)
    except PolicyAnswerError as error:
        raise InputError.of(str(error)) from error


def _goodput_backend(
    experiment: Experiment, workload: Workload, nodes: Sequence[Node], policy: Policy
) -> GoodputBackend:
    folder = Path(experiment.profiles) if experiment.profiles else profiles_beside(experiment.workload)
    if folder is None:
        raise InputError.of(
            f"{experiment.workload}: this workload needs measured profiles and none were found beside it",
            fix="name their folder with --profiles DIR",
        )
    traits = policy.traits.replay
    tuning = Tuning(traits.every_size, Exploration(*traits.explores or ())) if traits.adapts_batch else None
    return GoodputBackend.of(
        workload.jobs,
        nodes,
        folder,
        round_s=experiment.round_s or GOODPUT_ROUND_S,
        restart_s=30.0 if experiment.restart_s is None else experiment.restart_s,
        knowledge=traits.knowledge or experiment.knowledge,
        tuning=tuning,
        lengths=JobLengths.parse(experiment.lengths, experiment.seed),
    )


def _failures(experiment: Experiment, workload: Workload, nodes: Sequence[Node]) -> Sequence[FailureRecord]:
    if experiment.failures is None:
        return ()
    horizon_s = 2 * max((sim.job.submit_s + sim.work_s for sim in workload.jobs), default=0.0)
    return read_failures(experiment.failures, nodes, horizon_s, experiment.seed)


def run_experiments(experiments: Sequence[Experiment], parallel: int, advance: Callable[[], None]) -> list[RunResult]:
    """Returns the results in the order of the experiments; after Ctrl-C, those that are complete."""
    found: dict[int, RunResult] = {}
    if parallel == 1 or len(experiments) == 1:
        for number, experiment in enumerate(experiments):
            run = run_experiment(experiment)
            if not run.complete:
                break
            found[number] = run
            advance()
        return list(found.values())
    pool = ProcessPoolExecutor(min(parallel, len(experiments)), initializer=_ignore_interrupts)
    try:
        numbers = {pool.submit(run_experiment, one): number for number, one in enumerate(experiments)}
        for done in as_completed(numbers):
            found[numbers[done]] = done.result()
            advance()
    except (KeyboardInterrupt, BrokenProcessPool):
        # Nothing is asked of the workers, which may be deep in a simulation: they are ended.
        for worker in multiprocessing.active_children():
            worker.kill()
    finally:
        # The pool's own thread has to notice that the workers are gone: before that, its pipe breaks at exit.
        pool.shutdown(wait=True, cancel_futures=True)
    return [found[number] for number in sorted(found)]


def _ignore_interrupts() -> None:
    """Ctrl-C goes to the whole process group; only the parent answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
