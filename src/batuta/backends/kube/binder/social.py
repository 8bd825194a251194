"""Counts, per node, of the pods that other pods speak about; kept only for what somebody has asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from batuta.backends.kube.binder.node_table import Ints
from batuta.backends.kube.binder.padding import padded
from batuta.backends.kube.binder.pod_terms import Identity, PodTerm, Spread
from batuta.backends.kube.binder.selector import Selector


class Everyone(NamedTuple):
    """Pods that match all of some terms."""

    terms: tuple[PodTerm, ...]

    def counts(self, who: Identity, terminating: bool) -> bool:
        del terminating  # still there, so still near
        return all(term.matches(who) for term in self.terms)


class Lasting(NamedTuple):
    """Pods of a namespace that a selector finds and that are not about to go."""

    namespace: str
    selector: Selector

    def counts(self, who: Identity, terminating: bool) -> bool:
        return not terminating and who.namespace == self.namespace and self.selector.matches(who.labels)


Question: TypeAlias = Everyone | Lasting
_MOST_QUESTIONS: Final = 512


class Resident(NamedTuple):
    """A pod as the counts see it."""

    row: int
    who: Identity
    terminating: bool
    apart: tuple[PodTerm, ...]


class Society:
    """How many pods of each node answer each question, and which anti-affinity terms live where."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever a count changes."""
        self.apart: dict[PodTerm, Ints] = {}
        """Anti-affinity terms of the pods that are there: how many pods of each node have them."""
        self._capacity = 0
        self._counts: dict[Question, Ints] = {}

    @property
    def is_silent(self) -> bool:
        """Whether nobody has said anything about other pods."""
        return not self._counts and not self.apart

    def resize(self, capacity: int) -> None:
        self._capacity = capacity
        self.apart = {term: padded(column, (capacity,)) for term, column in self.apart.items()}
        self._counts = {question: padded(column, (capacity,)) for question, column in self._counts.items()}

    def count(self, question: Question, residents: Iterable[Resident]) -> Ints:
        """Pods per node that answer the question; `residents` is read the first time it is asked."""
        column = self._counts.get(question)
        if column is None:
            if len(self._counts) >= _MOST_QUESTIONS:
                self.forget_questions()
            column = self._counts[question] = np.zeros(self._capacity, np.int64)
            for one in residents:
                column[one.row] += question.counts(one.who, one.terminating)
        return column

    def take(self, resident: Resident, sign: int) -> None:
        """A pod comes (`sign` 1) or goes (-1)."""
        for question, column in self._counts.items():
            if question.counts(resident.who, resident.terminating):
                column[resident.row] += sign
                self.version += 1
        for term in resident.apart:
            if term not in self.apart:
                self.apart[term] = np.zeros(self._capacity, np.int64)
            holders = self.apart[term]
            holders[resident.row] += sign
            self.version += 1
            if not holders.any():
                del self.apart[term]

    def forget_questions(self) -> None:
        """Drops all counts of questions; they are counted again when somebody asks."""
        self._counts.clear()
        self.version += 1


def spread_question(spread: Spread) -> Lasting:
    return Lasting(spread.namespace, spread.selector)
