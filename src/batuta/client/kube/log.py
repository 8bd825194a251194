"""What the pods of a job print: one replica's output, across restarts, without the reports of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Forbidden, Invalid, NotFound, Unavailable
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import POD
from batuta.backends.kube.jobtypes.registry import JobTypes, load_job_types
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.client.answers import OVER
from batuta.client.errors import OutputGoneError, UnknownJobError
from batuta.client.kube.readable_log import ReadableLog, last_lines

_BEGUN: Final = frozenset({"Running", "Succeeded", "Failed"})
_PAUSE_S: Final = 1.0
_MORE_LINES: Final = 100
_MORE_TIMES: Final = 4
"""Reports of the SDK are not shown: to show some lines, more have to be read."""
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
    return kind.replica_of(pod) if kind is not None else int(text) if text.isdecimal() else None


def _age(pod: objects.Pod) -> tuple[int, str]:
    start = pod.metadata.labels.get(names.START, "")
    return (int(start) if start.isdecimal() else 0, pod.metadata.creation_timestamp)


async def read_log(
    api: Api, uj: UnifiedJob, rank: int, tail: int | None, since: str = ""
) -> AsyncIterator[bytes]:
    """What there is now, of the last start. Raises OutputGoneError when its pods or their node are gone."""
    listed = await api.list(POD, uj.metadata.namespace, labels=labels_of(uj))
    pods = pods_of_rank(uj, listed.items, rank)
    if not pods:
        _refuse_rank(uj, rank)
        if uj.status.start_time:
            raise OutputGoneError(f"the pods of replica {rank} of job {uj.id} are gone")
        return
    readable, tail_lines = ReadableLog(), None if tail is None else _MORE_LINES + _MORE_TIMES * tail
    shown = b""
    async for piece in _pieces(api, pods[-1], tail_lines, since, follow=False):
        text = readable.take(piece)
        if tail is None:
            yield text
        else:
            shown += text
    yield readable.rest() if tail is None else last_lines(shown + readable.rest(), tail)


async def follow_log(
    api: Api, uj: UnifiedJob, rank: int, tail: int | None, since: str = ""
) -> AsyncIterator[bytes]:
    """The same, and on until the job is over: through restarts, and through connections that break."""
    meta = uj.metadata
    await api.list(POD, meta.namespace, labels=labels_of(uj))  # who may not see pods is told so here
    news = asyncio.Event()
    pods = Informer(api, POD, lambda _: news.set(), namespace=meta.namespace, labels=labels_of(uj))
    jobs = Informer(
        api,
        UNIFIED_JOB,
        lambda _: news.set(),
        namespace=meta.namespace,
        fields=f"metadata.name={meta.name}",
    )
    watching = [asyncio.create_task(one.run()) for one in (pods, jobs)]
    try:
        await asyncio.gather(pods.synced.wait(), jobs.synced.wait())
        given: dict[str, int] = {}  # how many bytes of each pod were passed on
        ended: set[str] = set()
        readable: dict[str, ReadableLog] = {}
        while True:
            news.clear()
            known = jobs.objects.get(uj.id)
            unread = [
                pod for pod in pods_of_rank(uj, pods.objects.values(), rank) if pod.metadata.uid not in ended
            ]
            if unread:
                pod = unread[0]
                uid = pod.metadata.uid
                is_last = pod.status.phase != "Running"
                log = readable.setdefault(uid, ReadableLog())
                async for piece in _resumed(api, pod, tail if uid not in given else None, since, given):
                    yield log.take(piece)
                tail = None if tail is None else 0
                if is_last:
                    ended.add(uid)
                    yield log.rest()
                else:
                    await _pause(news)
            elif known is None or known.status.state in OVER:
                return
            else:
                await news.wait()
    finally:
        for task in watching:
            task.cancel()


async def _resumed(
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


async def _pieces(
    api: Api, pod: objects.Pod, tail: int | None, since: str, *, follow: bool
) -> AsyncIterator[bytes]:
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
        raise OutputGoneError(
            f"the node of pod {meta.name} does not give its output: {error.message}"
        ) from error


def _refuse_rank(uj: UnifiedJob, rank: int) -> None:
    """A replica that the job never has is a mistake; one that it has not just now prints nothing."""
    most = uj.spec.replica_spec.largest
    if rank >= most:
        raise UnknownJobError(f"job {uj.id} has no replica {rank}: it has at most {most}, counted from 0")


async def _pause(news: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_PAUSE_S):
            await news.wait()
    except TimeoutError:
        return
