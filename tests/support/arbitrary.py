"""Sound nodes, jobs and queues of any shape, each named by one number, so that a long story is a few numbers.

The shapes come from tables with few distinct values: ties and clashes are common. Number 0 is the plainest.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from batuta.core.cluster import Node, Operator, Requirement
from batuta.core.curve import SpeedCurve, amdahl_curve, linear_curve
from batuta.core.job import Job, Share, Spread, Topology
from batuta.core.quota import Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import queue_change

QUEUES = ("default", "research")

NODES: tuple[dict[str, Any], ...] = (
    {"gpus": 4},
    {"gpus": 4},
    {"gpus": 8, "nvlink": (0, 0, 0, 0, 1, 1, 1, 1), "numa": (0, 0, 0, 0, 1, 1, 1, 1)},
    {"gpus": 1},
    {"gpus": 2, "labels": (("zone", "x"),)},
    {"gpus": 4, "cpus_milli": 4000, "memory_mib": 40},
    {"gpus": 4, "taints": ("spot",), "rack": "r1"},
    {"gpus": 4, "gpu_type": "b", "gpu_memory_mib": 2000},
    {"gpus": 8, "gpu_type": "b", "labels": (("zone", "x"),), "rack": "r1"},
    {"gpus": 4, "rack": "r1"},
    {"gpus": 4, "rack": "r2", "numa": (0, 0, 1, 1), "gpu_memory_mib": 2000},
    {"gpus": 6, "labels": (("zone", "x"), ("gb", "80")), "taints": ("spot", "team=a:NoSchedule")},
    {"gpus": 4, "labels": (("gb", "40"),), "cpus_milli": 8000},
    {"gpus": 0, "cpus_milli": 6000, "memory_mib": 40, "rack": "r1"},
    {"gpus": 0, "cpus_milli": 2000, "labels": (("zone", "x"),), "taints": ("spot",)},
)

SIZES: tuple[dict[str, Any], ...] = (
    {"size": 1, "min": 1, "max": 1},
    {"size": 2, "min": 1, "max": 4},
    {"size": 1, "min": 1, "max": 8},
    {"size": 4, "min": 2, "max": 6},
    {"size": 2, "min": 2, "max": 2},
    {"size": 4, "min": 4, "max": 4},
    {"size": 2, "min": 1, "max": 8, "sizes": (1, 2, 4, 8)},
    {"size": 7, "min": 3, "max": 7, "sizes": (3, 5, 7)},
    {"size": 4, "min": 2, "max": 6, "gpus_per_replica": 2},
    {"size": 3, "min": 3, "max": 9, "gpus_per_replica": 3},
    {"size": 2, "min": 2, "max": 8, "gpus_per_replica": 2, "sizes": (2, 6, 8)},
    {"size": 16, "min": 1, "max": 32},
    {"size": 40, "min": 40, "max": 40},
)

REPLICAS = (0, 0, 0, 1, 3)
"""Of a CPU-only job; 0 for one with GPUs."""

WISHES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {},
    {"gpu_types": (("a", 1.0),)},
    {"gpu_types": (("b", 2.0),)},
    {"gpu_types": (("b", 1.0), ("a", 0.5))},
    {"gpu_types": (("z", 1.0),)},
    {"cpus_milli_per_gpu": 1000},
    {"cpus_milli_per_gpu": 3000, "memory_mib_per_gpu": 10},
    {"node_labels": (("zone", "x"),)},
    {"node_labels": (("zone", "nowhere"),)},
    {"tolerations": ("spot",)},
    {"topology": Topology(Spread.NODE, required=True)},
    {"topology": Topology(Spread.RACK, required=True)},
    {"topology": Topology(Spread.RACK)},
    {"topology": Topology(single_numa=True)},
    {"share": Share(memory_mib=400, compute_percent=30)},
    {"share": Share(memory_mib=900, compute_percent=10)},
    {"share": Share(memory_mib=0, compute_percent=60)},
    {"share": Share(memory_mib=1500), "cpus_milli_per_gpu": 1000},
    {"node_terms": ((Requirement("zone", Operator.ABSENT),), (Requirement("gb", Operator.ABOVE, ("40",)),))},
    {"node_terms": ((Requirement("gb", Operator.BELOW, ("80",)), Requirement("zone", Operator.NOT_IN, ("x",))),)},
    {"node_terms": ((Requirement("zone", Operator.IN, ("x", "y")),),), "tolerations": ("spot", "team")},
    {"node_terms": ((Requirement("gb", Operator.EXISTS),),), "tolerations": ("*",)},
)

LENGTHS: tuple[dict[str, Any], ...] = (
    {"work_s": 3600.0, "restart_s": 30.0},
    {"work_s": 1e6, "restart_s": 30.0},
    {"work_s": 1e6, "restart_s": 0.0, "checkpoint_interval_s": 600.0},
    {"work_s": 100.0, "restart_s": 300.0},
    {"work_s": 0.0, "restart_s": 0.0},
)

QUOTAS: tuple[tuple[tuple[str, int], ...], ...] = (
    (),
    (("*", 8),),
    (("*", 2),),
    (("*", 0),),
    (("a", 4),),
    (("a", 0), ("*", 6)),
    (("*", 6), ("a", 3), ("b", 3)),
    (("b", 1), ("z", 0)),
)

CURVES: tuple[Callable[[int], SpeedCurve], ...] = (
    linear_curve,
    lambda largest: amdahl_curve(largest, 0.1),
    lambda largest: SpeedCurve((0.0, 1.0)),
    lambda largest: SpeedCurve(linear_curve(largest).speeds, across_nodes=0.5, across_racks=0.8),
)


def make_node(number: int, name: str) -> Node:
    shape: dict[str, Any] = {"gpu_type": "a", "gpu_memory_mib": 1000}
    node = Node(name, **shape | NODES[number % len(NODES)])
    assert not node.faults()
    return node


NODE_COUNT = len(NODES)


def make_curve(number: int, largest: int) -> SpeedCurve:
    return CURVES[number % len(CURVES)](largest)


def make_job(number: int, name: str, submit_s: float = 0.0) -> Job:
    """A sound job; numbers up to JOB_COUNT give different ones."""
    queue, wishes, wanted, length, curve, sequence, priority, replicas = _one_of_each(number, *_JOB_TABLES)
    if "share" in wishes:
        wanted = SIZES[0]
    if replicas:
        wanted = {"size": replicas, "min": replicas, "max": replicas, "gpus_per_replica": 0}
        wishes = {name: value for name, value in wishes.items() if name not in ("gpu_types", "share")}
    job = Job(
        name,
        submit_s,
        sequence=sequence,
        queue=queue,
        priority=priority,
        curve=curve(wanted["max"]),
        **wanted,
        **wishes,
        **length,
    )
    assert not job.faults()
    return job


def with_queue(quota: Quota, number: int) -> Quota:
    """The same quota with one queue made, or made anew."""
    name, limits, held = _one_of_each(number, *_QUEUE_TABLES)
    return merge(quota, queue_change(name, dict(limits), held=held))


def _one_of_each(number: int, *tables: Sequence[Any]) -> tuple[Any, ...]:
    """An entry of every table: the digits of the number say which."""
    found = []
    for table in tables:
        number, place = divmod(number, len(table))
        found.append(table[place])
    return tuple(found)


_JOB_TABLES: tuple[Sequence[Any], ...] = (QUEUES, WISHES, SIZES, LENGTHS, CURVES, (0, 1), (0, 1), REPLICAS)
_QUEUE_TABLES: tuple[Sequence[Any], ...] = (QUEUES, QUOTAS, (False,) * 6 + (True,))
JOB_COUNT = math.prod(map(len, _JOB_TABLES))
QUEUE_COUNT = math.prod(map(len, _QUEUE_TABLES))
