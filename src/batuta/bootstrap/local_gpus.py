"""Gives the replicas of local mode access to their GPUs, and holds them to their shares.

Libraries are compiled beside the start of the server, which does not wait: the first time on a machine that
takes seconds. No replica starts before they are there. What is not available is done without, and logged once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from batuta.backends.local.replica_plan import ReplicaGpus
from batuta.core.cluster import NodeName
from batuta.core.job import Share
from batuta.engine.fence import Fence
from batuta.gpu.local_nodes import VirtualGpus
from batuta.gpu.native_libraries import copy_for_all, find_compiler, share_library
from batuta.gpu.share.cards import CardFolder
from batuta.gpu.share.limits import LONGEST_NAME, DeviceLimit, ShareLimits, share_environment, write_limits
from batuta.spec.problem import InputError

CARDS = "gpu-grants"
"""Within the state directory: what replicas were granted of each card, and what they want of it."""


class LocalGpus:
    """The GPUs of all nodes, as the backend gives them to replicas."""

    def __init__(
        self,
        home: Path,
        devices: Mapping[NodeName, Sequence[str | int]],
        virtual: VirtualGpus | None,
        *,
        for_all: bool = False,
    ) -> None:
        """`virtual` is None where the GPUs are real. `for_all`: jobs of other users get to `home`, too."""
        self._for_all = home if for_all else None
        self.virtual = virtual
        self.notes: list[str] = _known_at_once(virtual)  # what cannot be had, and why
        self._devices = devices
        self._cards = home / CARDS
        self._share_library: Path | None = None
        self._ready = threading.Event()

    def prepare(self, done: Callable[[], None], fence: Fence | None = None) -> None:
        """Begins to compile what is missing; `done` is called when replicas may start."""
        (fence or Fence()).start("preparation of GPUs", lambda: self._prepare(done))

    def _prepare(self, done: Callable[[], None]) -> None:
        if not self.notes:
            steps = [("no job is held to its share of a GPU", self._build_share_library)]
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

    def _build_share_library(self) -> None:
        library = share_library()
        self._share_library = (
            library if self._for_all is None else copy_for_all(library.parent, self._for_all) / library.name
        )

    def is_ready(self) -> bool:
        return self._ready.is_set()

    def inject(self, replica: ReplicaGpus, env: Mapping[str, str]) -> dict[str, str]:
        try:
            found = dict(env) if self.virtual is None else self.virtual.environment(replica.node, env)
            uuid = self._uuid(replica.node, replica.gpus[0])
            return found if uuid is None else self._limited(replica, uuid, found)
        except InputError as error:
            raise ValueError(f"its GPUs cannot be had: {error}") from error

    def _uuid(self, node: NodeName, gpu: int) -> str | None:
        """What NVML calls a GPU; None where no program will see it."""
        with suppress(LookupError):
            named = self._devices[node][gpu] if self.virtual is None else self.virtual.uuids(node)[gpu]
            return named if isinstance(named, str) else None
        return None

    def _limited(self, replica: ReplicaGpus, uuid: str, env: dict[str, str]) -> dict[str, str]:
        """`env`, in which a replica gets no more than its share; as it was for one that has whole GPUs."""
        if self._share_library is None or replica.job.share is None:
            return env
        own = replica.own or replica.folder
        path, limit = replica.folder / "gpu-limits", _limit(uuid, replica.job.share)
        name, region = replica.run_id[-LONGEST_NAME:], own / "gpu-region"
        limits = ShareLimits(name, region, (limit,), self._cards)
        write_limits(path, limits)
        CardFolder(self._cards).grant(limits, owner=_owner_to_give(own))
        return {**env, **share_environment(path, self._share_library, env)}


def _owner_to_give(folder: Path) -> tuple[int, int] | None:
    """The user and group that a replica's folder belongs to, where a server of root's can give files away."""
    if os.geteuid() != 0:
        return None
    status = folder.stat()
    return status.st_uid, status.st_gid


def _limit(uuid: str, share: Share) -> DeviceLimit:
    """A share without a word on compute competes for the card's time with the others, by equal weight."""
    percent = share.compute_percent or None
    return DeviceLimit(
        uuid,
        memory_mib=share.memory_mib or None,
        compute_percent=None if share.soft else percent,
        soft_compute_percent=percent if share.soft else None,
    )


def _known_at_once(virtual: VirtualGpus | None) -> list[str]:
    try:
        find_compiler()
    except InputError as error:
        what = "no program sees the virtual GPUs, and " if virtual is not None else ""
        return [f"{what}no job is held to its share of a GPU: {error}"]
    return []
