"""A gang that runs and whose new member is refused does not ask again and again."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import PodGroup, ReconcileContext, Timing
from batuta.backends.kube.operator.gang_reconciler import GangReconciler
from batuta.backends.kube.operator.gangs import gang_of
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.core.cluster import Placement, Span
from tests.support.kube.pods import make_gang

BACKOFF_S = Timing().refusal_backoff.first_s


class Gang:
    """Two pods that have been running on two GPUs of one node."""

    def __init__(self) -> None:
        self.asked: list[PodGroup] = []
        self.written: list[str] = []
        self.writes = WriteQueue(lambda asked: self.written.extend(key for key, _ in asked))
        site = ReconcileContext(Cluster(), self.writes, ObjectCache().owners(), lambda event: None, self.asked.append)
        pods = [self.pod(number) for number in (0, 1)]
        self.run = GangReconciler(site, gang_of(pods[0]))
        for pod in pods:
            self.run.see(pod)
        self.run.drive(0.0)
        self.run.want(Placement((Span("n", (0, 1)),)))
        self.run.drive(1.0)
        for number in (0, 1):
            self.run.see(self.pod(number, number))
        self.run.drive(2.0)
        self.asked.clear()

    def pod(self, number: int, gpu: int | None = None) -> objects.Pod:
        """With a GPU it runs; else it waits."""
        body: dict[str, Any] = make_gang("g", 2)[number]
        body["metadata"] |= {"namespace": "a", "uid": f"{number} {gpu}"}
        body["status"] = {"phase": "Pending" if gpu is None else "Running"}
        resources = body["spec"]["containers"][0]["resources"]
        resources["requests"] |= resources["limits"]
        if gpu is not None:
            body["spec"]["nodeName"] = "n"
            body["metadata"]["annotations"] = {**body["metadata"]["annotations"], names.GPUS: str(gpu)}
        return msgspec.convert(body, objects.Pod)

    def drive(self, now_s: float) -> int:
        """How often it asks for seats now."""
        self.asked.clear()
        self.run.drive(now_s)
        self.writes.send()
        return len(self.asked)


@pytest.fixture
def gang() -> Gang:
    return Gang()


def test_a_member_that_was_made_again_is_given_its_old_place(gang):
    gang.run.see(gang.pod(1))
    assert gang.drive(10.0) == 1
    ((seat,),) = (group.placements for group in gang.asked)
    assert seat.place == Span("n", (1,))


def test_if_it_is_refused_it_asks_again_after_a_pause_that_grows(gang):
    """Given a place that others have taken, the floor must come to an end of its turn."""
    gang.run.see(gang.pod(1))
    gang.drive(10.0)
    gang.run.refused("no GPU is free", ["n"], 10.0)
    assert gang.drive(10.0) == 0
    assert gang.run.due_s == 10.0 + BACKOFF_S
    assert gang.drive(10.0 + BACKOFF_S) == 1
    gang.run.refused("no GPU is free", ["n"], 20.0)
    assert gang.drive(20.0 + BACKOFF_S) == 0
    assert gang.drive(20.0 + 2 * BACKOFF_S) == 1


def test_its_pod_says_meanwhile_why_it_waits(gang):
    gang.run.see(gang.pod(1))
    gang.drive(10.0)
    gang.run.refused("no GPU is free", ["n"], 10.0)
    gang.drive(10.0)
    assert [key for key in gang.written if "//waits/" in key] == ["a/gang:g//waits/1 None"]


def test_once_it_is_whole_the_pauses_are_short_again(gang):
    gang.run.see(gang.pod(1))
    gang.drive(10.0)
    gang.run.refused("no GPU is free", ["n"], 10.0)
    gang.run.see(gang.pod(1, 1))
    gang.drive(11.0)
    gang.run.see(gang.pod(1))
    assert gang.drive(12.0) == 1
    gang.run.refused("no GPU is free", ["n"], 12.0)
    gang.drive(12.0)
    assert gang.run.due_s == 12.0 + BACKOFF_S
