"""Jobs that wait for a trial: who is held, why, and with what they are let in."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import admit_all
from batuta.backends.kube.operator.workqueue import Changed, WriteFn, WriteQueue
from batuta.backends.kube.trial.controller import TrialController, TrialGate
from batuta.backends.kube.trial.model import TRIAL_RUN, TrialRun
from batuta.backends.kube.trial.reconciler import TrialContext
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.backends.kube.unified_job.to_job import read_request
from batuta.core import event as ev
from batuta.core.job import DesiredState, SizeChoice
from batuta.core.quota import ClusterQueue, LocalQueue, Quota
from batuta.core.world import World
from tests.support.unified_jobs import ON_CPU, unified_job

WANTED = {names.TRIAL: "true"}
ROW = {"unit": "samples", "state": "measured"}


class House:
    """The gate with its desk, and what they have written and said."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.said: list[ev.Event] = []
        self.observed, self.world = ObjectCache(), World()
        self.writes = WriteQueue(self._post)
        self.known = True
        self.most: Callable[[Any], int] = lambda job: 4
        bench = TrialContext(
            self.observed,
            self.world,
            self.writes,
            self.said.append,
            self._most,
            lambda job: self.known,
        )
        self.desk = TrialController(bench, lambda job: None)
        self.desk.take(Changed(TRIAL_RUN, ()), 0.0)
        unknown: Callable[[Any], SizeChoice] = lambda job: SizeChoice(1)  # noqa: E731
        self.gate = TrialGate(self.desk, admit_all, unknown, self.observed, self.world)

    def _most(self, job: Any) -> int:
        return self.most(job)

    def _post(self, asked: list[tuple[str, WriteFn]]) -> None:
        self.asked += [key for key, _ in asked]

    def turn(self) -> None:
        self.desk.drive(1_767_225_605.0)
        self.writes.send()

    def asks(self, uj: UnifiedJob, is_inside: bool = False, wish: DesiredState = DesiredState.RUN):
        self.observed.unified_jobs[uj.id] = uj
        passed = self.gate(uj, replace(read_request(uj, {}), wish=wish), is_inside)
        self.turn()
        return passed

    def has_trial(self, uj: UnifiedJob, reason: str = "", *rows: dict[str, Any]) -> None:
        """A trial of a job, over for this reason if any."""
        conditions = [{"type": "Complete", "status": "True" if reason else "False"}]
        status = {"reason": reason, "conditions": conditions, "eachSeconds": 60, "runs": list(rows)}
        meta = {
            "name": uj.metadata.name,
            "namespace": uj.metadata.namespace,
            "uid": "t1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"kind": names.KIND, "name": uj.metadata.name, "uid": uj.metadata.uid}],
        }
        body = {"metadata": meta, "spec": {"jobName": uj.metadata.name}, "status": status}
        run = msgspec.convert(body, TrialRun)
        self.observed.unified_jobs[uj.id] = uj
        self.desk.take(Changed(TRIAL_RUN, [Change(ChangeType.ADDED, run, None)]), 0.0)
        self.turn()


@pytest.fixture
def house() -> House:
    return House()


def test_a_job_that_says_nothing_passes(house):
    assert house.asks(unified_job()).asked.job is not None
    assert house.asked == []


def test_a_job_that_shall_be_tried_out_waits_and_its_trial_is_made(house):
    passed = house.asks(unified_job(annotations=WANTED))
    assert passed.asked.job is None
    assert passed.waiting is not None
    assert passed.waiting.reason == "InTrial"
    assert house.asked == ["trial-run/team-a/resnet//make"]


def test_its_queue_may_want_that_and_the_job_goes_first(house):
    queue, door = ClusterQueue("team", trial=True), LocalQueue("default", "team", "team-a")
    house.world.quota = Quota(cluster_queues=(queue,), local_queues=(door,))
    assert house.asks(unified_job()).waiting is not None
    assert house.asks(unified_job(annotations={names.TRIAL: "false"})).waiting is None


def test_a_job_without_gpus_is_not_held(house):
    assert house.asks(unified_job(replicas=ON_CPU, annotations=WANTED)).waiting is None


def test_a_share_a_run_of_a_trial_and_a_job_inside_are_not_held(house):
    share = unified_job(replicas={"maxReplicas": 1}, sharing={"gpuCompute": 50}, annotations=WANTED)
    assert house.asks(share).waiting is None
    run = unified_job(name="other", annotations=WANTED)
    run.metadata.labels[names.TRIAL_RUN] = "resnet"
    assert house.asks(run).waiting is None
    assert house.asks(unified_job(annotations=WANTED), is_inside=True).waiting is None


def test_a_job_that_is_suspended_is_tried_out_later(house):
    passed = house.asks(unified_job(annotations=WANTED), wish=DesiredState.PARK)
    assert passed.waiting is not None
    assert passed.waiting.reason == "Suspended"
    assert house.asked == []


