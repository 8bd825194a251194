"""How much of the GPUs is left when the first pod finds no room: Alibaba's pods with parts of a GPU.

Pods are drawn from the trace with replacement and come one after the other; none ends. Ours is the placer of
`decide`; it is asked for each pod and moves nobody. Bar: not more is left than by best fit, and than by
fragmentation gradient descent. The trace lets every pod use every type of GPU, so all nodes are of one type.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from batuta.backends.sim.traces.reader import read_workload
from batuta.backends.sim.workload import Workload
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.event import JobFound, JobSubmitted, NodeAdded
from batuta.core.job import Job, Share
from batuta.core.placer import Target
from batuta.core.weigh import Costs
from batuta.core.world import World
from batuta.placement.placer import TopologyPlacer
from batuta.spec.cluster import read_alibaba_nodes
from benchmarks.measure import shared_data, show, times
from benchmarks.packing_rules import BestFit, GradientDescent, Pod, Rule, TightestCard

LISTS = ("openb_pod_list_default.csv", "openb_pod_list_gpushare60.csv")
SEEDS = range(3)
ENOUGH = 20_000
"""Pods: more than the cluster can hold."""


class Batuta:
    """The placer, on a World in which each pod is a job."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._world, self._placer = World(), TopologyPlacer()
        for node in nodes:
            apply(self._world, NodeAdded(0.0, node))
        self._count = 0

    def put(self, pod: Pod) -> bool:
        self._count += 1
        now_s, name = float(self._count), f"pod-{self._count:05d}"
        job = Job(
            name,
            now_s,
            size=pod.gpus,
            min=pod.gpus,
            max=pod.gpus,
            gpus_per_replica=pod.gpus,
            share=Share(0, pod.percent) if pod.percent < 100 else None,
            cpus_milli_per_gpu=-(-pod.cpus_milli // pod.gpus),
            memory_mib_per_gpu=-(-pod.memory_mib // pod.gpus),
        )
        apply(self._world, JobSubmitted(now_s, job))
        row = self._world.jobs.row(name)
        placed = self._placer.place(self._world, now_s, [Target(row, pod.gpus, 0)], Costs(enabled=False))
        if row not in placed.placements:
            return False
        apply(self._world, JobFound(now_s, name, placed.placements[row]))
        return True


def left_at_first_failure(rule: Rule, pods: Sequence[Pod], gpus: int) -> float:
    """The part of all GPUs that is not given out when a pod finds no room."""
    used = 0
    for pod in pods:
        if not rule.put(pod):
            return 1 - used / (100 * gpus)
        used += pod.gpus * pod.percent
    raise RuntimeError(f"{len(pods):,} pods did not fill {gpus:,} GPUs")


def main() -> None:
    folder = shared_data() / "alibaba-v2023"
    nodes = [replace(node, gpu_type="gpu") for node in read_alibaba_nodes(folder / "openb_node_list_gpu_node.csv")]
    gpus = sum(node.gpus for node in nodes)
    for name in LISTS:
        pods = _pods(read_workload(folder / name))
        left = [_left_by_rule(nodes, pods, seed) for seed in SEEDS]
        left.append([statistics.mean(column) for column in zip(*left, strict=True)])
        labels = [*(f"draw {seed}" for seed in SEEDS), "mean"]
        rows = [(label, *(f"{part:.2%}" for part in row)) for label, row in zip(labels, left, strict=True)]
        ours, *others = left[-1]
        show(
            f"{name}: what is left of {gpus:,} GPUs when the first pod finds no room",
            ("", "batuta", "best fit", "tightest card", "gradient descent"),
            rows,
            [f"against the best of the others: {times(ours / min(others), 1.0)} (bar: at most 1.00×)"],
        )


def _left_by_rule(nodes: Sequence[Node], pods: Sequence[Pod], seed: int) -> list[float]:
    drawn = np.random.default_rng(seed).integers(0, len(pods), ENOUGH)
    stream, gpus = [pods[k] for k in drawn], sum(node.gpus for node in nodes)
    rules = (Batuta(nodes), BestFit(nodes), TightestCard(nodes), GradientDescent(nodes, pods))
    return [left_at_first_failure(rule, stream, gpus) for rule in rules]


def _pods(workload: Workload) -> list[Pod]:
    return [
        Pod(
            job.cpus_milli_per_gpu * job.size,
            job.memory_mib_per_gpu * job.size,
            job.size,
            100 if job.share is None else job.share.compute_percent,
        )
        for job in (entry.job for entry in workload.jobs)
    ]


if __name__ == "__main__":
    main()
