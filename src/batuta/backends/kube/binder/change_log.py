"""Which rows of a table have changed, for readers that come back at different times."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 65_536


class ChangeLog:
    """Rows in the order of their changes. A reader keeps `end`, and later asks what came after it."""

    __slots__ = ("_first", "_rows")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._first = 0

    @property
    def end(self) -> int:
        return self._first + len(self._rows)

    def note(self, row: int) -> None:
        if len(self._rows) >= LONGEST:
            self._first += len(self._rows)
            self._rows.clear()
        self._rows.append(row)

    def since(self, seen: int) -> list[int] | None:
        """Rows that changed after `seen`, each once; None where that is no longer known: read all again."""
        if seen < self._first:
            return None
        count = self._first + len(self._rows) - seen
        if count <= 1:
            return self._rows[-1:] if count else []
        return list(dict.fromkeys(self._rows[seen - self._first :]))