def test_where_the_cluster_knows_no_trials_nobody_waits(house):
    house.desk.is_served = False
    assert house.asks(unified_job(annotations=WANTED)).waiting is None


def test_it_is_let_in_with_the_sizes_that_fit_and_the_one_that_is_best(house):
    uj = unified_job(annotations=WANTED | {names.WANTED: names.ANY_SIZE}, replicas={"maxReplicas": 4})
    measured = ({"gpus": n, "unitsPerSecond": str(90 * n), **ROW} for n in (2, 4))
    rows = ({"gpus": 1, "state": "out of memory"}, *measured)
    house.has_trial(uj, "Measured", *rows)
    passed = house.asks(uj)
    assert passed.asked.job is not None
    assert (passed.asked.job.min, passed.asked.job.max) == (2, 4)
    choice = house.gate.choose(passed.asked.job)
    assert choice is not None
    assert (choice.gpus, choice.trial) == (4, True)


def test_while_the_trial_goes_on_no_size_is_chosen(house):
    uj = unified_job(annotations=WANTED | {names.WANTED: names.ANY_SIZE})
    job = read_request(uj, {}).job
    house.has_trial(uj)
    assert job is not None
    assert house.gate.choose(job) is None


def test_a_job_that_fits_nowhere_is_held_until_somebody_says_otherwise(house):
    uj = unified_job(annotations=WANTED, replicas={"maxReplicas": 1})
    house.has_trial(uj, "OutOfMemory", {"gpus": 1, "state": "out of memory"})
    passed = house.asks(uj)
    assert passed.waiting is not None
    assert (passed.waiting.reason, "up to 1 GPUs" in passed.waiting.message) == ("OutOfMemory", True)
    assert house.asks(unified_job(annotations={names.TRIAL: "false"})).waiting is None


def test_a_trial_that_nobody_waits_for_any_more_is_taken_away(house):
    house.has_trial(unified_job(annotations=WANTED))
    house.asks(unified_job(annotations={names.TRIAL: "false"}))
    assert "trial-run/team-a/resnet//unmake" in house.asked


def test_what_a_lost_journal_knew_is_told_again_from_the_cluster(house):
    house.known = False
    house.has_trial(unified_job(), "Measured", {"gpus": 1, "unitsPerSecond": "90", **ROW})
    (told,) = house.said
    assert isinstance(told, ev.TrialMeasured)
    assert (told.measured.application, told.measured.units_per_s) == ("resnet", 90.0)


def test_another_trial_of_the_same_name_is_in_the_way_and_holds_nobody_up(house):
    other = msgspec.convert(
        {"metadata": {"name": "resnet", "namespace": "team-a"}, "spec": {"jobName": "bert"}}, TrialRun
    )
    house.desk.take(Changed(TRIAL_RUN, [Change(ChangeType.ADDED, other, None)]), 0.0)
    assert house.asks(unified_job(annotations=WANTED)).waiting is None


def test_the_trial_of_a_job_before_it_that_had_its_name_is_waited_for_until_it_is_gone(house):
    """Given a job that was deleted and made again at once, then it is tried out as the first one was."""
    house.has_trial(unified_job(annotations=WANTED), "Measured", {"gpus": 1, "unitsPerSecond": "90", **ROW})
    again = unified_job(annotations=WANTED)
    again.metadata.uid = "another"
    passed = house.asks(again)
    assert passed.waiting is not None
    assert passed.waiting.reason == "InTrial"
    assert house.asked == ["trial-run/team-a/resnet//unmake"]
    left = msgspec.convert({"metadata": {"name": "resnet", "namespace": "team-a", "uid": "t1"}}, TrialRun)
    house.desk.take(Changed(TRIAL_RUN, [Change(ChangeType.DELETED, left, None)]), 0.0)
    assert house.asks(again).waiting is not None
    assert house.asked[1:] == ["trial-run/team-a/resnet//make"]


def test_a_trial_that_the_operator_cannot_handle_is_given_up_and_its_job_goes_on(house: House):
    """Given a fault of the operator in one trial, then that one ends with the reason, and another goes on."""
    broken, sound = (unified_job(name=name, annotations=WANTED) for name in ("broken", "sound"))

    def most(job: Any) -> int:
        if job.id == broken.id:
            raise ZeroDivisionError("a case that was forgotten")
        return 4

    house.most = most
    for uj in (broken, sound):
        house.has_trial(uj)
    first, second = (house.desk.trial_of(uj) for uj in (broken, sound))
    assert first is not None
    assert first.conclusion is not None
    assert (first.conclusion.reason, "forgotten" in first.conclusion.message) == ("OperatorFault", True)
    assert second is not None
    assert second.conclusion is None
    assert house.asks(broken).waiting is None
    assert house.asks(sound).waiting is not None
