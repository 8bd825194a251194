"""The published replays of Tiresias and Optimus in one short loop, with nothing of the engine in it.

It is the yardstick for the goodput model (test_published_averages.py) and, later, for the engine.
Run it: python -m tests.unit.backends.sim.goodput.reference_replay POLICY WORKLOAD.csv PROFILES
"""

from __future__ import annotations

import heapq
import sys
import time
from pathlib import Path
from typing import NamedTuple

from batuta.backends.sim.goodput.application import Application, load_applications, save_points
from batuta.backends.sim.goodput.job import FixedBatch, GoodputJob
from batuta.backends.sim.traces.reader import read_workload

NODES, GPUS_PER_NODE = 16, 4
ROUND_S = 60
DEMOTE_AT_GPU_S = 57_600

Allocation = dict[int, list[int]]
"""By job number: the node of each replica."""


class ReplayJob(NamedTuple):
    """One line of a workload of Pollux."""

    submit_s: float
    application: str
    num_replicas: int
    batch_size: int


def read_requests(path: Path) -> list[ReplayJob]:
    """The requests of a workload file, in submit order."""
    return [
        ReplayJob(own.job.submit_s, own.goodput.application, own.goodput.num_replicas, own.goodput.batch_size)
        for own in read_workload(path, "pollux").jobs
        if own.goodput is not None
    ]


class Tiresias:
    """Two queues by attained service; each job has its own size or nothing."""

    def __init__(self, requests: list[ReplayJob]) -> None:
        self.size = [request.num_replicas for request in requests]
        self.queues: tuple[list[int], list[int]] = ([], [])
        self.executed_s = [0] * len(requests)
        self.running: set[int] = set()
        self.seen: set[int] = set()

    def decide(self, active: list[int], jobs: list[GoodputJob], held: Allocation) -> Allocation:
        alive = set(active)
        for queue in self.queues:
            queue[:] = [job for job in queue if job in alive]
        self.queues[0].extend(job for job in active if job not in self.seen)
        self.seen |= alive
        for job in active:
            if job in self.running:
                self.executed_s[job] += ROUND_S
                if job in self.queues[0] and self.executed_s[job] * self.size[job] >= DEMOTE_AT_GPU_S:
                    self.queues[0].remove(job)
                    self.queues[1].append(job)
        order = self.queues[0] + self.queues[1]
        left = NODES * GPUS_PER_NODE
        self.running = set()
        for job in order:
            if self.size[job] <= left:
                left -= self.size[job]
                self.running.add(job)
        kept = {job: nodes for job, nodes in held.items() if job in self.running}
        return place([(job, self.size[job]) for job in order if job in self.running], kept)


class Optimus:
    """One GPU each, then one at a time to whoever gains most time from it."""

    def __init__(self, requests: list[ReplayJob], applications: dict[str, Application]) -> None:
        self.batch = [request.batch_size for request in requests]
        self.times = []
        for request in requests:
            application = applications[request.application]
            most = min(application.profile.max_gpus(request.batch_size), NODES * GPUS_PER_NODE)
            self.times.append(application.packed_iteration_s(request.batch_size, most, GPUS_PER_NODE))

    def decide(self, active: list[int], jobs: list[GoodputJob], held: Allocation) -> Allocation:
        left = NODES * GPUS_PER_NODE
        remaining = {job: jobs[job].remaining_iterations(self.batch[job]) for job in active}
        count = dict.fromkeys(active, 0)
        heap: list[tuple[float, int]] = []

        def offer(job: int) -> None:
            times, n = self.times[job], count[job]
            if n + 1 < len(times):
                gain = (times[n] - times[n + 1]) * remaining[job]
                if gain > 0:
                    heapq.heappush(heap, (-gain, job))  # of equal gains the earlier job wins

        for job in active[:left]:
            count[job] = 1
            left -= 1
            if left:
                offer(job)
        while left and heap:
            _, job = heapq.heappop(heap)
            count[job] += 1
            left -= 1
            offer(job)
        kept = {job: nodes for job, nodes in held.items() if len(nodes) == count.get(job)}
        return place(sorted(((job, n) for job, n in count.items() if n), key=lambda pair: pair[1]), kept)


def place(wanted: list[tuple[int, int]], kept: Allocation) -> Allocation:
    """Whoever keeps nodes keeps them; the others take what the emptiest node has, and so on."""
    free = [GPUS_PER_NODE] * NODES
    for nodes in kept.values():
        for node in nodes:
            free[node] -= 1
    result = dict(kept)
    for job, size in wanted:
        if job in kept:
            continue
        nodes = []
        while len(nodes) < size:
            node = max(range(NODES), key=free.__getitem__)  # the first of equals: the lowest number
            taken = min(free[node], size - len(nodes))
            nodes += [node] * taken
            free[node] -= taken
        result[job] = nodes
    return result


def replay(policy: str, requests: list[ReplayJob], applications: dict[str, Application]) -> list[float]:
    """Completion time of every job, in the order of the workload."""
    scheduler = Tiresias(requests) if policy == "tiresias" else Optimus(requests, applications)
    jobs = [GoodputJob(applications[request.application], FixedBatch(request.batch_size)) for request in requests]
    jct: list[float | None] = [None] * len(jobs)
    held: Allocation = {}
    active: list[int] = []
    arrived, now = 0, 0
    while active or arrived < len(jobs):
        # 1. every job runs the whole round with what it holds; one that ends keeps its GPUs to the end of it
        for job in active:
            finished_after = jobs[job].advance(ROUND_S)
            if finished_after is not None:
                jct[job] = now + finished_after - requests[job].submit_s
        # 2. the clock moves; the ended are gone, the submitted are there
        now += ROUND_S
        active = [job for job in active if not jobs[job].finished]
        while arrived < len(jobs) and requests[arrived].submit_s <= now:
            active.append(arrived)
            arrived += 1
        # 3. the policy decides for the next round
        held = {job: nodes for job, nodes in held.items() if not jobs[job].finished}
        held = scheduler.decide(active, jobs, held)
        for job in active:
            nodes = tuple(dict.fromkeys(held.get(job, ())))
            jobs[job].set_placement(tuple(held[job].count(node) for node in nodes), nodes)
    return [value for value in jct if value is not None]


def main(policy: str, workload: str, profiles: str) -> None:
    started = time.process_time()
    applications = load_applications(Path(profiles))
    loaded = time.process_time()
    times = replay(policy, read_requests(Path(workload)), applications)
    ended = time.process_time()
    save_points(applications)
    sys.stdout.write(
        f"{policy} {workload}: {len(times)} jobs, average {sum(times) / len(times)!r} s, "
        f"CPU {loaded - started:.3f} s to load, {ended - loaded:.3f} s to replay\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
