"""The port by which replicas get at their GPUs: what their environment says beside CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from batuta.core.cluster import NodeName
from batuta.core.job import Job


@dataclass(frozen=True, slots=True)
class Seat:
    """The GPUs of one replica that is about to start."""

    job: Job
    node: NodeName
    gpus: tuple[int, ...]
    """By their numbers on the node."""
    run_id: str
    folder: Path
    """Of this run, of all its replicas; new at each start."""


class Equipment(Protocol):
    """What a replica needs to find its GPUs, and to be held to its share of them. For the engine's thread."""

    def is_ready(self) -> bool:
        """Whether replicas may start. Whoever makes it ready wakes the backend."""
        ...

    def equip(self, seat: Seat, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with what is needed beside it. OSError or ValueError when that cannot be had now."""
        ...


class PlainGpus:
    """GPUs that every program finds by itself."""

    def is_ready(self) -> bool:
        return True

    def equip(self, seat: Seat, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)
