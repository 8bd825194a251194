"""Selectors as frozen values: they match labels, and equal ones are one dictionary key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from batuta.backends.kube import objects


class Requirement(NamedTuple):
    """One condition on one label. An unknown operator matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return self.matches_value(labels.get(self.key))

    def matches_value(self, value: str | None) -> bool:
        """`value` is None where the label is missing."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
            case _:
                return False

    def _compares(self, value: str | None) -> bool:
        number, bound = _integer(value), _integer(self.values[0] if len(self.values) == 1 else None)
        if number is None or bound is None:
            return False
        return number > bound if self.operator == "Gt" else number < bound


def _integer(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def requirements(
    expressions: Iterable[objects.Expression], labels: Mapping[str, str] | None = None
) -> tuple[Requirement, ...]:
    """Conditions that hold together, in one order, however they were written."""
    exact = [Requirement(key, "In", (value,)) for key, value in (labels or {}).items()]
    listed = [Requirement(one.key, one.operator, tuple(sorted(one.values))) for one in expressions]
    return tuple(sorted([*exact, *listed]))


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions on an object's labels; `nothing` matches no object, and no conditions match every one."""

    conditions: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(one.matches(labels) for one in self.conditions)


NOTHING: Final = Selector(nothing=True)


def selector_of(found: objects.LabelSelector | None) -> Selector:
    """A selector that is absent matches nothing; an empty one, everything."""
    if found is None:
        return NOTHING
    return Selector(requirements(found.match_expressions, found.match_labels))
