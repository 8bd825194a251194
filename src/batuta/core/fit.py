"""Which nodes suit a job by what is written on them: labels that it wants, taints that it tolerates."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias

EVERYTHING = "*"
"""The toleration of all taints."""


class Operator(Enum):
    """How a label is compared, as Kubernetes' selectors mean it."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    ABSENT = "DoesNotExist"
    ABOVE = "Gt"
    BELOW = "Lt"


class Requirement(NamedTuple):
    """What one label of a node has to be."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


NodeTerm: TypeAlias = tuple[Requirement, ...]
"""Requirements that a node has to meet together."""


class Choosy(Protocol):
    """Whoever wants something of what is written on nodes."""

    @property
    def node_labels(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def node_terms(self) -> tuple[NodeTerm, ...]: ...

    @property
    def tolerations(self) -> tuple[str, ...]: ...


class _Taint(NamedTuple):
    """`key`, `key=value`, `key:effect` or `key=value:effect`, taken apart; None where nothing is said."""

    key: str
    value: str | None
    effect: str | None


@lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> _Taint:
    head, colon, effect = text.partition(":")
    key, equals, value = head.partition("=")
    return _Taint(key, value if equals else None, effect if colon else None)


def tolerates(tolerations: Sequence[str], taint: str) -> bool:
    """Whether one of the tolerations covers the taint: one that says less covers more."""
    if taint in tolerations or EVERYTHING in tolerations:
        return True
    its = _parsed(taint)
    return any(_covers(_parsed(toleration), its) for toleration in tolerations)


def _covers(toleration: _Taint, taint: _Taint) -> bool:
    return (
        toleration.key in (taint.key, EVERYTHING)
        and (toleration.value is None or toleration.value == (taint.value or ""))
        and (toleration.effect is None or toleration.effect == taint.effect)
    )


def compares(requirement: Requirement, value: str) -> bool:
    """Whether a label's value is above or below the one that is asked for; what is no number is neither."""
    try:
        there, asked = int(value), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return there > asked if requirement.operator is Operator.ABOVE else there < asked
