"""When a job has other places: its members go on, some come or go, or another run begins."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.operator.run_state import Places, PodSet, RunState
from batuta.core.cluster import Span
from tests.support.unified_jobs import unified_job

UJ = unified_job()
ELASTIC, RIGID = BUILT_IN["TorchElastic"], BUILT_IN["Pods"]


def places(*gpus: int, node: str = "n") -> Places:
    return tuple(Span(node, (gpu,)) for gpu in gpus)


class Job:
    """One that has come to its places, and whose members all run there."""

    def __init__(self, *gpus: int, kind: Any = ELASTIC) -> None:
        self.kind = kind
        self.crew = PodSet(UJ.metadata.uid)
        self.stand = RunState(self.crew)
        assert self.aim(*gpus)
        for replica in range(len(gpus)):
            self.show(replica, "Running")
        self.settle()

    def aim(self, *gpus: int) -> bool:
        """Whether another run begins."""
        return self.stand.aim(UJ, self.kind, places(*gpus))

    def show(self, replica: int, phase: str = "Pending", node: str = "n") -> None:
        """A member of the run, that waits for its place or has one."""
        assert self.stand.run is not None
        labels = {names.START: str(self.stand.run.start), names.REPLICA_INDEX: str(replica)}
        meta = {"name": f"resnet-{replica}", "namespace": "team-a", "labels": labels}
        spec = {} if phase == "Pending" else {"nodeName": node}
        self.crew.see(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod))

    def settle(self) -> None:
        self.stand.stood = self.stand.ran = self.stand.places
        self.stand.has_started = True

    def keeps_members(self, *gpus: int) -> bool:
        return self.stand.keeps_members(UJ, self.kind, places(*gpus))

    @property
    def run(self) -> Run:
        assert self.stand.run is not None
        return self.stand.run


def test_a_first_run_is_start_0():
    assert Job(0, 1).run == Run(2, 0, 2, 8)


def test_the_same_places_change_nothing():
    job = Job(0, 1)
    assert not job.aim(0, 1)
    assert job.stand.has_started


def test_an_elastic_job_grows_with_its_members():
    job = Job(0, 1)
    assert job.keeps_members(0, 1, 2)
    assert not job.aim(0, 1, 2)
    assert (job.run.start, job.run.target) == (0, 3)
    assert job.stand.stood == places(0, 1)
    assert not job.stand.has_started


@pytest.mark.parametrize("gpus", [(0, 3), (2, 3, 4)], ids=["elsewhere", "larger, elsewhere"])
def test_members_that_move_are_another_start(gpus):
    job = Job(0, 1)
    assert not job.keeps_members(*gpus)
    assert job.aim(*gpus)
    assert job.run.start == 1
    assert job.stand.stood == job.stand.ran == ()


def test_a_job_that_cannot_grow_in_place_starts_anew():
    job = Job(0, 1, kind=RIGID)
    assert not job.keeps_members(0, 1, 2)
    assert job.aim(0, 1, 2)
    assert job.run.start == 1


def test_a_growth_is_taken_back_while_nobody_has_come_for_it():
    job = Job(0, 1)
    job.aim(0, 1, 2)
    job.show(2)
    assert job.keeps_members(0, 1)
    assert not job.aim(0, 1)
    assert (job.run.start, job.run.target) == (0, 2)


def test_a_growth_cannot_be_taken_back_when_somebody_who_came_for_it_runs():
    job = Job(0, 1)
    job.aim(0, 1, 2)
    job.show(2, "Running")
    assert not job.keeps_members(0, 1)
    assert job.aim(0, 1)
    assert job.run.start == 1


def test_pods_that_have_no_place_yet_may_have_any():
    job = Job()
    assert job.aim(0, 1)
    job.show(0)
    job.show(1)
    assert not job.aim(4, 5)
    assert (job.run.start, job.stand.places) == (1, places(4, 5))


def test_members_that_were_told_to_end_do_not_serve_for_the_next_run():
    job = Job(0, 1)
    job.stand.is_spent = True
    assert not job.keeps_members(0, 1)
    assert job.aim(0, 1)
    assert job.run.start == 1


class TestGoingBack:
    """New members got no seats: the job stays as it stood, if it still does."""

    @pytest.fixture
    def growing(self) -> Job:
        job = Job(0, 1)
        job.aim(0, 1, 2)
        job.show(2)
        return job

    def test_it_stays_as_it_stood(self, growing):
        assert growing.stand.can_go_back(ELASTIC)
        assert growing.stand.go_back().workers(1) == places(0, 1)
        assert growing.run.target == 2
        assert growing.stand.has_started

    def test_but_not_when_one_of_them_was_made_again_and_waits_itself(self, growing):
        growing.show(1)
        assert not growing.stand.can_go_back(ELASTIC)

    def test_nor_when_somebody_else_has_bound_that_one_elsewhere(self, growing):
        growing.show(1, "Running", node="other")
        assert not growing.stand.can_go_back(ELASTIC)


class TestMuster:
    """Who of a run is there."""

    def test_those_without_a_node_wait_for_their_places(self):
        job = Job(0, 1)
        job.aim(0, 1, 2)
        job.show(2)
        found = job.stand.gang_status(ELASTIC)
        assert [seat.place for seat in found.waiting] == [Span("n", (2,))]
        assert (found.is_full, found.is_exact, found.are_seated, found.have_begun) == (
            True,
            True,
            False,
            False,
        )

    def test_while_one_is_too_many_the_run_is_not_exact(self):
        job = Job(0, 1)
        job.aim(0, 1, 2)
        job.show(2)
        job.aim(0, 1)
        found = job.stand.gang_status(ELASTIC)
        assert (found.is_full, found.is_exact, found.are_seated) == (True, False, True)

    def test_who_had_a_place_and_is_gone_is_lost(self):
        job = Job(0, 1)
        job.crew.lose("team-a/resnet-1")
        found = job.stand.gang_status(ELASTIC)
        assert (found.lost, found.is_full) == ((1,), False)

    def test_who_was_bound_to_another_node_is_astray(self):
        job = Job(0, 1)
        job.show(1, "Running", node="other")
        assert job.stand.gang_status(ELASTIC).astray == (1, "other")
