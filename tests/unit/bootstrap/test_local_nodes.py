"""The nodes of a start: given what the World knew and what it is told now, then these events."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.world import World
from batuta.gpu.local_nodes import check_counts, node_events, virtual_nodes
from batuta.spec.problem import InputError


def world_of(count: int, gpus: int) -> World:
    world = World()
    for event in node_events(world, virtual_nodes(count, gpus).nodes, 1.0):
        apply(world, event)
    return world


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (0, 2, [(ev.NodeAdded, "node-0"), (ev.NodeAdded, "node-1")]),
        (2, 2, []),
        (1, 2, [(ev.NodeAdded, "node-1")]),
        (2, 1, [(ev.NodeLost, "node-1")]),
    ],
)
def test_a_start_brings_the_world_its_nodes(before: int, now: int, expected: list[tuple[type, str]]) -> None:
    world = world_of(before, 4) if before else World()
    events = node_events(world, virtual_nodes(now, 4).nodes, 2.0)
    assert [(type(event), _name(event)) for event in events] == expected


def _name(event: ev.Event) -> str:
    node = getattr(event, "node", "")
    return node if isinstance(node, str) else node.name


def test_a_node_that_was_away_returns() -> None:
    world = world_of(2, 4)
    for event in node_events(world, virtual_nodes(1, 4).nodes, 2.0):
        apply(world, event)
    assert node_events(world, virtual_nodes(2, 4).nodes, 3.0) == [ev.NodeReturned(3.0, "node-1")]


def test_a_node_with_other_gpus_than_before_is_refused() -> None:
    with pytest.raises(InputError, match="had 4 GPUs"):
        node_events(world_of(2, 4), virtual_nodes(2, 8).nodes, 2.0)


def test_all_numbers_that_make_no_sense_are_named_at_once() -> None:
    with pytest.raises(InputError) as refused:
        check_counts(0, 1_000)
    assert len(refused.value.problems) == 2
