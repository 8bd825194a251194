"""Which GPUs are free, node by node. Cheap to copy, so that a placer may try things out.

Nodes are numbered in the order in which they were added. A set of nodes is one Python integer with a bit per
node, a set of GPUs of a node one integer with a bit per GPU: immutable, compact, and "the lowest node with at
least three free GPUs in this rack" is a few integer operations, independent of the number of jobs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from batuta.core.arrays import mask_of, with_own_containers
from batuta.core.cluster import Node, Placement, Span
from batuta.core.job import Job, Share
from batuta.core.node_table import NodeTable

UNCOUNTED = 1 << 60  # CPU or memory of a node that does not count them


class Card(NamedTuple):
    """What the shares on one GPU have taken together."""

    compute_percent: int  # with hard limits: these are promises
    memory_mib: int
    shares: int
    soft_percent: int = 0  # compute with soft limits: more of it may be given away than there is

    def booked_percent(self, promised_percent: int) -> int:
        """Of the compute of a card that is promised so often to soft shares; 100 is all of it."""
        return self.compute_percent - (-self.soft_percent * 100 // promised_percent)

    def plus(self, share: Share, by: int = 1) -> Card:
        """With one more such share, or one less (-1)."""
        hard, soft = (0, share.compute_percent) if share.soft else (share.compute_percent, 0)
        return Card(
            self.compute_percent + by * hard,
            self.memory_mib + by * share.memory_mib,
            self.shares + by,
            self.soft_percent + by * soft,
        )


EMPTY_CARD = Card(0, 0, 0)


@dataclass(slots=True, eq=False, repr=False)
class Layout:
    """Free GPUs, CPU and memory of every node, and the cards that are shared."""

    table: NodeTable
    free: list[int] = field(default_factory=list)
    healthy: list[int] = field(default_factory=list)
    cpus_milli: list[int] = field(default_factory=list)
    memory_mib: list[int] = field(default_factory=list)
    buckets: list[int] = field(default_factory=lambda: [0])  # buckets[k]: the nodes with exactly k free GPUs
    cards: dict[tuple[int, int], Card] = field(default_factory=dict)  # GPUs with shares on them; such a GPU is not free
    usable: int = 0  # nodes that may get new replicas: neither lost nor cordoned
    total_free: int = 0  # free GPUs of all nodes together
    _lent: bool = False  # what lies beside the GPUs is another layout's: it is copied before it is changed

    def add(self, node: Node) -> None:
        i = len(self.free)
        self.free.append(0)
        self.healthy.append((1 << node.gpus) - 1)
        self.cpus_milli.append(node.cpus_milli or UNCOUNTED)
        self.memory_mib.append(node.memory_mib or UNCOUNTED)
        while len(self.buckets) <= node.gpus:
            self.buckets.append(0)
        self.buckets[0] |= 1 << i
        self.usable |= 1 << i
        self.set_free(i, self.healthy[i])

    def change(self, i: int, before: Node, node: Node) -> None:
        """Notes what a node has from now on beside its GPUs; which of those are healthy others know."""
        while len(self.buckets) <= node.gpus:
            self.buckets.append(0)
        for free, had, has in (
            (self.cpus_milli, before.cpus_milli, node.cpus_milli),
            (self.memory_mib, before.memory_mib, node.memory_mib),
        ):
            free[i] += (has or UNCOUNTED) - (had or UNCOUNTED)

    def set_free(self, i: int, mask: int) -> None:
        """Makes exactly these GPUs of a node the free ones."""
        bit, before, after = 1 << i, self.free[i].bit_count(), mask.bit_count()
        self.free[i] = mask
        if before != after:
            self.buckets[before] ^= bit
            self.buckets[after] |= bit
            self.total_free += after - before

    def take(self, i: int, mask: int, job: Job) -> None:
        """Gives GPUs of a node to a job, with the CPU and memory beside them; none for a CPU-only replica."""
        if job.share is not None:
            self._take_share(i, mask.bit_length() - 1, job.share)
        else:
            self.set_free(i, self.free[i] & ~mask)
        if job.cpus_milli_per_gpu or job.memory_mib_per_gpu:
            # A replica of a CPU-only job counts once; no GPUs of any other job count nothing.
            self._charge(i, mask.bit_count() or int(job.cpu_only), job)

    def give_back(self, i: int, mask: int, job: Job) -> None:
        """The opposite of `take`; GPUs that fell ill meanwhile do not become free."""
        if job.share is not None:
            self._give_back_share(i, mask.bit_length() - 1, job.share)
        else:
            self.set_free(i, self.free[i] | (mask & self.healthy[i]))
        if job.cpus_milli_per_gpu or job.memory_mib_per_gpu:
            self._charge(i, -(mask.bit_count() or int(job.cpu_only)), job)

    def _charge(self, i: int, gpus: int, job: Job) -> None:
        """Takes what a job wants beside so many GPUs, or for so many CPU-only replicas; or gives it back."""
        if self._lent:
            self._lent = False
            self.cpus_milli, self.memory_mib = list(self.cpus_milli), list(self.memory_mib)
        self.cpus_milli[i] -= job.cpus_milli_per_gpu * gpus
        self.memory_mib[i] -= job.memory_mib_per_gpu * gpus

    def _take_share(self, i: int, gpu: int, share: Share) -> None:
        self.cards[i, gpu] = self.cards.get((i, gpu), EMPTY_CARD).plus(share)
        self.set_free(i, self.free[i] & ~(1 << gpu))

    def _give_back_share(self, i: int, gpu: int, share: Share) -> None:
        card = self.cards[i, gpu]
        if card.shares == 1:
            del self.cards[i, gpu]
            self.set_free(i, self.free[i] | (1 << gpu & self.healthy[i]))
        else:
            self.cards[i, gpu] = card.plus(share, -1)

    def fits_card(self, i: int, gpu: int, share: Share) -> bool:
        """Whether a share fits on a GPU, beside the shares that are there. Memory is never given twice."""
        node, card = self.table.nodes[i], self.cards.get((i, gpu), EMPTY_CARD).plus(share)
        return card.memory_mib <= node.gpu_memory_mib and card.booked_percent(node.gpu_compute_percent) <= 100

    def has_beside(self, i: int, gpus: int, job: Job) -> bool:
        """Whether the node has the CPU and memory that the job wants beside so many GPUs."""
        return (
            self.cpus_milli[i] >= job.cpus_milli_per_gpu * gpus and self.memory_mib[i] >= job.memory_mib_per_gpu * gpus
        )

    def place(self, placement: Placement, job: Job, but: Collection[Span] = ()) -> None:
        """Takes these GPUs, except for some spans that the job has already."""
        index = self.table.index
        for span in placement.spans:
            if not but or span not in but:
                self.take(index[span[0]], mask_of(span[1]), job)

    def remove(self, placement: Placement, job: Job, but: Collection[Span] = ()) -> None:
        """Gives these GPUs back, except for some spans that the job keeps."""
        index = self.table.index
        for span in placement.spans:
            if not but or span not in but:
                self.give_back(index[span[0]], mask_of(span[1]), job)

    def holds(self, placement: Placement, job: Job) -> bool:
        """Whether all of these GPUs, and what the job wants beside them, are free."""
        index = self.table.index
        for node, gpus in placement.spans:
            i = index[node]
            if job.share is not None:
                gpu = gpus[0]
                if not self.free[i] >> gpu & 1 and (i, gpu) not in self.cards:
                    return False
                if not self.fits_card(i, gpu, job.share):
                    return False
            elif mask_of(gpus) & ~self.free[i]:
                return False
        return all(self.has_beside(index[node], count, job) for node, count in placement.counts().items())

    def free_gpus(self, nodes: int) -> int:
        """Free GPUs on a set of nodes."""
        if nodes == self.table.all:
            return self.total_free
        return sum(k * (bucket & nodes).bit_count() for k, bucket in enumerate(self.buckets) if k)

    def fork(self, table: NodeTable | None = None) -> Layout:
        """An independent copy."""
        twin = with_own_containers(self)
        twin.table, twin._lent = table or self.table, False
        return twin

    def sketch(self) -> Layout:
        """A copy to place jobs on for as long as this layout does not change: it shares what it can."""
        twin = Layout.__new__(Layout)
        twin.table, twin.usable, twin.total_free = self.table, self.usable, self.total_free
        twin.free, twin.buckets, twin.cards = self.free.copy(), self.buckets.copy(), self.cards.copy()
        twin.healthy, twin._lent = self.healthy, True
        twin.cpus_milli, twin.memory_mib = self.cpus_milli, self.memory_mib
        return twin
