"""What the verbs ask for, whoever answers: a server of ours, or the API server of a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from batuta.client import answers as a
from batuta.client import queue_answers as q
from batuta.client.quota_calls import QuotaChanged
from batuta.client.submission import Submission


class Connection(Protocol):
    """One place where jobs run. What it cannot do it says, by a ClientError with the reason."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def where(self) -> str:
        """The place, as people name it; known once it has answered."""
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

    def suggestions(self, job: a.Job | str) -> tuple[a.Suggestion, ...]: ...

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

    def queue_tree(self) -> q.QueueTree: ...

    def queue(self, name: str, limit: int = 100) -> q.QueueDetail: ...

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> q.Queue: ...

    def quota_objects(self) -> list[dict[str, Any]]: ...

    def apply_quota(self, files: Sequence[tuple[str, str]], *, dry_run: bool = False) -> QuotaChanged: ...

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> QuotaChanged: ...

    def policy(self) -> a.Policy: ...

    def set_policy(self, name: str) -> a.Policy: ...

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
