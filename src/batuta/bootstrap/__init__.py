"""The only package that wires others together: names from the command line become collaborators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from batuta.backends.sim.goodput.backend import Tuning
    from batuta.backends.sim.result import RunResult
    from batuta.backends.sim.run import SimulatedBackend
    from batuta.backends.sim.workload import Experiment, Workload
    from batuta.core.cluster import Node
    from batuta.core.plan import Plan
    from batuta.core.policy import Policy
    from batuta.core.quota import Quota
    from batuta.core.world import World
    from batuta.engine.loop import Cadence
    from batuta.engine.ports import Journal
    from batuta.spec.problem import Problem

DEFAULT_POLICY = "rent"
DEFAULT_CLUSTERS = {"sample": "8x4", "pollux": "16x4:T4"}
"""For workloads that were made for a certain cluster."""
GOODPUT_ROUND_S = 60.0
"""The goodput model is defined in rounds; these are its authors'."""


@lru_cache(maxsize=8)
def _load_workload(
    path: str, format: str | None, elastic: str, speed: str, profiles: str | None = None
) -> Workload:
    """Reads a workload once per process."""
    from batuta.backends.sim.traces.reader import read_workload
    from batuta.backends.sim.traces.trace_format import Elasticity, TraceOptions

    folder = Path(profiles) if profiles else None
    return read_workload(path, format, TraceOptions(Elasticity.parse(elastic, speed), profiles=folder))


def workload_of(experiment: Experiment) -> Workload:
    """The workload that an experiment names, as it is in its source."""
    return _load_workload(
        experiment.workload, experiment.format, experiment.elastic, experiment.speed, experiment.profiles
    )


def cluster_nodes(text: str) -> tuple[Node, ...]:
    from batuta.spec.cluster import read_cluster

    return read_cluster(text)


def quota_for(experiment: Experiment) -> Quota:
    """The quota of an experiment, or all that is wrong with its file."""
    from pathlib import Path

    from batuta.core.quota import Quota
    from batuta.spec.kueue.change import merge
    from batuta.spec.kueue.files import read_quota_files

    if experiment.queues is None:
        return Quota()
    return merge(Quota(), read_quota_files([Path(experiment.queues)]))


def default_cluster(workload: Workload) -> str | None:
    return DEFAULT_CLUSTERS.get(workload.name) or DEFAULT_CLUSTERS.get(workload.format)


def find_policy(name: str) -> Policy:
    """A policy by its name, or the one in a Python file; see `engine.profile`."""
    from batuta.engine.profile import find_policy

    return find_policy(name)


def cadence_for(experiment: Experiment, policy: Policy) -> Cadence:
    from batuta.engine.loop import Cadence

    every_s = policy.traits.decide_every_s if experiment.round_s is None else None
    return Cadence(experiment.round_s, experiment.min_interval_s, every_s=every_s)


def policy_summaries() -> list[tuple[str, str]]:
    """All policies, with a sentence on each."""
    from batuta.policies.registry import policy_summaries

    return policy_summaries()


def version() -> str:
    from importlib.metadata import version as installed

    return installed("batuta")


def run_experiment(
    experiment: Experiment,
    tell: Callable[[float, int], None] | None = None,
    watch: Callable[[World, Plan], None] | None = None,
    journal: Journal | None = None,
) -> RunResult:
    """Simulates one experiment from beginning to end."""
    from dataclasses import replace

    from batuta.backends.sim.run import RunOptions, simulate
    from batuta.backends.sim.workload import first_jobs, resample
    from batuta.engine.profile import profile_for
    from batuta.policies.checked import PolicyAnswerError
    from batuta.spec.problem import InputError

    workload = resample(first_jobs(workload_of(experiment), experiment.limit), experiment.seed)
    nodes = cluster_nodes(experiment.cluster)
    goodput = any(sim.goodput is not None for sim in workload.jobs)
    if goodput and experiment.round_s is None:
        experiment = replace(experiment, round_s=GOODPUT_ROUND_S)
    rules = profile_for(experiment.policy, experiment.weigh, freeze=not goodput)
    backend = (
        _goodput_backend(experiment, workload, nodes, rules.policy)
        if goodput
        else _event_backend(experiment, workload, nodes)
    )
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
        return simulate(backend, rules, setting, cadence, journal, tell, watch)
    except PolicyAnswerError as error:
        raise InputError.of(str(error)) from error


