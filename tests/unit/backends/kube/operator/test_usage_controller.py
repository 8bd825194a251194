"""What the operator tells of how busy GPUs are: with those who share a card, and not for ever."""

import json

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.client.kinds import NODE
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.node_controller import UsageController
from batuta.backends.kube.operator.workqueue import Changed
from batuta.core.event import Event, GpusUsed
from tests.support.worlds import NOW_S


class Rig:
    """A desk before a cluster with one node."""

    def __init__(self, *known: str) -> None:
        self.observed, self.said, self.known = ObjectCache(), list[Event](), set(known)
        sharers = {"n0": {"s": 0.3}}
        self.desk = UsageController(
            self.observed, self.known.__contains__, lambda node, now_s: sharers.get(node, {}), self.said.append
        )

    def report(self, time_s: float, busy: float, did: ChangeType = ChangeType.MODIFIED) -> None:
        text = json.dumps({"time": time_s, "gpus": [{"index": 0, "utilisation": busy}]})
        node = objects.Node(metadata=objects.Meta(name="n0", annotations={names.UTILISATION: text}))
        change = Change(did, node, None)
        self.observed.note(self.observed.nodes, change)
        self.desk.take(Changed(NODE, (change,)), time_s)


def test_a_report_is_told_with_what_sharers_have_and_taken_back_when_none_follows():
    rig = Rig("n0")
    rig.report(NOW_S, 0.5)
    rig.desk.drive(NOW_S)
    assert rig.said == [GpusUsed(NOW_S, "n0", (0.5,), (("s", 0.3),), cause="agent")]
    due_s = rig.desk.next_s()
    rig.desk.drive(due_s)
    assert rig.said[1:] == [GpusUsed(due_s, "n0", (), cause="agent")]


def test_nothing_is_told_of_a_node_that_the_world_does_not_know_or_that_is_gone():
    rig = Rig()
    rig.report(NOW_S, 0.5)
    rig.desk.drive(NOW_S)
    rig.known.add("n0")
    rig.report(NOW_S + 30, 0.5)
    rig.report(NOW_S + 30, 0.5, ChangeType.DELETED)
    rig.desk.drive(NOW_S + 30)
    rig.desk.drive(NOW_S + 1000)
    assert rig.said == []
