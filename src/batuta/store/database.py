"""What the journal and the tables beside it need of a database, and what all databases do alike: staging."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

Statement: TypeAlias = tuple[str, tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class Batch:
    """Statements of one transaction. Once it was tried it gets no more: it may be written, unknown to us."""

    statements: list[Statement]
    is_written: bool = False
    changed: int | None = None
    """The rows that its last statement changed, if the database has said so."""


class Database(ABC):
    """A database of Batuta's, checked and brought to the newest schema when it is opened.

    Durable: when `commit` has returned, neither kill -9 nor a loss of power takes back what was staged.
    Whole: everything that was staged between two commits is there afterwards, or nothing of it.
    Once: what a failed commit left behind is written by the next, or was written already; never twice.
    """

    name: str
    """What it is called in messages; without a secret in it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._staged: list[Statement] = []
        self._tried: list[Batch] = []
        """Batches whose commit has failed, oldest first."""
        self._staged_values: dict[Hashable, Any] = {}

    # ------------------------------------------------------------------------------------------------ reading

    @abstractmethod
    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """All rows at once of what is committed; from any thread, without waiting for the writer."""

    def row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        found = self.rows(sql, *values)
        return found[0] if found else None

    # ------------------------------------------------------------------------------------------------ writing

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other threads of this process from staging or committing meanwhile."""
        with self._lock:
            yield

    def stage(self, statements: Iterable[Statement], key: Hashable = None, value: Any = None) -> None:
        """Puts statements into the next commit; until then `value` can be asked for under `key`."""
        with self._lock:
            self._staged.extend(statements)
            if key is not None:
                self._staged_values[key] = value

    def staged_value(self, key: Hashable) -> Any:
        """What was staged under a key and is not committed yet, else None."""
        with self._lock:
            return self._staged_values.get(key)

    @property
    def staged(self) -> int:
        """Statements that wait for the next commit."""
        with self._lock:
            return len(self._staged) + sum(len(batch.statements) for batch in self._tried)

    def commit(self) -> None:
        """Makes all that is staged durable, together. If it fails all stays staged, to be tried again."""
        with self._lock:
            if self._staged:
                self._tried.append(Batch(self._staged))
                self._staged = []
            while self._tried:
                self._write(self._tried[0])
                del self._tried[0]
            self._staged_values = {}

    def write_now(self, statements: Iterable[Statement]) -> None:
        """A transaction of its own, at once; what is staged waits for its commit."""
        with self._lock:
            self._write(Batch(list(statements)))

    @abstractmethod
    def count_now(self, sql: str, *values: Any) -> int:
        """One statement, at once; the number of rows that it changed."""

    @abstractmethod
    def _write(self, batch: Batch) -> None:
        """Writes a batch that is not written yet: all of it, or nothing. The caller has the lock."""

    # ------------------------------------------------------------------------------------------ house-keeping

    @abstractmethod
    def size_bytes(self) -> int:
        """What the database takes on disk."""

    @abstractmethod
    def give_back(self) -> None:
        """Returns some of the room of what was removed to the disk."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything. What is staged and not committed is forgotten."""