def _event_backend(experiment: Experiment, workload: Workload, nodes: Sequence[Node]) -> SimulatedBackend:
    from batuta.backends.sim.backend import SimBackend, SimOptions
    from batuta.backends.sim.workload import with_locality

    jobs = with_locality(workload.jobs, experiment.locality)
    options = SimOptions(restart_s=experiment.restart_s)
    return SimBackend(jobs, nodes, options, _failures(experiment, workload, nodes))


def _goodput_backend(
    experiment: Experiment, workload: Workload, nodes: Sequence[Node], policy: Policy
) -> SimulatedBackend:
    from batuta.backends.sim.goodput.backend import GoodputBackend, JobLengths
    from batuta.backends.sim.workload import profiles_beside
    from batuta.spec.problem import InputError

    folder = Path(experiment.profiles) if experiment.profiles else profiles_beside(experiment.workload)
    if folder is None:
        raise InputError.of(
            f"{experiment.workload}: this workload needs measured profiles and none were found beside it",
            fix="name their folder with --profiles DIR",
        )
    return GoodputBackend.of(
        workload.jobs,
        nodes,
        folder,
        round_s=experiment.round_s or GOODPUT_ROUND_S,
        restart_s=30.0 if experiment.restart_s is None else experiment.restart_s,
        knowledge=policy.traits.replay.knowledge or experiment.knowledge,
        tuning=_tuning(policy),
        lengths=JobLengths.parse(experiment.lengths, experiment.seed),
    )


def _tuning(policy: Policy) -> Tuning | None:
    """How jobs tune their batch size under this policy; None: not at all."""
    from batuta.backends.sim.goodput.backend import Tuning
    from batuta.backends.sim.goodput.model import Exploration

    traits = policy.traits.replay
    if not traits.adapts_batch:
        return None
    return Tuning(traits.every_size, Exploration(*traits.explores or ()))


def _failures(experiment: Experiment, workload: Workload, nodes: Sequence[Node]) -> Sequence[Any]:
    if experiment.failures is None:
        return ()
    from batuta.backends.sim.failures import read_failures

    horizon_s = 2 * max((sim.job.submit_s + sim.work_s for sim in workload.jobs), default=0.0)
    return read_failures(experiment.failures, nodes, horizon_s, experiment.seed)


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    from dataclasses import replace

    return replace(experiment, seed=seed)


def run_experiments(
    experiments: Sequence[Experiment], parallel: int, advance: Callable[[], None]
) -> list[RunResult]:
    """Runs all, some at a time; the results are in the order of the experiments.

    After Ctrl-C the results that are complete.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

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
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def check_outputs(report: Path | None, tables: Sequence[Path | None], problems: list[Problem]) -> None:
    """Looks at where results shall go before anything runs."""
    from batuta.report.result_files import NotWritable, check_path, check_results_path
    from batuta.spec.problem import Problem

    for path, check in ((report, check_path), *((table, check_results_path) for table in tables)):
        if path is not None:
            try:
                check(path)
            except NotWritable as error:
                problems.append(Problem(str(error)))


def write_results(
    runs: Sequence[RunResult],
    report: Path | None,
    jobs: Path | None,
    timeline: Path | None,
    command: Sequence[str],
    baseline: str | None = None,
) -> None:
    from batuta.report.page import Provenance, write_report
    from batuta.report.result_files import write_jobs, write_timeline

    if jobs is not None:
        write_jobs(jobs, runs)
    if timeline is not None:
        write_timeline(timeline, runs)
    if report is not None:
        write_report(report, runs, baseline=baseline, origin=Provenance(command=_command_line(command)))


def print_run(run: RunResult) -> None:
    from batuta.report.cli_table import run_view

    _console().print(run_view(run))


def print_comparison(runs: Sequence[RunResult], baseline: str) -> None:
    from batuta.report.cli_table import comparison_view
    from batuta.report.comparison import compare

    console = _console()
    console.print(comparison_view(compare(runs, baseline), width=console.width))


def comparison_json(runs: Sequence[RunResult], baseline: str) -> dict[str, object]:
    from batuta.report.comparison import compare, comparison_json

    return comparison_json(compare(runs, baseline))


def _console() -> Console:
    """As wide as the terminal; wide enough for a table where there is none, as in a pipe."""
    import sys

    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)


def _command_line(words: Sequence[str]) -> str:
    import shlex

    return shlex.join(["batuta", *words])
