"""What makes a job or a node impossible, and how placements read."""

import pytest

from batuta.core.cluster import Node, placement_of
from batuta.core.job import Job, Share
from tests.support.worlds import at


@pytest.mark.parametrize(
    ("given_", "fault"),
    [
        ({"id": ""}, "id must not be empty"),
        ({"submit_s": -1.0}, "submit time must be ≥ 0"),
        ({"submit_s": float("nan")}, "submit time must be ≥ 0"),
        ({"size": 0, "min": 0}, "min must be at least 1"),
        ({"size": 2, "min": 3, "max": 2}, "min must be ≤ max"),
        ({"size": 5, "max": 4}, "size must be within min..max"),
        ({"gpus_per_replica": -1}, "gpus_per_replica must be at least 0"),
        ({"size": 2, "min": 2, "max": 5, "gpus_per_replica": 2}, "multiple of gpus_per_replica"),
        ({"size": 2, "max": 4, "sizes": (1, 4, 2)}, "sizes must ascend"),
        ({"size": 2, "max": 4, "sizes": (1, 2, 2, 4)}, "sizes must ascend"),
        ({"size": 2, "max": 4, "sizes": (2, 4)}, "sizes must begin at min and end at max"),
        ({"size": 3, "max": 4, "sizes": (1, 2, 4)}, "size must be one of sizes"),
        ({"share": Share(compute_percent=50), "max": 2}, "a job with a share"),
        ({"share": Share()}, "a share needs compute"),
        ({"share": Share(compute_percent=101)}, "a share needs compute"),
        ({"work_s": float("inf")}, "work must be a finite number"),
        ({"restart_s": float("nan")}, "restart time must be a finite number"),
        ({"gpu_types": (("t4", 0.0),)}, "relative speed of GPU type t4"),
    ],
)
def test_every_fault_of_a_job_is_named(given_: dict, fault: str) -> None:
    job = Job(**{"id": "j", "submit_s": 0.0} | given_)
    assert any(fault in found for found in job.faults()), job.faults()


def test_a_sound_job_has_no_faults() -> None:
    assert Job("j", 0.0, size=2, min=2, max=8, sizes=(2, 4, 8), gpus_per_replica=2).faults() == []


@pytest.mark.parametrize(
    ("given_", "fault"),
    [
        ({"name": ""}, "needs a name"),
        ({"gpus": -1}, "GPUs must be at least 0"),
        ({"gpu_memory_mib": 0}, "GPU memory must be positive"),
        ({"nvlink": (0, 0, 1)}, "nvlink names 3 GPUs, the node has 4"),
        ({"numa": (0,)}, "numa names 1 GPUs, the node has 4"),
    ],
)
def test_every_fault_of_a_node_is_named(given_: dict, fault: str) -> None:
    assert any(fault in found for found in Node(**{"name": "n", "gpus": 4} | given_).faults())
    assert Node("n", 4, numa=(0, 0, 1, 1)).faults() == []


def test_a_placement_counts_its_gpus_nodes_and_workers() -> None:
    place = at("n1:03 n0:12 n1:2")
    assert place.size == 5
    assert place.nodes == ("n1", "n0")
    assert place.counts() == {"n1": 3, "n0": 2}
    assert [(span.node, span.gpus) for span in at("n1:03 n0:12").workers(2)] == [
        ("n1", (0, 3)),
        ("n0", (1, 2)),
    ]
    assert at("n0:1").size == 1
    assert at("").size == 0


def test_neighbouring_gpus_of_a_node_become_one_span() -> None:
    assert placement_of([("a", 0), ("a", 2), ("b", 1), ("a", 1)]) == at("a:02 b:1 a:1")
