"""Jobs with whole GPUs and how busy GPUs really are: of places that are as good, the least used is taken."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import JobState, Share
from batuta.core.utilisation import STALE_S
from batuta.placement import TopologyPlacer
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world, outcome, place

FOUR = (0.0, 0.0, 0.0, 0.0)


def started(nodes, used, wanted, running=None, age_s=0.0, **job) -> str:
    """Where a job goes, given how busy the GPUs of some nodes are."""
    others = [make_job(name, len(text.split(":")[1])) for name, text in (running or {}).items()]
    world = make_world(nodes, running or {}, [*others, make_job("new", wanted, submit_s=1.0, **job)])
    for node, gpus in used.items():
        apply(world, ev.GpusUsed(NOW_S, node, gpus))
    apply(world, ev.TimePassed(NOW_S + age_s))
    return outcome(world, place(TopologyPlacer(), world, {"new": wanted}))["new"]


@pytest.mark.parametrize(
    ("why", "used", "wanted", "expected"),
    [
        ("nothing is known", {}, 1, "n0:0"),
        ("the idle node", {"n0": (0.9,) * 4, "n1": FOUR}, 1, "n1:0"),
        ("the idle GPU of a node", {"n0": (0.9, 0.1, 0.0, 0.9), "n1": (0.9,) * 4}, 1, "n0:2"),
        ("unknown before busy", {"n0": (0.9,) * 4}, 2, "n1:01"),
        ("idle before unknown", {"n1": FOUR}, 2, "n1:01"),
        ("the calmest two together", {"n0": (0.0, 0.9, 0.9, 0.9), "n1": (0.3, 0.3, 0.9, 0.9)}, 2, "n1:01"),
        ("more than a node begins with the idle one", {"n0": (0.9,) * 4, "n1": FOUR}, 6, "n1:0123 n0:01"),
        ("less than a tenth is no difference", {"n0": (0.04,) * 4, "n1": FOUR}, 1, "n0:0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tie_is_broken_by_real_use(why, used, wanted, expected):
    assert started(make_nodes(4, 4), used, wanted) == expected


def test_an_old_report_says_nothing():
    used = {"n0": (0.9,) * 4, "n1": FOUR}
    assert started(make_nodes(4, 4), used, 1, age_s=STALE_S + 1) == "n0:0"


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ("that of the job itself", "n0:0"),
        ("another one since", "n1:0"),
    ],
)
def test_what_a_job_did_that_has_left_is_not_held_against_its_gpus(report: str, expected: str):
    """Given two nodes, one as busy as its job made it and one with a stranger, when the job has ended."""
    jobs = [make_job("old"), make_job("new", submit_s=1.0)]
    world = make_world(make_nodes(1, 1), {"old": "n0:0"}, jobs)
    apply(world, ev.GpusUsed(NOW_S, "n0", (0.9,)))
    apply(world, ev.GpusUsed(NOW_S, "n1", (0.7,)))
    apply(world, ev.JobEnded(NOW_S + 1.0, "old", JobState.SUCCEEDED))
    if report == "another one since":
        apply(world, ev.GpusUsed(NOW_S + 2.0, "n0", (0.9,)))
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1}))["new"] == expected


def test_a_card_stays_busy_while_one_of_its_sharers_is_there():
    jobs = [make_job(name, share=Share(100, 20)) for name in ("old", "stays")] + [make_job("new", share=Share(100, 20))]
    world = make_world(make_nodes(2, gpu_memory_mib=1000), {"old": "n0:0", "stays": "n0:0"}, jobs)
    apply(world, ev.GpusUsed(NOW_S, "n0", (0.9, 0.0)))
    apply(world, ev.JobEnded(NOW_S + 1.0, "old", JobState.SUCCEEDED))
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1}))["new"] == "n0:1"


def test_the_fullest_node_goes_first_however_busy_it_is():
    assert started(make_nodes(4, 4), {"n1": (0.9,) * 4, "n0": FOUR}, 1, {"a": "n1:0"}) == "n1:1"


def test_a_job_is_not_torn_apart_for_an_idle_gpu():
    """Two NVLink pairs, each with one busy GPU: both GPUs of a pair, and the calmer pair."""
    nodes = [Node("n0", 4, nvlink=(0, 0, 1, 1))]
    assert started(nodes, {"n0": (0.9, 0.0, 0.4, 0.0)}, 2) == "n0:23"


def test_a_job_that_wants_memory_beside_its_gpus_goes_to_the_calm_node_too():
    nodes = make_nodes(4, 4, memory_mib=4000)
    assert started(nodes, {"n0": (0.9,) * 4, "n1": FOUR}, 1, memory_mib_per_gpu=500) == "n1:0"
