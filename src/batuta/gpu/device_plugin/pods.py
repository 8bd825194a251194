"""The pods of this node that want a share of a GPU, as the API server knows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from batuta.gpu.device_plugin.stock import Resource


@dataclass(frozen=True, slots=True)
class ContainerShare:
    """What one container asks for, in the kubelet's units."""

    name: str
    memory_units: int = 0
    compute_percent: int = 0
    is_init: bool = False
    """Whether it ends before the others start, and leaves its units to them."""

    def units(self, resource: Resource) -> int:
        return self.memory_units if resource is Resource.MEMORY else self.compute_percent


@dataclass(frozen=True, slots=True)
class SharePod:
    """A pod that is bound to this node and has not ended."""

    namespace: str
    name: str
    uid: str
    card: int | None
    """The index of the card that the scheduler decided on; None where nobody did."""
    containers: tuple[ContainerShare, ...]
    """Those that ask for a share, in the order in which the kubelet admits them."""
    bound_s: float = 0.0
    version: int = 0
    """Of the object: tells the order of pods that were bound in the same second."""
    is_waiting: bool = True
    """Whether none of its containers has started."""
    is_soft: bool = False
    """Whether it may have more compute than it asked for, while the card has nothing else to do."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def order(self) -> tuple[float, int, str]:
        """The order in which the kubelet sees pods: that of their binding."""
        return (self.bound_s, self.version, str(self))


class PodsUnknown(Exception):
    """Nobody can say at the moment which pods there are."""


class Pods(Protocol):
    """Where pods are looked up."""

    async def on_this_node(self) -> Sequence[SharePod]:
        """All that have not ended, as they are now; raises `PodsUnknown`."""
