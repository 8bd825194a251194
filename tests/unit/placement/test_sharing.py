"""Shares of a GPU: full cards first, never two cards, never more than a card has."""

from random import Random
from typing import Any

import pytest

from batuta.core.cluster import Node
from batuta.core.job import Job, Share
from batuta.core.layout import Layout
from batuta.placement import TopologyPlacer
from batuta.placement.room import Room
from batuta.placement.sharing import place_share
from tests.support.worlds import at, make_job, make_nodes, make_world, outcome, place

GPU: dict[str, Any] = {"gpu_memory_mib": 1000}


def half(name: str, **changes):
    return make_job(name, share=Share(compute_percent=50), **changes)


@pytest.mark.parametrize(
    ("why", "nodes", "running", "share", "expected"),
    [
        ("a fresh card on the fullest node", make_nodes(4, 2, **GPU), {}, Share(100, 10), "n1:0"),
        (
            "the fullest card that has room",
            make_nodes(4, **GPU),
            {"s20": "n0:0", "s60": "n0:1"},
            Share(0, 40),
            "n0:1",
        ),
        (
            "another one if it has not",
            make_nodes(4, **GPU),
            {"s20": "n0:0", "s60": "n0:1"},
            Share(0, 50),
            "n0:0",
        ),
        (
            "a fresh one if none has",
            make_nodes(4, **GPU),
            {"s60": "n0:0", "s80": "n0:1"},
            Share(0, 50),
            "n0:2",
        ),
        ("memory counts too", make_nodes(4, **GPU), {"m900": "n0:0"}, Share(200, 10), "n0:1"),
        ("memory alone", make_nodes(4, **GPU), {"m300": "n0:0", "m500": "n0:1"}, Share(400, 0), "n0:1"),
        ("a whole GPU is not shared", make_nodes(2, **GPU), {"w": "n0:0"}, Share(10, 10), "n0:1"),
        ("no GPU is left", make_nodes(1, **GPU), {"w": "n0:0"}, Share(10, 10), "WAITING_FOR_GPUS"),
        ("no card is large enough", make_nodes(2, **GPU), {}, Share(2000, 10), "FRAGMENTED"),
        (
            "only one is large enough",
            [Node("n0", 1, gpu_memory_mib=500), *make_nodes(0, 4, **GPU)[1:]],
            {},
            Share(800, 10),
            "n1:0",
        ),
        (
            "the broken pair first",
            make_nodes(4, nvlink=(0, 0, 1, 1), **GPU),
            {"w": "n0:2"},
            Share(10, 10),
            "n0:3",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_card(why, nodes, running, share, expected):
    jobs = [make_job("new", submit_s=1.0, share=share)]
    for name in running:
        taken = int(name[1:] or 0)
        kinds = {"s": Share(0, taken), "m": Share(taken, 0), "w": None}
        jobs.append(make_job(name, share=kinds[name[0]]))
    world = make_world(nodes, running, jobs)
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1})) == {"new": expected}, why


def test_many_shares_fill_card_after_card():
    jobs = [half(f"j{k}", submit_s=float(k)) for k in range(5)]
    world = make_world(make_nodes(2, 2), {}, jobs)
    placed = place(TopologyPlacer(), world, {job.id: 1 for job in jobs})
    assert outcome(world, placed) == {"j0": "n0:0", "j1": "n0:0", "j2": "n0:1", "j3": "n0:1", "j4": "n1:0"}


def test_whole_gpus_are_chosen_before_shares():
    world = make_world(make_nodes(2), {}, [half("a"), make_job("b", 2, submit_s=1.0)])
    placed = place(TopologyPlacer(), world, {"a": 1, "b": 2})
    assert outcome(world, placed) == {"a": "WAITING_FOR_GPUS", "b": "n0:01"}


def test_cpu_beside_a_share():
    nodes = [Node("n0", 2, cpus_milli=1500), Node("n1", 4, cpus_milli=8000)]
    jobs = [half(name, cpus_milli_per_gpu=1000, submit_s=k) for k, name in enumerate("abc")]
    world = make_world(nodes, {}, jobs)
    placed = place(TopologyPlacer(), world, {"a": 1, "b": 1, "c": 1})
    assert outcome(world, placed) == {"a": "n0:0", "b": "n1:0", "c": "n1:0"}


def test_a_share_given_back_frees_its_part_only():
    world = make_world(
        make_nodes(1), {"a": "n0:0", "b": "n0:0"}, [half("a"), half("b"), make_job("c"), half("d")]
    )
    placed = place(TopologyPlacer(), world, {"a": 0, "c": 1, "d": 1})
    assert outcome(world, placed) == {"c": "WAITING_FOR_GPUS", "d": "n0:0"}


def test_every_share_goes_where_a_look_at_all_cards_would_put_it() -> None:
    """Given cards of two sizes and nodes short of CPU; when shares come; then none is misplaced."""
    for seed in range(30):
        random = Random(seed)
        nodes = [
            Node(
                f"n{k}",
                random.choice([2, 4]),
                gpu_memory_mib=random.choice([1000, 1600]),
                cpus_milli=random.choice([0, 2000]),
            )
            for k in range(6)
        ]
        room = Room(make_world(nodes).layout.fork(), {})
        for k in range(60):
            share = Share(random.randrange(0, 700, 7), random.choice([0, 5, 20, 35, 60]))
            job = make_job(f"j{k}", share=share, cpus_milli_per_gpu=random.choice([0, 0, 300]))
            some = room.layout.usable & (random.getrandbits(6) | random.getrandbits(6))
            expected = fullest_card(room.layout, job, share, some)

            found = place_share(room, job, share, some)

            if expected is not None:
                assert found == at("n{}:{}".format(*expected)), (seed, k)


def fullest_card(layout: Layout, job: Job, share: Share, nodes: int) -> tuple[int, int] | None:
    """Of all shared cards with room the one of which most is taken, compute or memory; the first on ties."""
    fitting = [
        (-max(card.compute_percent, card.memory_mib * 100 // layout.table.nodes[i].gpu_memory_mib), i, gpu)
        for (i, gpu), card in layout.cards.items()
        if nodes >> i & 1 and layout.fits_card(i, gpu, share) and layout.has_beside(i, 1, job)
    ]
    return min(fitting)[1:] if fitting else None


def test_nobody_joins_a_card_of_which_more_is_taken_than_it_has() -> None:
    """Given a card that others have overfilled; when a small share comes; then it goes elsewhere."""
    room = Room(make_world(make_nodes(2, **GPU)).layout.fork(), {})
    for k in range(2):
        room.layout.take(0, 1, make_job(f"j{k}", share=Share(600, 80)))
    small = Share(0, 10)

    assert place_share(room, make_job("new", share=small), small, room.layout.usable) == at("n0:1")
