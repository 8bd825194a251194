"""A story about quota: the objects it begins with, then step by step what happens and what is expected.

`spec/quota_case_file.py` reads it; `batuta queues try` runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.quota import Quota, Toleration


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one shape: all of them start together, or at least `min_count` where that is given."""

    name: str
    count: int
    requests: tuple[tuple[str, int], ...]
    """Resource and thousandths of it, for each pod."""
    min_count: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class Submit:
    """A workload asks for quota."""

    name: str
    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    active: bool = True
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """A workload ends by itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Somebody removes a workload."""

    name: str


@dataclass(frozen=True, slots=True)
class PatchWorkload:
    """Somebody changes a workload; None leaves a thing as it is."""

    name: str
    active: bool | None = None
    priority: int | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeQuota:
    """An administrator creates, updates or deletes one object."""

    verb: str
    """`create`, `update` or `deleteObject`."""
    kind: str
    name: str
    quota: Quota
    """All that is written after the change. A queue that is gone from it may still have to drain."""


Action: TypeAlias = Submit | Finish | Delete | PatchWorkload | ChangeQuota


@dataclass(frozen=True, slots=True)
class Eviction:
    """A workload that lost its quota in a step: why, in which way, and to whom."""

    workload: str
    reason: str = ""
    preemption: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a workload waits."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file says about the end of a step; None for what it does not say."""

    admitted: Mapping[str, Mapping[str, str] | None] | None = None
    """The flavor of each resource, by workload; None where it says only who."""
    preempted: tuple[Eviction, ...] | None = None
    pending: Mapping[str, Wait] | None = None

    def __bool__(self) -> bool:
        return self != Expected()

    def differences(
        self,
        admitted: Mapping[str, Mapping[str, str]],
        preempted: Iterable[str],
        pending: Iterable[str],
    ) -> list[str]:
        """How what happened differs from this, as sentences. Reasons and messages are not compared."""
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
    # Of a mapping a Counter would take the values for counts.
    wanted, real = Counter(iter(expected)), Counter(iter(got))
    return [
        *(f"{name} is not {what}" for name in sorted((wanted - real).elements())),
        *(f"{name} is {what}, which was not expected" for name in sorted((real - wanted).elements())),
    ]


def _flavors(flavors: Mapping[str, str]) -> str:
    return ", ".join(f"{resource} in {flavor}" for resource, flavor in sorted(flavors.items())) or "no flavor"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens."""

    action: Action
    expected: Expected = Expected()


@dataclass(frozen=True, slots=True)
class Case:
    """A story with a name. Its quota says whether sharing is fair."""

    name: str
    quota: Quota
    steps: tuple[Step, ...]
    note: str = ""
    notes: tuple[str, ...] = ()
    """What of the objects Batuta does not heed."""
