"""Whether a UnifiedJob may be told to the World, and how much of it: somebody else may have a say in that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from batuta.backends.kube.operator.request import Asked
from batuta.backends.kube.unified_job.model import UnifiedJob


class Waiting(NamedTuple):
    """Why a job is kept out."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Passed:
    """What the World shall know of a job."""

    asked: Asked
    """Without a job while it is kept out."""
    waiting: Waiting | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    """What its pods tolerate beyond what their template says."""


class Gate(Protocol):
    """Asked whenever a job is looked at."""

    def __call__(self, uj: UnifiedJob, asked: Asked, is_inside: bool) -> Passed:
        """`is_inside`: the World knows the job, or its pods are there: it can be parked, but not kept out."""
        ...


def open_gate(uj: UnifiedJob, asked: Asked, is_inside: bool) -> Passed:
    """Everybody may pass."""
    return Passed(asked)
