"""Whose a process on a GPU is: the value, and the port that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """A pod of a job, or a job's replica on this machine."""

    job: str
    pod: str = ""
    """The pod, or the replica; empty where a job has no parts."""
    namespace: str = ""
    """Of both, on Kubernetes."""


class Owners(Protocol):
    """Knows whose processes are."""

    def of(self, pid: int) -> Owner | None:
        """The owner of a process; None for one of the host, or one that has gone."""

    def by_gpu(self) -> Mapping[str, Owner]:
        """Who was given a GPU as a whole, by its UUID: for GPUs whose processes cannot be seen."""


class Nobody:
    """Knows of no owners."""

    def of(self, pid: int) -> Owner | None:
        return None

    def by_gpu(self) -> Mapping[str, Owner]:
        return {}
