"""Seats for parties: all or none, whoever says no and whatever becomes of an answer."""

from collections.abc import Sequence

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder import Binder, Cluster
from batuta.backends.kube.client.errors import ApiError, Conflict, Invalid, NotFound, Unavailable
from batuta.backends.kube.operator.context import PodGroup, PodPlacement, Timing
from batuta.backends.kube.operator.gang_binder import BIND, BindFailure, GangBinder
from batuta.backends.kube.operator.workqueue import WriteQueue, Written
from batuta.core.cluster import Span
from tests.unit.backends.kube.binder import test_gpus, things

FIRST, SECOND = (things.pod(name, gpu=1) for name in ("first", "second"))
PLACES = (Span("left", (0,)), Span("right", (0,)))


class Rig:
    """An gang_binder, and what it has asked the API server for."""

    def __init__(self, *nodes: objects.Node) -> None:
        self.cluster: Cluster = things.cluster(*nodes)
        self.asked: list[str] = []
        self.writes = WriteQueue(lambda asked: self.asked.extend(key for key, _ in asked))
        self.gang_binder = GangBinder(Binder(self.cluster), self.writes, Timing(gang_timeout_s=100.0))

    def serve(self, *parties: PodGroup, now_s: float = 0.0) -> list[BindFailure]:
        for party in parties:
            self.gang_binder.request_binding(party)
        turned = self.gang_binder.serve(lambda node: False, now_s)
        self.writes.send()
        return turned

    def hear(self, pod: objects.Pod, error: ApiError | None = None) -> BindFailure | None:
        """The API server answers."""
        answer = Written(BIND + pod.metadata.uid, error)
        self.writes.heard(answer, 1.0)
        return self.gang_binder.heard(answer, 1.0)


def decided(*pods: objects.Pod) -> PodGroup:
    """Pods whose places the World has decided on."""
    seats = tuple(PodPlacement(pod, place) for pod, place in zip(pods, PLACES, strict=True))
    return PodGroup("party", "job", seats)


def waiting(job: str, pods: Sequence[objects.Pod], keeps_until_s: float = 0.0) -> PodGroup:
    """Pods that may go anywhere."""
    return PodGroup(job, job, tuple(PodPlacement(pod, None) for pod in pods), keeps_until_s=keeps_until_s)


@pytest.fixture
def rig() -> Rig:
    return Rig(things.node("left", gpu=1), things.node("right", gpu=1))


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (Invalid("not on this evening"), ("right",)),
        (Conflict("it is bound"), ()),
        (NotFound("it is gone"), ()),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, ApiError) else "",
)
def test_one_binding_that_is_refused_turns_the_whole_party_away(rig, error, blamed):
    """Given two bindings, when one is refused, then the seat is free, and nodes are blamed for rules only."""
    assert rig.serve(decided(FIRST, SECOND)) == []
    assert rig.hear(FIRST) is None
    turned = rig.hear(SECOND, error)
    assert turned is not None
    assert turned.nodes == blamed
    assert rig.cluster.node_of("default/second") is None
    assert rig.gang_binder.bound == 1
    # Nobody will leave the seat: whoever keeps books has to hear of it here.
    assert rig.gang_binder.given == {"right"}


def test_a_pod_that_turns_up_elsewhere_turns_the_party_away(rig):
    rig.serve(decided(FIRST, SECOND))
    rig.hear(FIRST)
    turned = rig.gang_binder.saw(things.pod("second", gpu=1, on="left"))
    assert turned is not None
    assert "another scheduler has bound second" in turned.why


def test_a_binding_without_an_answer_is_asked_for_again_and_given_up_in_the_end(rig):
    rig.serve(decided(FIRST, SECOND))
    rig.hear(FIRST)
    assert rig.hear(SECOND, Unavailable("no answer")) is None
    rig.gang_binder.retry(50.0)
    rig.writes.send()
    assert rig.asked.count(BIND + "second") == 2
    (turned,) = rig.gang_binder.retry(100.0)
    assert turned.why == "the API server did not answer in time"


def test_what_a_party_can_have_of_its_seats_is_kept_from_others_for_a_while(rig):
    """Given a party of three and two seats, a pod that would fit gets none before the time is over."""
    three = waiting("gang", [things.pod(f"member-{index}", gpu=1) for index in range(3)], 10.0)
    alone = waiting("alone", [things.pod("alone", gpu=1)])
    rig.serve(alone, three)
    assert rig.asked == []
    assert rig.gang_binder.given == {"left", "right"}
    rig.serve(alone, three, now_s=5.0)
    assert rig.asked == []
    rig.cluster.node_set(things.node("more", gpu=2))
    rig.serve(alone, three, now_s=6.0)
    assert sorted(rig.asked) == [f"{BIND}alone", *(f"{BIND}member-{index}" for index in range(3))]


@pytest.mark.parametrize("end", ["its time is over", "it is forgotten"])
def test_seats_are_kept_no_longer_than_needed(rig, end):
    three = waiting("gang", [things.pod(f"member-{index}", gpu=1) for index in range(3)], 10.0)
    alone = waiting("alone", [things.pod("alone", gpu=1)])
    rig.serve(three)
    if end == "it is forgotten":
        rig.gang_binder.forget("gang")
        rig.serve(alone)
    else:
        rig.serve(three, alone, now_s=10.0)
    assert rig.asked == [f"{BIND}alone"]


def test_one_party_at_a_time_keeps_seats(rig):
    """Given two parties that both need more than there is, the first keeps seats; else neither gets on."""
    first = waiting("first", [things.pod(f"first-{index}", gpu=1) for index in range(3)], 10.0)
    second = waiting("second", [things.pod(f"second-{index}", gpu=1) for index in range(3)], 10.0)
    rig.serve(first, second)
    rig.cluster.node_set(things.node("more", gpu=1))
    rig.serve(second, now_s=1.0)
    assert rig.asked == []
    rig.serve(first, now_s=2.0)
    assert sorted(rig.asked) == [f"{BIND}first-{index}" for index in range(3)]


@pytest.mark.parametrize(
    ("said", "written"),
    [({}, "0.4"), ({names.EXPECTED_UTILISATION: "0.1"}, "0.1")],
    ids=["history", "the pod"],
)
def test_how_busy_a_job_will_be_is_known_from_its_pods_or_else_from_history(said, written):
    """Given a job whose like were 40 % busy, that is written on its pod, unless it says something itself."""
    where = things.cluster(test_gpus.shared_node())
    gang_binder = GangBinder(Binder(where), WriteQueue(lambda asked: None), Timing(), {"job": 0.4}.get)
    gang_binder.request_binding(
        PodGroup("party", "job", (PodPlacement(test_gpus.share("p", 100, annotations=said), None),))
    )
    gang_binder.serve(lambda node: False, 0.0)
    assert where.gpu_table.load[0, 0] == float(written)
