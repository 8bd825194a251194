"""The interface that the command line uses for a Batuta server and for a Kubernetes cluster alike."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from batuta.apitypes import queues as q
from batuta.apitypes import resources as a
from batuta.client.errors import ApiError
from batuta.client.submission import Submission


class Connection(Protocol):
    """A server or cluster that runs jobs. What it cannot do raises a ClientError with the reason."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def where(self) -> str:
        """The name of the server or cluster; known once it has answered."""
        ...

    # ------------------------------------------------------------------------------------------------- submit

    def send_submission(self, submission: Submission, *, dry_run: bool = False) -> a.Submitted: ...

    def manifest(self, submission: Submission) -> Mapping[str, Any] | None:
        """The object that would be written; None where it is not the client that makes it."""
        ...

    # --------------------------------------------------------------------------------------------------- look

    def job(self, job: a.Job | str) -> a.Job: ...

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        active: bool | None = None,
        user: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        since_s: float | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> tuple[a.Job, ...]: ...

    def explain(self, job: a.Job | str) -> a.Explanation: ...

    def suggestions(self, job: a.Job | str) -> tuple[a.SuggestedChange, ...]: ...

    def result(self, job: a.Job | str) -> Any: ...

    def wait(
        self,
        job: a.Job | str,
        until: Literal["running", "ended"] = "ended",
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job: ...

    def wait_until(
        self,
        job: a.Job | str,
        done: Callable[[a.Job], bool],
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job: ...

    def log_bytes(
        self,
        job: a.Job | str,
        *,
        follow: bool = False,
        rank: int = 0,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> Iterator[bytes]:
        """What a replica printed. Only a cluster knows when, so `since_s` is for clusters."""
        ...

    def rank_logs(
        self,
        job: a.Job | str,
        *,
        follow: bool = False,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """What all replicas printed, as pairs of a rank and some bytes."""
        ...

    # ------------------------------------------------------------------------------------------------- change

    def cancel(self, job: a.Job | str) -> a.Job: ...

    def park(self, job: a.Job | str) -> a.Job: ...

    def resume(self, job: a.Job | str) -> a.Job: ...

    def resize(
        self,
        job: a.Job | str,
        nodes: int | None = None,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
    ) -> a.Job: ...

    def unpin(self, job: a.Job | str) -> a.Job:
        """Leaves the size to the scheduler again."""
        ...

    # ------------------------------------------------------------------------------------------------ cluster

    def cluster(self) -> a.Cluster: ...

    def nodes(self) -> tuple[a.Node, ...]: ...

    def cordon(self, node: str) -> a.Node: ...

    def uncordon(self, node: str) -> a.Node: ...

    def drain(self, node: str) -> a.Node: ...

    def mended(self, node: str, gpu: int | None = None) -> a.Node: ...

    def queues(self) -> tuple[q.Queue, ...]: ...

    def queue_tree(self) -> q.Queues: ...

    def queue(self, name: str, limit: int = 100) -> q.QueueDetail: ...

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> q.Queue: ...

    def quota_objects(self) -> list[dict[str, Any]]: ...

    def apply_quota(self, files: Sequence[tuple[str, str]], *, dry_run: bool = False) -> q.QuotaChanged: ...

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> q.QuotaChanged: ...

    def policy(self) -> a.PolicyAnswer: ...

    def set_policy(self, name: str) -> a.PolicyAnswer: ...

    # ------------------------------------------------------------------------------------------------- events

    def last_event(self) -> int:
        """The number of the newest event."""
        ...

    def events(
        self, after: int | None = None, types: Sequence[str] = (), job: str | None = None
    ) -> Iterator[a.Event]: ...

    def recent_events(
        self, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]: ...


RankPiece: TypeAlias = tuple[int, bytes]
"""Whose, and some bytes of it."""
MAX_RANKS: Final = 64
"""So many are followed at once: each takes a connection and a thread. `--node-rank` shows the others."""
_POLL_S: Final = 0.5


def follow_ranks(
    read: Callable[[int], Iterator[bytes]],
    count: Callable[[], int],
    is_over: Callable[[], bool],
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
