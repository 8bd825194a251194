"""Of places that are as full, a job takes the one where the fewest GPUs stay behind without CPU or memory."""

from typing import Any

import pytest

from batuta.core.cluster import Node
from batuta.core.job import Share
from batuta.placement import TopologyPlacer
from tests.support.worlds import make_job, make_world, outcome, place

POOR = Node("poor", 4, cpus_milli=8_000, memory_mib=64_000)
RICH = Node("rich", 4, cpus_milli=64_000, memory_mib=64_000)
FORGETFUL = Node("forgetful", 4, cpus_milli=64_000, memory_mib=8_000)
UNCOUNTED = Node("uncounted", 4)
# The jobs that are known ask for 8 CPUs and 8,000 MiB beside a GPU, all together.
CROWD: dict[str, Any] = {"cpus_milli_per_gpu": 8_000, "memory_mib_per_gpu": 8_000}


@pytest.mark.parametrize(
    ("why", "nodes", "wants", "expected"),
    [
        ("one that wants little CPU leaves the rich node alone", [RICH, POOR], (1_000, 0), "poor"),
        ("one that wants little memory too", [RICH, FORGETFUL], (0, 1_000), "forgetful"),
        ("one that wants neither goes to the first", [RICH, POOR], (0, 0), "rich"),
        ("where nothing is counted, nothing is stranded", [UNCOUNTED, RICH], (8_000, 0), "uncounted"),
    ],
)
@pytest.mark.parametrize("share", [None, Share(0, 40)], ids=["whole", "share"])
def test_a_job_goes_where_it_strands_the_fewest(why, nodes, wants, expected, share):
    cpus_milli, memory_mib = wants
    job = make_job("new", share=share, cpus_milli_per_gpu=cpus_milli, memory_mib_per_gpu=memory_mib)
    crowd = [make_job(f"waits-{k}", **CROWD) for k in range(9)]
    world = make_world(nodes, {}, [*crowd, job])
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1})) == {"new": f"{expected}:0"}, why


def test_a_share_that_wants_much_leaves_a_poor_node_what_it_has():
    modest = Node("modest", 4, cpus_milli=32_000, memory_mib=64_000)
    job = make_job("new", share=Share(0, 40), cpus_milli_per_gpu=9_000)
    world = make_world([modest, RICH], {}, [*(make_job(f"waits-{k}", **CROWD) for k in range(9)), job])
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1})) == {"new": "rich:0"}


def test_a_fuller_node_comes_first():
    """However much CPU the empty one has to spare."""
    running = make_job("runs", cpus_milli_per_gpu=8_000)
    job = make_job("new", cpus_milli_per_gpu=8_000)
    full = Node("full", 4, cpus_milli=32_000)
    world = make_world([RICH, full], {"runs": "full:0"}, [running, job])
    assert outcome(world, place(TopologyPlacer(), world, {"new": 1})) == {"new": "full:1"}
