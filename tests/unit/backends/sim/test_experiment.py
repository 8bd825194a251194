"""Names from the command line become collaborators, and experiments become results."""

from dataclasses import replace
from pathlib import Path

import pytest

from batuta.backends.sim.experiment import (
    Experiment,
    cadence_for,
    default_cluster,
    run_experiment,
    run_experiments,
    workload_of,
)
from batuta.backends.sim.result import RunResult, summarise
from batuta.backends.sim.workload import Workload
from batuta.core.decide import SchedulerProfile
from batuta.engine.loop import Cadence
from batuta.engine.profile import find_policy, placer_for, profile_for
from batuta.placement.most_free import MostFreePlacer
from batuta.placement.placer import TopologyPlacer
from batuta.placement.whole_nodes import WholeNodePlacer
from batuta.policies.fifo import Fifo
from batuta.policies.registry import policy_names, policy_summaries
from batuta.spec.cluster import read_cluster
from batuta.spec.problem import InputError
from tests.support.deep import deep

SAMPLE = Experiment(policy="elastic-srjf", workload="sample", cluster="2x4", elastic="1:4", limit=12)
ONE_CLASS = """
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class {name}:
    name: str = "{name}"

    def allocate(self, view):
        return np.zeros(len(view), dtype=np.int64)
"""


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


# --------------------------------------------------------------------------------------------------- policies


def test_a_policy_is_found_by_its_name() -> None:
    assert find_policy("fifo") == Fifo()
    assert [find_policy(name).name for name in policy_names()] == policy_names()


def test_an_unknown_name_is_an_input_error_with_a_hint() -> None:
    with pytest.raises(InputError, match=r"unknown policy 'fifi' \(did you mean fifo\?\)"):
        find_policy("fifi")


def test_a_policy_is_found_in_a_file(policy_file: Path) -> None:
    policy_file.write_text(ONE_CLASS.format(name="Idle"))
    assert find_policy(str(policy_file)).name == "Idle"
    assert find_policy(f"{policy_file}:Idle").name == "Idle"


def test_of_several_classes_one_has_to_be_named(policy_file: Path) -> None:
    policy_file.write_text(ONE_CLASS.format(name="Idle") + ONE_CLASS.format(name="Lazy"))
    assert find_policy(f"{policy_file}:Lazy").name == "Lazy"
    with pytest.raises(InputError, match=r"must have one class with allocate.*, found Idle, Lazy"):
        find_policy(str(policy_file))
    with pytest.raises(InputError, match=r"has no policy class Eager \(it has: Idle, Lazy\)"):
        find_policy(f"{policy_file}:Eager")


def test_an_imported_class_is_no_policy_of_the_file(policy_file: Path) -> None:
    policy_file.write_text("from batuta.policies.fifo import Fifo\n" + ONE_CLASS.format(name="Idle"))
    assert find_policy(str(policy_file)).name == "Idle"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def allocate(:", "SyntaxError"),
        ("import batuta_no_such_module", "No module named 'batuta_no_such_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "found none"),
        ("class A:\n    def __init__(self, n): pass\n    def allocate(self, view): pass", r"A\(\) failed"),
        ("class A:\n    def allocate(self, view): pass", "A is no policy: it needs a name"),
    ],
)
def test_a_broken_file_is_an_input_error_that_says_why(policy_file: Path, text: str, why: str) -> None:
    policy_file.write_text(text)
    with pytest.raises(InputError, match=why) as caught:
        find_policy(str(policy_file))
    assert str(policy_file) in str(caught.value)


