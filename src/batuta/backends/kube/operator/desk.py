"""What the operator looks after beside jobs and nodes."""

from __future__ import annotations

from typing import Protocol

from batuta.backends.kube.operator.inbox import Changed, Written


class Desk(Protocol):
    """Told of all that the API server shows, and given a turn whenever the floor has one. Level-triggered."""

    def take(self, changed: Changed, now_s: float) -> None:
        """Objects have changed; of most kinds a desk knows nothing."""
        ...

    def heard(self, written: Written, now_s: float) -> None:
        """A write is done that no job has asked for."""
        ...

    def drive(self, now_s: float) -> None:
        """Does everything that can be done now."""
        ...

    def next_s(self) -> float:
        """When it wants a turn even if nothing happens."""
        ...
