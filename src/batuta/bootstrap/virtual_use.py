"""How busy virtual GPUs were between two looks, by their own account of device time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from batuta.bootstrap.virtual_gpus import VirtualGpus
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.engine.usage_watch import LOOK_S, NodeUse
from batuta.gpu.attribution.local_owners import LocalOwners
from batuta.gpu.vgpu.snapshot import Gpu
from batuta.spec.problem import InputError


class VirtualUse:
    """Measures the nodes that have device files."""

    step_s = LOOK_S

    def __init__(self, virtual: VirtualGpus, nodes: Sequence[NodeName]) -> None:
        self._virtual = virtual
        self._nodes = nodes
        self._owners = LocalOwners()
        self._before: dict[NodeName, tuple[int, dict[tuple[int, int], int]]] = {}
        """By node: when it was looked at, and device time so far by GPU and process; 0: of all processes."""

    def sample(self) -> None:
        """Nothing: the GPUs themselves keep account of their time."""

    def look(self) -> Mapping[NodeName, NodeUse]:
        found: dict[NodeName, NodeUse] = {}
        for node in self._nodes:
            try:
                gpus = self._virtual.read(node)
            except InputError:
                continue  # somebody has removed the file: of this node nothing is known
            use = self._since_before(node, gpus) if gpus else None
            if use is not None:
                found[node] = use
        return found

    def _since_before(self, node: NodeName, gpus: Sequence[Gpu]) -> NodeUse | None:
        now_ns = time.monotonic_ns()
        spent = {(gpu.index, 0): gpu.busy_ns for gpu in gpus}
        spent |= {(gpu.index, one.pid): one.busy_ns for gpu in gpus for one in gpu.processes}
        before = self._before.get(node)
        self._before[node] = now_ns, spent
        if before is None or before[0] >= now_ns:
            return None
        busy = {
            place: min(1.0, max(0.0, (spent_ns - before[1].get(place, 0)) / (now_ns - before[0])))
            for place, spent_ns in spent.items()
        }
        jobs: dict[JobId, float] = {}
        for (_, pid), part in busy.items():
            if pid and (owner := self._owners.of(pid)) is not None:
                jobs[owner.job] = max(jobs.get(owner.job, 0.0), part)
        return NodeUse(tuple(round(busy[gpu.index, 0], 3) for gpu in gpus), jobs, knows_all_jobs=True)
