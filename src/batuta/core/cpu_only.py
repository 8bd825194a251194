"""Places CPU-only jobs: on any nodes whose CPU and memory suffice, by priority, then by arrival.

A policy divides GPUs, so it is not asked about jobs that hold none. They never wait for a GPU, and no job
with GPUs waits for its turn behind them. They take what the jobs with GPUs leave of CPU and memory in a
cycle: first on nodes without GPUs, then where the fewest GPUs are free, so that few GPUs lose the CPU beside
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from batuta.core.admission import Admitted
from batuta.core.arrays import BoolArray, IntArray, bits
from batuta.core.cluster import Placement, Span
from batuta.core.eligibility import left_alone
from batuta.core.job import Job, JobId, Spread
from batuta.core.job_table import Phase
from batuta.core.layout import Layout
from batuta.core.node_table import ROOMY
from batuta.core.placer import Failure, Placed
from batuta.core.reason import REPLICAS, Evidence, Reason
from batuta.core.weigh import Changes
from batuta.core.world import World

PATIENCE_S = 600.0  # after so long a wait, no CPU-only job that goes later starts on the nodes that a job could use
_MIB_PER_GIB = 1024
_MILLI = 1000


def place_cpu_only(
    world: World, now_s: float, admitted: Admitted, placed: Placed, changes: Changes, within: Mapping[JobId, int]
) -> Placed:
    """Adds starts, repairs and stops of CPU-only jobs to the changes; returns what is free after them."""
    jobs = world.jobs
    chosen = jobs.is_cpu_only != 0
    if jobs.held_back:
        chosen &= ~left_alone(jobs, now_s)
    rows = np.flatnonzero(chosen)
    held, phase = jobs.held[rows], jobs.phase[rows]
    allowed = np.ones(rows.size, bool) if admitted.cap is None else admitted.cap[rows] >= jobs.min[rows]
    broken = phase == int(Phase.BROKEN)
    # Its user wants another size, or it was found at one.
    resized = (phase == int(Phase.RUNNING)) & (held != jobs.size[rows])
    # As with GPUs, a job that is just starting is stopped only once it runs.
    moving = np.isin(phase, (int(Phase.STARTING), int(Phase.RESIZING)))
    stops = rows[(held > 0) & ((~allowed & ~moving) | broken | resized)]
    starts = rows[allowed & ((held == 0) | broken | resized) & (phase != int(Phase.STOPPING))]
    if not stops.size and not starts.size:
        return placed
    placed = replace(placed, layout=placed.layout.sketch())
    for row in stops.tolist():
        placement = jobs.placements[row]
        assert placement is not None
        placed.layout.remove(placement, jobs.jobs[row])
        changes.after[row] = None
    changes.broken.update(rows[broken].tolist())
    order = starts[np.argsort(-jobs.priority[starts], kind="stable")]
    if order.size:
        _Room(world, now_s, placed.layout, within).place(order, placed, changes)
    return placed


class _Shape(NamedTuple):
    """Jobs that differ in the number of replicas only: where one finds no room, a larger one finds none."""

    nodes: int
    cpus_milli: int
    memory_mib: int
    within: Spread


class _Room:
    """The CPU and memory that are free on each node, as columns. They only become less."""

    def __init__(self, world: World, now_s: float, layout: Layout, within: Mapping[JobId, int]) -> None:
        self._world, self._now_s, self._layout, self._within = world, now_s, layout, within
        table = world.nodes
        self._cpus: IntArray = np.maximum(np.array(layout.cpus_milli, dtype=np.int64), 0)
        self._memory: IntArray = np.maximum(np.array(layout.memory_mib, dtype=np.int64), 0)
        free = [mask.bit_count() for mask in layout.free]
        # A node without GPUs goes before one with GPUs that are all in use.
        self._rank: IntArray = np.array(
            [count + (node.gpus > 0) for count, node in zip(free, table.nodes, strict=True)], dtype=np.int64
        )
        racks = {rack: number for number, rack in enumerate(table.by_rack)}
        self._rack: IntArray = np.array([racks[rack] for rack in table.rack_of], dtype=np.int64)
        self._members: dict[int, BoolArray] = {}  # by set of nodes: the same as a column
        self._full: dict[_Shape, int] = {}  # by shape: the fewest replicas for which there was no room
        self._kept = 0  # nodes that are kept for jobs that have waited for long

    def place(self, rows: IntArray, placed: Placed, changes: Changes) -> None:
        """Starts these rows in their order, as far as they fit, and says why the others wait."""
        jobs = self._world.jobs
        waited_since_s = np.fmax(jobs.submit_s[rows], jobs.last_stop_s[rows])
        due = (waited_since_s <= self._now_s - PATIENCE_S).tolist()
        for row, is_due in zip(rows.tolist(), due, strict=True):
            job = jobs.jobs[row]
            nodes = self._suited(job)
            shape = _Shape(nodes & ~self._kept, job.cpus_milli_per_gpu, job.memory_mib_per_gpu, _within(job))
            parts = None
            if job.size < self._full.get(shape, ROOMY):
                parts = self._parts(job, shape)
            if parts is not None:
                changes.after[row] = self._take(job, parts)
                continue
            self._full[shape] = min(job.size, self._full.get(shape, ROOMY))
            failure = placed.failures[row] = self._why(row, job, shape)
            if is_due and failure.reason in (Reason.WAITING_FOR_CPU, Reason.WAITING_FOR_MEMORY):
                self._kept |= nodes

    def _suited(self, job: Job) -> int:
        nodes = self._layout.usable & self._within.get(job.id, self._world.nodes.matching(job))
        avoided = self._world.avoided.get(job.id)
        return nodes if avoided is None else nodes & ~avoided.nodes

    def _fits(self, shape: _Shape) -> IntArray:
        """By node: how many replicas there is room for."""
        fits = np.full(len(self._cpus), ROOMY)
        if shape.cpus_milli:
            fits = np.minimum(fits, self._cpus // shape.cpus_milli)
        if shape.memory_mib:
            fits = np.minimum(fits, self._memory // shape.memory_mib)
        members = self._members.get(shape.nodes)
        if members is None:
            members = self._members[shape.nodes] = np.zeros(len(self._cpus), dtype=bool)
            members[list(bits(shape.nodes))] = True
        return np.where(members, fits, 0)

    def _parts(self, job: Job, shape: _Shape) -> list[tuple[int, int]] | None:
        """Nodes and how many replicas each of them gets; None where not all find room."""
        fits, wanted = self._fits(shape), job.topology.within
        if wanted is not Spread.ANY:
            close = self._closest(fits, job.size, wanted)
            if close is not None:
                return self._filled(close, job.size)
            if job.topology.required:
                return None
        return self._filled(fits, job.size)

    def _closest(self, fits: IntArray, size: int, within: Spread) -> IntArray | None:
        """Room on one node, or in one rack, that suffices alone; None where there is none."""
        if within is Spread.NODE:
            found = np.where(fits >= size, fits, 0)
            return found if found.any() else None
        by_rack = np.bincount(self._rack, np.minimum(fits, size))
        enough = by_rack >= size
        return np.where(self._rack == enough.argmax(), fits, 0) if enough.any() else None

    def _filled(self, fits: IntArray, size: int) -> list[tuple[int, int]] | None:
        """The nodes with the least to lose first, then the fullest, each with as many replicas as fit."""
        candidates = np.flatnonzero(fits)
        if int(np.minimum(fits[candidates], size).sum()) < size:
            return None
        order = candidates[np.lexsort((self._cpus[candidates], self._rank[candidates]))]
        parts: list[tuple[int, int]] = []
        for i in order.tolist():
            count = min(size, int(fits[i]))
            parts.append((i, count))
            size -= count
            if not size:
                break
        return parts

    def _take(self, job: Job, parts: list[tuple[int, int]]) -> Placement:
        spans: list[Span] = []
        for i, count in parts:
            self._cpus[i] -= job.cpus_milli_per_gpu * count
            self._memory[i] -= job.memory_mib_per_gpu * count
            spans.extend([Span(self._world.nodes.nodes[i].name, ())] * count)
        placement = Placement(tuple(spans))
        self._layout.place(placement, job)
        return placement

    def _why(self, row: int, job: Job, shape: _Shape) -> Failure:
        """What stands in the way of the job, in the numbers of its replicas."""
        if not self._world.nodes.matching(job) & ~self._world.lost:
            return Failure(Reason.NO_MATCHING_NODE, ((REPLICAS, job.size),))
        needs: Evidence = (("needs", job.size), (REPLICAS, job.size))
        cpus = ("cpus", job.cpus_milli_per_gpu / _MILLI)
        memory = ("memory_gib", job.memory_mib_per_gpu / _MIB_PER_GIB)
        most = self._world.most_for(row)[0]
        if most < job.size:
            return Failure(Reason.EXCEEDS_CPU_OR_MEMORY, (*needs, cpus, memory, ("capacity", most)))
        fits = int(np.minimum(self._fits(shape), job.size).sum())
        bare = int(np.minimum(self._fits(shape._replace(memory_mib=0)), job.size).sum())
        if fits >= job.size:
            return Failure(Reason.TOPOLOGY_UNMET, (*needs, ("best", self._best(shape, job))))
        if bare >= job.size:
            return Failure(Reason.WAITING_FOR_MEMORY, (*needs, memory, ("free", fits)))
        return Failure(Reason.WAITING_FOR_CPU, (*needs, cpus, ("free", fits)))

    def _best(self, shape: _Shape, job: Job) -> int:
        """The most replicas that one node, or one rack, has room for."""
        fits = np.minimum(self._fits(shape), job.size)
        if shape.within is Spread.RACK:
            fits = np.bincount(self._rack, fits)
        return int(fits.max(initial=0))


def _within(job: Job) -> Spread:
    return job.topology.within if job.topology.required else Spread.ANY


def explain_cpu_only(
    world: World, admitted: Admitted, placed: Placed, changes: Changes
) -> dict[int, tuple[Reason, Evidence]]:
    """Why each CPU-only job runs or waits, in replicas."""
    jobs, found = world.jobs, dict[int, tuple[Reason, Evidence]]()
    refused = admitted.refused or {}
    for row in np.flatnonzero(jobs.is_cpu_only).tolist():
        job = jobs.jobs[row]
        after = changes.after.get(row, jobs.placements[row])
        if after is not None:
            moving = jobs.phase_of(row) in (Phase.STARTING, Phase.RESIZING)
            reason = Reason.IN_TRANSITION if moving else Reason.FULL_SIZE
            found[row] = reason, ((REPLICAS, after.units),)
        elif admitted.cap is not None and admitted.cap[row] < job.min and row in refused:
            reason, evidence = refused[row]
            found[row] = reason, (*evidence, (REPLICAS, job.size))
        elif row in placed.failures:
            found[row] = placed.failures[row]
        else:
            found[row] = Reason.BEHIND_ANOTHER, ((REPLICAS, job.size),)
    return found