def test_a_file_that_is_not_there_is_an_input_error(policy_file: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        find_policy(str(policy_file))


def test_a_file_can_be_run_like_any_policy(policy_file: Path) -> None:
    policy_file.write_text(ONE_CLASS.format(name="Idle"))
    run = run_experiment(replace(SAMPLE, policy=str(policy_file)))
    assert run.policy == "Idle"
    assert run.notes[-1] == "12 jobs were never started"


# ---------------------------------------------------------------------------------------- what goes with them


def test_the_replays_are_placed_as_their_authors_did_goodput_tight_and_all_others_by_topology() -> None:
    assert placer_for(find_policy("tiresias-replay").traits) == MostFreePlacer(by_size=False)
    assert placer_for(find_policy("optimus-replay").traits) == MostFreePlacer(by_size=True)
    for name in policy_names():
        if not name.endswith("-replay"):
            kind = WholeNodePlacer if name in ("rent", "rent-pure", "pollux", "sia") else TopologyPlacer
            assert isinstance(placer_for(find_policy(name).traits), kind)


def test_the_replays_neither_weigh_nor_freeze_and_others_do_unless_told_otherwise() -> None:
    def habits(rules: SchedulerProfile) -> tuple[bool, bool]:
        return rules.costs.enabled, rules.costs.freeze_transitions

    assert habits(profile_for("tiresias-replay")) == (False, False)
    assert habits(profile_for("afs-l")) == (True, True)
    assert habits(profile_for("afs-l", weigh=False, freeze=False)) == (False, False)


def test_policies_whose_order_changes_with_time_alone_decide_every_minute() -> None:
    assert cadence_for(SAMPLE, find_policy("tiresias")) == Cadence(every_s=60)
    assert cadence_for(SAMPLE, find_policy("fifo")) == Cadence()
    rounds = replace(SAMPLE, round_s=30.0, min_interval_s=5.0)
    assert cadence_for(rounds, find_policy("tiresias")) == Cadence(round_s=30, min_interval_s=5)


@pytest.mark.parametrize(
    ("name", "format", "cluster"),
    [("sample", "batuta", "8x4"), ("workload-6", "pollux", "16x4:T4"), ("mine", "philly", None)],
)
def test_workloads_that_were_made_for_a_cluster_have_it_by_default(name: str, format: str, cluster: str | None) -> None:
    assert default_cluster(Workload(name, format, ())) == cluster


def test_the_default_clusters_are_clusters_and_the_sample_has_one() -> None:
    cluster = default_cluster(workload_of(SAMPLE))
    assert cluster is not None
    assert sum(node.gpus for node in read_cluster(cluster)) == 32
    assert sum(node.gpus for node in read_cluster("16x4:T4")) == 64


# ------------------------------------------------------------------------------------------------ experiments


def found(run: RunResult) -> object:
    """All of a result but what it took to find it."""
    told = summarise(run)
    for effort in ("cpu_s", "decide_ms"):
        told.pop(effort)
    return deep([told, run.jobs, run.segments, run.timeline, run.seed])


def test_an_experiment_gives_the_same_result_again() -> None:
    assert found(run_experiment(SAMPLE)) == found(run_experiment(SAMPLE))
    assert found(run_experiment(SAMPLE)) != found(run_experiment(replace(SAMPLE, seed=1)))


def test_failures_and_locality_are_part_of_an_experiment() -> None:
    harmed = run_experiment(replace(SAMPLE, failures="mtbf=2h,mttr=20m"))
    assert len(set(harmed.timeline.capacity_gpus.tolist())) > 1
    far = run_experiment(replace(SAMPLE, cluster="8x1", locality=0.5))
    near = run_experiment(replace(SAMPLE, cluster="8x1"))
    assert sum(job.jct_s for job in far.jobs) > sum(job.jct_s for job in near.jobs)


def test_in_parallel_experiments_give_the_same_results_in_the_same_order() -> None:
    experiments = [
        # The first takes longest, so the order in which they are done is another one.
        *(replace(SAMPLE, policy=policy, limit=limit) for policy, limit in (("afs-l", 60), ("fifo", 3))),
        *(replace(SAMPLE, seed=seed) for seed in (1, 2)),
    ]
    advanced: list[int] = []
    serial = run_experiments(experiments, 1, lambda: advanced.append(1))
    parallel = run_experiments(experiments, 2, lambda: advanced.append(2))
    assert [run.policy for run in parallel] == ["afs-l", "fifo", "elastic-srjf", "elastic-srjf"]
    assert [run.seed for run in parallel] == [0, 0, 1, 2]
    assert list(map(found, parallel)) == list(map(found, serial))
    assert advanced == [1] * 4 + [2] * 4


def test_every_policy_is_told_in_a_plain_sentence() -> None:
    for name, summary in policy_summaries():
        assert summary.endswith("."), name
        assert "`" not in summary, f"{name}: names of fields say nothing to who chooses a policy"
