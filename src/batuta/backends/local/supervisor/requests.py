"""Requests for a checkpoint, numbered, in a file that the training script can read (see batuta.sdk)."""

from __future__ import annotations

from batuta.backends.local.supervisor.status_file import StatusFile


class CheckpointRequests:
    """Writes the number of the latest request. It has its space already, should the disk be full by then."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._file = StatusFile(path) if path else None

    def add(self) -> int:
        """Makes a new request; its number."""
        number = self._latest() + 1
        if self._file:
            self._file.replace(f"{number}\n")
        return number

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _latest(self) -> int:
        """The number in the file: a former run's, if they share it."""
        try:
            with open(self._path or "", encoding="utf-8") as file:
                return int(file.read(32))
        except (OSError, ValueError):
            return 0
