"""GPUs that a choice leaves without the CPU and memory that a job beside them would want.

A node with free GPUs and no CPU left serves nobody. So of places that are as full, a job goes where it
strands the fewest GPUs: one that wants little CPU to a node with little, one that wants much to a rich one.
What counts as enough is what the World's jobs ask for beside a GPU on average.
(Weng et al., "Beware of Fragmentation", ATC 2023, weigh the same against every kind of job that is expected;
this asks for no forecast, and in `benchmarks/fractional_packing.py` it strands fewer.)
"""

from __future__ import annotations

from collections.abc import Iterable

from batuta.core.job import Job
from batuta.core.job_table import Beside
from batuta.core.layout import UNCOUNTED, Layout

WHOLE = 100
"""Percent of a card."""


class Stranding:
    """What a GPU needs beside it, and how many would lack it on a node."""

    __slots__ = ("_cpus_milli", "_layout", "_memory_mib")

    def __init__(self, layout: Layout, asked: Beside) -> None:
        self._layout = layout
        percent = max(asked.gpu_percent, 1)
        self._cpus_milli, self._memory_mib = asked.cpus_milli / percent, asked.memory_mib / percent

    def added(self, i: int, gpus: int, job: Job) -> float:
        """Percent of GPUs that are stranded on a node once a job has so many there, beyond those that are."""
        free = self._free_percent(i)
        cpus, memory = self._layout.cpus_milli[i], self._layout.memory_mib[i]
        promised = self._layout.table.nodes[i].gpu_compute_percent
        takes = WHOLE * gpus if job.share is None else job.share.booked_percent(promised)
        after = self._stranded(
            free - takes, cpus - job.cpus_milli_per_gpu * gpus, memory - job.memory_mib_per_gpu * gpus
        )
        return after - self._stranded(free, cpus, memory)

    def least(self, nodes: Iterable[int], gpus: int, job: Job) -> int:
        """The first of these nodes on which the job strands the fewest."""
        return min(nodes, key=lambda i: self.added(i, gpus, job))

    def _free_percent(self, i: int) -> int:
        layout = self._layout
        node, free = layout.table.nodes[i], WHOLE * layout.free[i].bit_count()
        for gpu in range(node.gpus if layout.cards else 0):
            card = layout.cards.get((i, gpu))
            if card is not None:
                free += max(WHOLE - card.booked_percent(node.gpu_compute_percent), 0)
        return free

    def _stranded(self, free_percent: int, cpus_milli: int, memory_mib: int) -> float:
        served = float(free_percent)
        if self._cpus_milli and cpus_milli < UNCOUNTED // 2:
            served = min(served, max(cpus_milli, 0) / self._cpus_milli)
        if self._memory_mib and memory_mib < UNCOUNTED // 2:
            served = min(served, max(memory_mib, 0) / self._memory_mib)
        return free_percent - served
