"""Shares of a GPU: full cards first, never two cards, never more than a card has."""

from random import Random
from typing import Any, Literal

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Job, JobState, Share
from batuta.core.layout import Layout
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.core.utilisation import STALE_S
from batuta.placement import TopologyPlacer
from batuta.placement.attempt import PlacerOptions
from batuta.placement.cluster_state import ClusterState
from batuta.placement.sharing import place_share
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world, outcome, place

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
    world = make_world(make_nodes(1), {"a": "n0:0", "b": "n0:0"}, [half("a"), half("b"), make_job("c"), half("d")])
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
        room = ClusterState(make_world(nodes).layout.fork(), {})
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
    room = ClusterState(make_world(make_nodes(2, **GPU)).layout.fork(), {})
    for k in range(2):
        room.layout.take(0, 1, make_job(f"j{k}", share=Share(600, 80)))
    small = Share(0, 10)

    assert place_share(room, make_job("new", share=small), small, room.layout.usable) == at("n0:1")


# ---------------------------------------------------------------------------------- how busy cards really are


def report(world, *gpus: float | None, node: str = "n0", time_s: float = NOW_S):
    apply(world, ev.GpusUsed(time_s, node, gpus))
    return world


def placed(world, shares: Literal["bin-pack", "spread"] = "bin-pack") -> str:
    return outcome(world, place(TopologyPlacer(PlacerOptions(shares=shares)), world, {"j": 1}))["j"]


def shared(*percents: int):
    """A card with a sharer of each of these percents, one node; job `j` wants 20 percent and waits."""
    running = {f"s{k}": f"n0:{k}" for k in range(len(percents))}
    jobs = [make_job(f"s{k}", share=Share(100, percent)) for k, percent in enumerate(percents)]
    return make_world(make_nodes(4, **GPU), running, [*jobs, make_job("j", share=Share(100, 20))])


def test_of_cards_that_are_equal_otherwise_the_less_busy_one_is_taken():
    assert placed(shared(40, 40)) == "n0:0"
    assert placed(report(shared(40, 40), 0.6, 0.1, 0.0, 0.0)) == "n0:1"
    assert placed(report(shared(40, 30), 0.6, 0.1, 0.0, 0.0)) == "n0:0"


def test_of_free_cards_too():
    assert placed(report(shared(), 0.3, 0.6, 0.0, 0.0)) == "n0:2"


def test_nobody_joins_on_a_card_that_is_too_busy_while_there_is_room():
    assert placed(report(shared(40, 30), 0.71, 0.2, 0.0, 0.0)) == "n0:1"
    assert placed(report(shared(40, 30), 0.71, 0.9, 0.0, 0.0)) == "n0:2"


def test_what_jobs_of_its_name_used_counts_too():
    # given that earlier jobs of its name kept half of a GPU busy
    world = report(shared(40, 30), 0.3, 0.1, 0.0, 0.0)
    world.loads["heavy"] = 0.5
    heavy = make_job("h", application="heavy", submit_s=1.0, share=Share(100, 50))
    apply(world, ev.JobSubmitted(NOW_S, heavy))
    found = outcome(world, place(TopologyPlacer(), world, {"h": 1}))
    # then it does not go where that would be too much, though the card is fuller
    assert found["h"] == "n0:1"


def test_what_sharers_are_expected_to_use_counts_before_it_is_measured():
    world = report(shared(40, 30), 0.0, 0.0, 0.0, 0.0)
    assert placed(world) == "n0:0"
    world.loads["busy"] = 0.9
    apply(world, ev.JobEnded(NOW_S, "s0", JobState.SUCCEEDED))
    busy = make_job("b", application="busy", submit_s=1.0, share=Share(100, 80))
    apply(world, ev.JobSubmitted(NOW_S, busy))
    carry_out(world, [Start("b", at("n0:0"), Reason.ADMITTED)], NOW_S)
    assert placed(world) == "n0:1"


def test_if_there_is_no_other_place_a_busy_card_will_do():
    world = report(shared(90, 90, 40, 90), 0.9, 0.9, 0.9, 0.9)
    assert placed(world) == "n0:2"


def test_what_was_told_too_long_ago_counts_as_unknown():
    world = report(shared(40, 40), 0.9, 0.0, 0.0, 0.0, time_s=NOW_S - STALE_S - 1)
    apply(world, ev.TimePassed(NOW_S))
    assert placed(world) == "n0:0"


