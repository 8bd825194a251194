"""A quota test case: the initial objects, then in each step an action and the expected result.

`quota_case_reader` reads it; `batuta queues try` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.cluster import Node
from batuta.core.quota import Quota, Toleration


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods that start together, or at least `min_count` of them where that is given."""

    name: str
    count: int
    requests: tuple[tuple[str, int], ...]  # resource and thousandths of it, for each pod
    min_count: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """A user submits a workload."""

    name: str
    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    active: bool = True
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """A workload finishes."""

    name: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A user deletes a workload."""

    name: str


@dataclass(frozen=True, slots=True)
class PatchWorkload:
    """A user changes a workload; None leaves a field unchanged."""

    name: str
    active: bool | None = None
    priority: int | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeQuota:
    """An administrator creates, updates or deletes one object."""

    verb: str  # `create`, `update` or `deleteObject`
    kind: str
    name: str
    quota: Quota  # all objects after the change. A queue that was deleted may still have to drain.


Action: TypeAlias = Submit | Finish | Delete | PatchWorkload | ChangeQuota


@dataclass(frozen=True, slots=True)
class Eviction:
    """A workload that lost its quota in a step: reason, kind of preemption, preempting workload."""

    workload: str
    reason: str = ""
    preemption: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Why a workload waits."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected state after a step; None for what the file does not state."""

    admitted: Mapping[str, Mapping[str, str] | None] | None = None
    """The flavor of each resource, by workload; None where the file names only the workload."""
    preempted: tuple[Eviction, ...] | None = None
    pending: Mapping[str, PendingReason] | None = None

    def __bool__(self) -> bool:
        return self != Expected()

    def differences(
        self, admitted: Mapping[str, Mapping[str, str]], preempted: Iterable[str], pending: Iterable[str]
    ) -> list[str]:
        """Return how the real state differs, as sentences. Reasons and messages are not compared."""
        found: list[str] = []
        if self.admitted is not None:
            found += _compare("admitted", self.admitted, admitted)
            for name, flavors in self.admitted.items():
                if flavors is not None and name in admitted and dict(admitted[name]) != dict(flavors):
                    found.append(f"{name}: expected {_flavors(flavors)}, got {_flavors(admitted[name])}")
        if self.preempted is not None:
            found += _compare("preempted", (one.workload for one in self.preempted), preempted)
        if self.pending is not None:
            found += _compare("pending", self.pending, pending)
        return found


def _compare(what: str, expected: Iterable[str], got: Iterable[str]) -> list[str]:
    # A Counter would take the values of a mapping for counts.
    wanted, real = Counter(iter(expected)), Counter(iter(got))
    return [
        *(f"{name} is not {what}" for name in sorted((wanted - real).elements())),
        *(f"{name} is {what}, which was not expected" for name in sorted((real - wanted).elements())),
    ]


def _flavors(flavors: Mapping[str, str]) -> str:
    return ", ".join(f"{resource} in {flavor}" for resource, flavor in sorted(flavors.items())) or "no flavor"


@dataclass(frozen=True, slots=True)
class Step:
    """One action and the expected result."""

    action: Action
    expected: Expected = Expected()


@dataclass(frozen=True, slots=True)
class QuotaCase:
    """A named test case. Its quota says whether fair sharing is on."""

    name: str
    quota: Quota
    steps: tuple[Step, ...]
    note: str = ""
    notes: tuple[str, ...] = ()  # the fields of the objects that Batuta does not use
    nodes: tuple[Node, ...] = ()  # what the quotas leave of these nodes belongs to the queue `default`
