"""What the clients of a Batuta server and of a Kubernetes cluster share: the command line uses both alike."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from batuta.apitypes.resources import Job
from batuta.client.errors import ApiError

if TYPE_CHECKING:
    from batuta.client.client import Client
    from batuta.client.kube.client import KubeClient

Connection: TypeAlias = "Client | KubeClient"
"""A server or cluster that runs jobs. What it cannot do raises a ClientError with the reason."""


class Closable(ABC):
    """Is closed at the end of a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...


class JobClient(Closable):
    """Waits for jobs."""

    @abstractmethod
    def wait_until(
        self,
        job: Job | str,
        done: Callable[[Job], bool],
        timeout_s: float | None = None,
        tell: Callable[[Job], None] | None = None,
    ) -> Job:
        """Return the job when `done`. It outlasts a restart of the server."""

    def wait(
        self,
        job: Job | str,
        until: Literal["running", "ended"] = "ended",
        timeout_s: float | None = None,
        tell: Callable[[Job], None] | None = None,
    ) -> Job:
        """Return when the job runs, or has ended (however: look at its state).

        `tell` gets the job each time something happened to it. Raises WaitTimeoutError.
        """
        if until not in ("running", "ended"):
            raise ValueError(f"until must be 'running' or 'ended', got {until!r}")

        def done(now: Job) -> bool:
            return now.is_over or (until == "running" and now.state == "RUNNING")

        return self.wait_until(job, done, timeout_s, tell)


RankPiece: TypeAlias = tuple[int, bytes]
MAX_RANKS: Final = 64
"""So many are followed at once: each takes a connection and a thread. `--node-rank` shows the others."""
_POLL_S: Final = 0.5


def follow_ranks(
    read: Callable[[int], Iterator[bytes]], count: Callable[[], int], is_over: Callable[[], bool]
) -> Iterator[RankPiece]:
    """Yield what all ranks print until the job is over, including ranks that a resize adds.

    `read` follows one rank to the end of the job, `count` says how many ranks have printed something so far.
    """
    news: queue.Queue[tuple[int, bytes | Exception | None]] = queue.Queue(maxsize=256)
    reading: set[int] = set()

    def follow(rank: int) -> None:
        try:
            for piece in read(rank):
                news.put((rank, piece))
        except Exception as problem:
            news.put((rank, problem))
        news.put((rank, None))

    begun = 0
    while True:
        over = is_over()  # asked before counting: a rank that began before the end is then seen
        for rank in range(begun, min(MAX_RANKS, max(1, count()))):
            reading.add(rank)
            threading.Thread(target=follow, args=(rank,), name=f"log of rank {rank}", daemon=True).start()
            begun = rank + 1
        if over and not reading:
            return
        yield from _pieces_received(news, reading)


def _pieces_received(news: queue.Queue[tuple[int, bytes | Exception | None]], reading: set[int]) -> Iterator[RankPiece]:
    """What comes within a moment. Raises what ended a reader, unless its rank is not there."""
    try:
        rank, said = news.get(timeout=_POLL_S)
        while True:
            if said is None:
                reading.discard(rank)
            elif isinstance(said, bytes):
                yield rank, said
            elif not (isinstance(said, ApiError) and said.status == 404):
                raise said
            rank, said = news.get_nowait()
    except queue.Empty:
        return