def test_a_card_of_which_nothing_is_known_is_neither_idle_nor_busy():
    assert placed(report(shared(40, 40, 40), 0.6, None, 0.4)) == "n0:2"
    assert placed(report(shared(40, 40), 0.6, None)) == "n0:1"


def test_shares_can_be_spread():
    assert placed(shared(40, 20), "spread") == "n0:2"
    assert placed(shared(40, 20, 50, 60), "spread") == "n0:1"
    assert placed(report(shared(40, 20, 50, 60), 0.0, 0.9, 0.0, 0.0), "spread") == "n0:0"


def tried_out(world, **busy: float):
    """Applications of which trial runs have shown how busy they keep a GPU."""
    for name, load in busy.items():
        one = TrialMeasurement(f"{name}-t1", 1, TrialOutcome.MEASURED, application=name, utilisation=load)
        apply(world, ev.TrialMeasured(NOW_S, name, one))
    return world


def soft(name: str, application: str, submit_s: float = 0.0):
    """A job that takes what it can get of a card."""
    return make_job(name, share=Share(100, soft=True), application=application, submit_s=submit_s)


def newcomers(*applications: str):
    """Jobs that wait for a share, on a node with four cards."""
    jobs = [soft(f"j{k}", application, float(k)) for k, application in enumerate(applications)]
    return make_world(make_nodes(4, **GPU), {}, jobs)


def all_placed(world) -> dict[str, str]:
    return outcome(world, place(TopologyPlacer(), world, dict.fromkeys(world.jobs.ids, 1)))


def test_trial_runs_say_with_whom_a_job_can_share_before_anything_was_measured():
    def joins(loud: float, quiet: float) -> str:
        jobs = [soft("s", "loud"), soft("j", "quiet")]
        return placed(tried_out(make_world(make_nodes(4, **GPU), {"s": "n0:0"}, jobs), loud=loud, quiet=quiet))

    assert joins(loud=0.5, quiet=0.2) == "n0:0"
    assert joins(loud=0.6, quiet=0.2) == "n0:1"


def test_sharers_that_start_together_count_with_each_other():
    """Two at 0.3 leave each other in peace; a third would not."""
    world = tried_out(newcomers("calm", "calm", "calm", "calm"), calm=0.3)
    assert all_placed(world) == {"j0": "n0:0", "j1": "n0:0", "j2": "n0:1", "j3": "n0:1"}


def test_those_of_whom_nothing_is_known_do_not():
    assert set(all_placed(newcomers("a", "b", "c")).values()) == {"n0:0"}


# -------------------------------------------------------------------------------------- more than there is


def joined(first: Share, second: Share, promised: int) -> str:
    """Where a share goes that comes to a card with another one, on a node with a second card."""
    nodes = make_nodes(2, gpu_memory_mib=1000, gpu_compute_percent=promised)
    world = make_world(nodes, {"s": "n0:0"}, [make_job("s", share=first), make_job("j", share=second)])
    return placed(world)


def test_soft_shares_are_promised_as_much_as_the_node_says():
    assert joined(Share(100, 80, soft=True), Share(100, 60, soft=True), promised=100) == "n0:1"
    assert joined(Share(100, 80, soft=True), Share(100, 60, soft=True), promised=150) == "n0:0"
    assert joined(Share(100, 80, soft=True), Share(100, 80, soft=True), promised=150) == "n0:1"


def test_what_is_promised_by_a_hard_limit_is_there():
    assert joined(Share(100, 80), Share(100, 60), promised=400) == "n0:1"
    assert joined(Share(100, 80), Share(100, 60, soft=True), promised=400) == "n0:0"
    assert joined(Share(100, 80), Share(100, 90, soft=True), promised=400) == "n0:1"


def test_memory_is_never_promised_twice():
    assert joined(Share(600, 10, soft=True), Share(600, 10, soft=True), promised=400) == "n0:1"


def test_how_busy_a_shared_card_may_be_is_configuration():
    world = report(shared(40, 30), 0.5, 0.0, 0.0, 0.0)
    lenient = TopologyPlacer(PlacerOptions(busiest=0.9))
    assert outcome(world, place(lenient, world, {"j": 1}))["j"] == "n0:0"
    strict = TopologyPlacer(PlacerOptions(busiest=0.3))
    assert outcome(world, place(strict, world, {"j": 1}))["j"] == "n0:1"
