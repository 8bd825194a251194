"""The demo's jobs: the task files, and the same jobs as the simulator has them."""

import itertools
import sys
from pathlib import Path

import pytest
import yaml

from batuta.backends.sim.experiment import Experiment, run_experiment
from batuta.backends.sim.result import RunResult
from batuta.backends.sim.traces import batuta_jsonl
from batuta.backends.sim.traces.trace_format import RIGID_OPTIONS, TraceFile
from batuta.backends.sim.workload import Workload
from batuta.core.job import JobKind, JobState
from batuta.demo.scenario import DEMO, demo_workload
from batuta.policies.registry import DEFAULT_POLICY
from batuta.spec.cluster import read_cluster
from batuta.spec.task import parse_task
from batuta.spec.task_elastic import Checkpoint, find_kind
from batuta.spec.task_job import check_fits, task_to_job

NODES = read_cluster("2x4")
TASKS = [parse_task(arrival.task_yaml_text) for arrival in DEMO]


def workload(*, rigid: bool = False) -> Workload:
    return batuta_jsonl.read_batuta(TraceFile(Path("demo"), demo_workload(rigid=rigid)), RIGID_OPTIONS)


def test_jobs_arrive_over_two_minutes():
    times = [arrival.at_s for arrival in DEMO]
    assert times == sorted(times)
    assert times[0] == 0
    assert 60 <= times[-1] <= 120
    assert len({task.name for task in TASKS}) == len(DEMO)


def test_tasks_run_with_this_python_and_say_nothing_that_is_not_used():
    for task in TASKS:
        assert dict(task.envs) == {"PYTHON": sys.executable}
        assert task.notes == ()
        assert find_kind(task.run) is JobKind.SCRIPT


def test_a_python_with_quotes_and_spaces_in_its_path(monkeypatch):
    from batuta.demo import scenario

    odd = '/a "b" \\c: d/python'
    monkeypatch.setattr(sys, "executable", odd)
    assert yaml.safe_load(scenario._with_this_python(DEMO[0].task_yaml_text))["envs"] == {"PYTHON": odd}


def test_there_is_one_of_each_sort():
    elastic = [task.elastic for task in TASKS]
    assert any(one.min_nodes == 1 and one.max_nodes == 8 for one in elastic)
    assert any(one.min_nodes >= 2 and one.max_nodes > one.min_nodes for one in elastic)
    rigid = [one for one in elastic if one.min_nodes == one.max_nodes]
    assert len(rigid) == 2
    assert all((one.checkpoint is Checkpoint.ON_SIGNAL) == (one not in rigid) for one in elastic)


def test_the_workload_has_the_same_jobs_as_the_task_files():
    jobs = workload().jobs
    assert len(jobs) == len(TASKS)
    for arrival, task, own in zip(DEMO, TASKS, jobs, strict=True):
        real = task_to_job(task, task.name, arrival.at_s, nodes=NODES)
        assert not check_fits(real, NODES)
        for name in (
            "id",
            "name",
            "submit_s",
            "size",
            "min",
            "max",
            "gpus_per_replica",
            "kind",
            "application",
        ):
            assert getattr(own.job, name) == getattr(real, name), name
        assert own.work_s == own.job.work_s  # the scheduler is told the truth
        assert own.curve.at(1) == 1
    for own in workload(rigid=True).jobs:
        assert own.job.min == own.job.max == own.job.size


def test_jobs_scale_differently():
    gains = {own.job.id: own.curve.at(4) for own in workload().jobs}
    assert gains["vision"] > 3.8
    assert gains["tabular"] < 1.6


def simulated(folder: Path, policy: str, *, rigid: bool = False) -> RunResult:
    path = folder / f"{rigid}.jsonl"
    path.write_text(demo_workload(rigid=rigid))
    return run_experiment(Experiment(policy=policy, workload=str(path), cluster="2x4", keep_segments=True))


def mean_jct_s(run: RunResult) -> float:
    return sum(job.jct_s for job in run.jobs) / len(run.jobs)


@pytest.mark.parametrize("policy", ["rent", "elastic-fifo", "elastic-srjf", "elastic-tiresias", "afs-l", "ffdl"])
def test_within_two_and_a_half_minutes_and_sooner_than_without_elasticity(policy, tmp_path):
    elastic, rigid = simulated(tmp_path, policy), simulated(tmp_path, "fifo", rigid=True)
    assert all(job.state is JobState.SUCCEEDED for job in (*elastic.jobs, *rigid.jobs))
    assert max(job.end_s for job in elastic.jobs) < 150
    assert mean_jct_s(elastic) < mean_jct_s(rigid)


def test_the_story_that_the_demo_tells(tmp_path):
    """Under the policy that `batuta up` begins with: the cluster filled, shrinking, growing, giving way."""
    run = simulated(tmp_path, DEFAULT_POLICY)
    sizes: dict[str, list[int]] = {}
    for part in sorted(run.segments, key=lambda part: part.start_s):
        sizes.setdefault(part.job, []).append(part.gpus)
    vision = sizes["vision"]
    steps = list(itertools.pairwise(vision))
    assert vision[0] == 8
    assert min(vision) <= 3
    assert any(after < before for before, after in steps)
    assert any(after > before for before, after in steps)
    assert sizes["eval"] == [4]
    # A short job of one size need not wait, though the cluster is full: a longer one gives way to it.
    assert {job.id for job in run.jobs if job.preemptions}
