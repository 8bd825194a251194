"""How the replicas of local mode get at their GPUs: virtual ones by device files, shares with their limits.

Libraries are compiled beside the start of the server, which does not wait: the first time on a machine that
takes seconds. No replica starts before they are there. What cannot be had is done without, and told once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from batuta.backends.local.equipment import Seat
from batuta.bootstrap.gpu_shares import GpuShares
from batuta.bootstrap.local_nodes import LocalNodes
from batuta.bootstrap.virtual_gpus import VirtualGpus
from batuta.bootstrap.virtual_use import VirtualUse
from batuta.core.cluster import NodeName
from batuta.engine.requests import Make
from batuta.engine.usage_watch import UsageWatch
from batuta.gpu.vgpu.build import find_compiler
from batuta.spec.problem import InputError

CARDS = "gpu-cards"
"""Within the state directory."""


class LocalGpus:
    """The equipment of replicas."""

    def __init__(
        self, home: Path, devices: Mapping[NodeName, Sequence[str | int]], virtual: VirtualGpus | None
    ) -> None:
        self.virtual = virtual
        """None where the GPUs are real."""
        self.notes: list[str] = _known_at_once(virtual)
        """What cannot be had, and why."""
        self._devices = devices
        self._shares = GpuShares(home / CARDS)
        self._ready = threading.Event()

    def prepare(self, done: Callable[[], None]) -> None:
        """Begins to compile what is missing; `done` is called when replicas may start."""
        threading.Thread(target=self._prepare, args=(done,), name="batuta-gpus", daemon=True).start()

    def _prepare(self, done: Callable[[], None]) -> None:
        if not self.notes:
            steps = [("no job is held to its share of a GPU", self._shares.build)]
            if self.virtual is not None:
                steps.insert(0, ("no program sees the virtual GPUs", self.virtual.build))
            for what, build in steps:
                try:
                    build()
                except (InputError, OSError) as error:
                    self.notes.append(f"{what}: {error}")
        self._ready.set()
        done()
        if self.virtual is not None:
            self.virtual.make_ahead()

    # ------------------------------------------------------------------------------------- for the backend

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def equip(self, seat: Seat, env: Mapping[str, str]) -> dict[str, str]:
        try:
            found = dict(env) if self.virtual is None else self.virtual.environment(seat.node, env)
            uuid = self._uuid(seat.node, seat.gpus[0])
            return found if uuid is None else self._shares.hold(seat, uuid, found)
        except InputError as error:
            raise ValueError(f"its GPUs cannot be had: {error}") from error

    def _uuid(self, node: NodeName, gpu: int) -> str | None:
        """What NVML calls a GPU; None where no program will see it."""
        with suppress(LookupError):
            named = self._devices[node][gpu] if self.virtual is None else self.virtual.uuids(node)[gpu]
            return named if isinstance(named, str) else None
        return None


def _known_at_once(virtual: VirtualGpus | None) -> list[str]:
    try:
        find_compiler()
    except InputError as error:
        what = "no program sees the virtual GPUs, and " if virtual is not None else ""
        return [f"{what}no job is held to its share of a GPU: {error}"]
    return []


def usage_watch(
    virtual: VirtualGpus | None, local: LocalNodes, ask: Callable[[Make], object]
) -> UsageWatch | None:
    """Who tells the engine how busy these GPUs are; None where nobody can."""
    if virtual is not None:
        return UsageWatch(VirtualUse(virtual, tuple(node.name for node in local.nodes)), ask)
    # Most servers that are tried out have no real GPU, and start sooner without all this.
    from batuta.bootstrap.real_use import RealUse
    from batuta.gpu.profiler.nvml import NoNvml

    try:
        return UsageWatch(RealUse(local.devices), ask)
    except NoNvml:
        return None
