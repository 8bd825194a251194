"""Logs of a job's pods: one replica or all, across restarts, without the SDK's reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Final

from batuta.apitypes.resources import FINAL_STATES
from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_whole
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, Invalid, NotFound, Unavailable
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.jobtypes import JobTypes, load_job_types
from batuta.backends.kube.names import REPORT_PREFIX
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.client.connection import MAX_RANKS
from batuta.client.errors import ClientError, OutputGoneError

_MARK: Final = f"{REPORT_PREFIX}{{".encode()
_LONGEST: Final = 2**15  # what does not end by then is no report


class ReportFilter:
    """Passes a log on piece by piece, as it comes; only what may be the beginning of a report is held."""

    def __init__(self) -> None:
        self._held = b""

    def take(self, piece: bytes) -> bytes:
        """What there is to show of one more piece."""
        data, shown = self._held + piece, []
        while (at := data.find(_MARK)) >= 0:
            end = data.find(b"\n", at) + 1
            if not end and len(data) - at <= _LONGEST:
                break
            shown.append(data[:at] if end else data)
            data = data[end:] if end else b""
        # Held back is a report without its end, or an end that may become one.
        at = at if at >= 0 else len(data) - _begun(data)
        shown.append(data[:at])
        self._held = data[at:]
        return b"".join(shown)

    def rest(self) -> bytes:
        """What was held back; nothing more comes."""
        held, self._held = self._held, b""
        return held


def last_lines(log: bytes, count: int) -> bytes:
    return b"".join(log.splitlines(keepends=True)[-count:]) if count > 0 else b""


def _begun(data: bytes) -> int:
    """How much of the mark of a report is at the end."""
    return next((n for n in range(min(len(_MARK) - 1, len(data)), 0, -1) if data.endswith(_MARK[:n])), 0)


_BEGUN: Final = frozenset({"Running", "Succeeded", "Failed"})
_PAUSE_S: Final = 1.0
_AHEAD: Final = 64
_MORE_LINES: Final = 100
_MORE_TIMES: Final = 4  # reports of the SDK are not shown: to show some lines, more have to be read
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"


def labels_of(uj: UnifiedJob) -> str:
    return f"{names.JOB_NAME}={uj.metadata.name}"


def pods_of_rank(uj: UnifiedJob, pods: Iterable[objects.Pod], rank: int) -> list[objects.Pod]:
    """The pods that were this replica and may have printed something, the first start first.

    Replica 0 of a job with a launcher is the launcher: mpirun and horovodrun collect there what all print.
    """
    types, own = load_job_types(), [pod for pod in pods if pod.status.phase in _BEGUN]
    launchers = [pod for pod in own if pod.metadata.labels.get(names.ROLE) == "launcher"]
    chosen = launchers if launchers and rank == 0 else [pod for pod in own if _rank(types, uj, pod) == rank]
    return sorted(chosen, key=_age)


def _rank(types: JobTypes, uj: UnifiedJob, pod: objects.Pod) -> int | None:
    kind = types.get(uj.spec.job_type)
    text = pod.metadata.labels.get(names.REPLICA_INDEX, "")
    return kind.replica_of(pod) if kind is not None else read_whole(text)


def _age(pod: objects.Pod) -> tuple[int, str]:
    return (read_whole(pod.metadata.labels.get(names.START)) or 0, pod.metadata.creation_timestamp)


async def read_log(api: Api, uj: UnifiedJob, rank: int, tail: int | None, since: str = "") -> AsyncIterator[bytes]:
    """What there is now, of the last start. Raises OutputGoneError when its pods or their node are gone."""
    listed = await api.list(POD, uj.metadata.namespace, labels=labels_of(uj))
    pods = pods_of_rank(uj, listed.items, rank)
    if not pods:
        # A replica that the job never has is a mistake; one that it has not just now prints nothing.
        if rank >= (most := uj.spec.replica_spec.largest):
            raise ClientError(f"job {uj.id} has no replica {rank}: it has at most {most}, counted from 0")
        if uj.status.start_time:
            raise OutputGoneError(f"the pods of replica {rank} of job {uj.id} are gone")
        return
    readable, tail_lines = ReportFilter(), None if tail is None else _MORE_LINES + _MORE_TIMES * tail
    shown = b""
    async for piece in _pieces(api, pods[-1], tail_lines, since, follow=False):
        text = readable.take(piece)
        if tail is None:
            yield text
        else:
            shown += text
    yield readable.rest() if tail is None else last_lines(shown + readable.rest(), tail)


async def follow_log(api: Api, uj: UnifiedJob, rank: int, tail: int | None, since: str = "") -> AsyncIterator[bytes]:
    """The same, and on until the job is over: through restarts, and through connections that break."""
    meta = uj.metadata
    await api.list(POD, meta.namespace, labels=labels_of(uj))  # raises Forbidden here, not in the informer
    news = asyncio.Event()
    pods = Informer(api, POD, lambda _: news.set(), namespace=meta.namespace, labels=labels_of(uj))
    jobs = Informer(
        api, UNIFIED_JOB, lambda _: news.set(), namespace=meta.namespace, fields=f"metadata.name={meta.name}"
    )
    watching = [asyncio.create_task(one.run()) for one in (pods, jobs)]
    try:
        await asyncio.gather(pods.synced.wait(), jobs.synced.wait())
        given: dict[str, int] = {}  # how many bytes of each pod were passed on
        ended: set[str] = set()
        readable: dict[str, ReportFilter] = {}
        while True:
            news.clear()
            known = jobs.objects.get(uj.id)
            unread = [pod for pod in pods_of_rank(uj, pods.objects.values(), rank) if pod.metadata.uid not in ended]
            if unread:
                pod = unread[0]
                uid = pod.metadata.uid
                is_last = pod.status.phase != "Running"
                log = readable.setdefault(uid, ReportFilter())
                async for piece in _pieces_from_last_byte(api, pod, tail if uid not in given else None, since, given):
                    yield log.take(piece)
                tail = None if tail is None else 0
                if is_last:
                    ended.add(uid)
                    yield log.rest()
                else:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(news.wait(), _PAUSE_S)
            elif known is None or known.status.state in FINAL_STATES:
                return
            else:
                await news.wait()
    finally:
        for task in watching:
            task.cancel()


async def read_logs(api: Api, uj: UnifiedJob, tail: int | None, since: str = "") -> AsyncIterator[tuple[int, bytes]]:
    """What all replicas have printed, one after another. A replica without pods has printed nothing."""
    for rank in range(_rank_count(uj)):
        try:
            async for piece in read_log(api, uj, rank, tail, since):
                yield rank, piece
        except OutputGoneError:
            if rank == 0:
                raise


async def follow_logs(api: Api, uj: UnifiedJob, tail: int | None, since: str = "") -> AsyncIterator[tuple[int, bytes]]:
    """The same as it is printed, until the job is over."""
    arrived: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_AHEAD)

    async def follow(rank: int) -> None:
        async for piece in follow_log(api, uj, rank, tail, since):
            await arrived.put((rank, piece))

    async def follow_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for rank in range(_rank_count(uj)):
                    group.create_task(follow(rank))
        finally:
            await arrived.put(None)

    following = asyncio.create_task(follow_all())
    try:
        while (piece := await arrived.get()) is not None:
            yield piece
        try:
            await following
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
    finally:
        following.cancel()


def _rank_count(uj: UnifiedJob) -> int:
    """How many replicas are shown at once; what mpirun and horovodrun start prints through their launcher."""
    launched = uj.spec.job_type in ("MPIJob", "ElasticHorovod")
    return 1 if launched else max(1, min(MAX_RANKS, uj.spec.replica_spec.largest))


async def _pieces_from_last_byte(
    api: Api, pod: objects.Pod, tail: int | None, since: str, given: dict[str, int]
) -> AsyncIterator[bytes]:
    """A pod's output from where it was left, until it ends or the connection breaks."""
    uid = pod.metadata.uid
    skip = given.setdefault(uid, 0)
    try:
        async for piece in _pieces(api, pod, tail, since, follow=True):
            fresh = piece[skip:]
            skip -= min(skip, len(piece))
            given[uid] += len(fresh)
            if fresh:
                yield fresh
    except (Unavailable, NotFound):
        return  # the pod is gone, or it is tried again


async def _pieces(api: Api, pod: objects.Pod, tail: int | None, since: str, *, follow: bool) -> AsyncIterator[bytes]:
    meta = pod.metadata
    first = pod.spec.containers[0].name if pod.spec.containers else ""
    container = meta.annotations.get(_DEFAULT_CONTAINER) or first
    try:
        async for piece in api.logs(
            meta.namespace, meta.name, container=container, follow=follow, tail=tail, since=since
        ):
            yield piece
    except Forbidden:
        raise
    except ApiError as error:
        if isinstance(error, Invalid) and "waiting to start" in error.message:
            return
        is_gone = isinstance(error, NotFound) and f'"{meta.name}" not found' in error.message
        if follow and (is_gone or (isinstance(error, Unavailable) and not error.status)):
            raise
        raise OutputGoneError(f"the node of pod {meta.name} does not give its output: {error.message}") from error
