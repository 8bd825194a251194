"""What the agents of its nodes say of a trial run is taken in once each, whenever they say it."""

import json

from batuta.backends.kube import names, objects
from batuta.backends.kube.trial.reconciler import RunUsage
from batuta.core.cluster import Placement, Span

PLACE = Placement((Span("a", (0, 1)), Span("b", (2,))))


def node(name: str, time_s: float, *gpus: tuple[float, int]) -> objects.Node:
    listed = [
        {"index": index, "utilisation": busy, "memoryUsedMib": memory} for index, (busy, memory) in enumerate(gpus)
    ]
    text = json.dumps({"time": time_s, "gpus": listed})
    return objects.Node(metadata=objects.Meta(name=name, annotations={names.UTILISATION: text}))


def look(sight: RunUsage, *nodes: objects.Node) -> None:
    sight.look(PLACE, {one.metadata.name: one for one in nodes})


def test_only_its_own_gpus_count_and_no_report_twice():
    sight = RunUsage(100.0)
    first = node("a", 101.0, (0.5, 10), (0.7, 30), (1.0, 99))
    for _ in range(3):
        look(sight, first)
    assert (sight.seen.utilisation, sight.seen.memory_mib) == (0.6, 30)


def test_a_node_that_reports_a_little_earlier_than_the_other_is_heard_too():
    """Given two nodes whose clocks differ, the fuller GPU is the one of the node that is behind."""
    sight = RunUsage(100.0)
    look(sight, node("a", 130.0, (0.5, 10), (0.5, 10)))
    look(sight, node("a", 130.0, (0.5, 10), (0.5, 10)), node("b", 129.0, (0, 0), (0, 0), (0.9, 80)))
    assert sight.seen.memory_mib == 80
    assert sight.seen.utilisation == 0.7


def test_what_was_reported_before_it_began_is_about_somebody_else():
    sight = RunUsage(100.0)
    look(sight, node("a", 100.0, (0.5, 10)), node("b", 99.0))
    assert (sight.seen.utilisation, sight.seen.memory_mib) == (None, None)


def test_nodes_that_are_gone_or_say_nothing_that_can_be_read_are_passed_over():
    sight = RunUsage(100.0)
    look(sight, objects.Node(metadata=objects.Meta(name="b", annotations={names.UTILISATION: "{"})))
    assert sight.seen.utilisation is None
