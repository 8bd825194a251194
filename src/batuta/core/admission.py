"""The port between the decision and quota: who may run at all, and up to what size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from batuta.core.arrays import IntArray
from batuta.core.reason import Evidence, Reason

if TYPE_CHECKING:
    from batuta.core.world import World


@dataclass(frozen=True, slots=True)
class Admitted:
    """For every row of the job table the largest size that it may have; 0 keeps it waiting."""

    cap: IntArray | None = None
    """None: every job may have its `max`."""
    refused: dict[int, tuple[Reason, Evidence]] | None = None
    """Why rows with cap 0 wait, and what limits rows whose cap is below their `max`."""
    gpu_type: IntArray | None = None
    """The GPU type whose quota each row uses; None leaves the choice to the next step."""


class Admission(Protocol):
    """Says who may run. It must not look at what is free: that is the placer's business."""

    def admit(self, world: World, now_s: float) -> Admitted: ...


class OpenDoor:
    """Admits every job up to its `max`."""

    def admit(self, world: World, now_s: float) -> Admitted:
        return Admitted()
