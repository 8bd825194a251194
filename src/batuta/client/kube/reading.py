"""What is read of a cluster: jobs, nodes and events, as the verbs show them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches

from batuta.backends.kube import objects
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.informer import Informer
from batuta.backends.kube.client.kinds import NODE, POD, PRIORITY_CLASS
from batuta.backends.kube.names import GPU_PRODUCT_LABELS
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.client import answers as a
from batuta.client.errors import AmbiguousJobError, UnknownJobError
from batuta.client.kube.events import EVENT, KubeEvent
from batuta.client.kube.job_view import job_view, seconds
from batuta.client.kube.log import labels_of
from batuta.client.kube.node_view import node_views

PAGE = 500
UNSEEN_S = 30.0
"""A job that no operator has looked at for so long has none."""


async def find(api: Api, namespace: str, name: str) -> UnifiedJob:
    """A job by its name, or by `namespace/name`. In all namespaces (``""``) the name must be the only one."""
    within, slash, own = name.rpartition("/")
    place = within if slash else namespace
    if place:
        try:
            return await api.get(UNIFIED_JOB, own, place)
        except NotFound as error:
            if not error.details.kind:
                raise
    known = (await api.list(UNIFIED_JOB, place, page=PAGE)).items
    found = [job for job in known if job.metadata.name == own and not place]
    if len(found) == 1:
        return found[0]
    if found:
        ids = [job.id for job in found]
        raise AmbiguousJobError(f"{len(ids)} jobs have the name {own}: say which one ({', '.join(ids)})", ids)
    raise UnknownJobError(_unknown(own, place, known))


def _unknown(name: str, namespace: str, known: Sequence[UnifiedJob]) -> str:
    where = f" in namespace {namespace}" if namespace else ""
    near = get_close_matches(name, [job.metadata.name for job in known], n=1)
    fix = f"did you mean {near[0]}?" if near else "`batuta queue -a` lists them"
    return f"there is no job {name}{where}: {fix}"


async def in_full(api: Api, uj: UnifiedJob) -> a.Job:
    """One job with all that can be known of it: which GPUs, and the number of its priority."""
    pods: Sequence[objects.Pod] = ()
    priority = 0
    with suppress(Forbidden):  # the nodes stand in its status too
        pods = (await api.list(POD, uj.metadata.namespace, labels=labels_of(uj))).items
    if uj.spec.priority_class_name:
        try:
            priority = (await api.get(PRIORITY_CLASS, uj.spec.priority_class_name)).value
        except (Forbidden, NotFound):
            priority = next((pod.spec.priority for pod in pods), 0)
    return job_view(uj, time.time(), pods, priority)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which jobs are asked for; None for whatever."""

    states: Sequence[str] = ()
    active: bool | None = None
    user: str | None = None
    queue: str | None = None
    name: str | None = None
    since_s: float | None = None

    def fits(self, job: a.Job) -> bool:
        return (
            (not self.states or job.state in self.states)
            and self.active in (None, not job.is_over)
            and self.user in (None, job.user)
            and self.queue in (None, job.queue)
            and self.name in (None, job.name)
            and (self.since_s is None or job.ended_s is None or job.ended_s >= self.since_s)
        )


async def list_jobs(api: Api, namespace: str, choice: Choice) -> list[a.Job]:
    """The jobs of a namespace (empty: of all), in the order in which they were submitted."""
    listed, now_s = await api.list(UNIFIED_JOB, namespace, page=PAGE), time.time()
    found = [job for one in listed.items if choice.fits(job := job_view(one, now_s))]
    return sorted(found, key=lambda job: (job.submitted_s or 0.0, job.id))


async def nodes(api: Api) -> tuple[a.Node, ...]:
    """Nodes with GPUs, and who has them."""
    found = await api.list(NODE, page=PAGE)
    pods = await api.list(POD, fields="spec.nodeName!=", page=PAGE)
    return node_views(found.items, pods.items)


async def products(api: Api) -> tuple[str, ...]:
    """The GPUs of the cluster, as its nodes are labelled; nothing for who may not see nodes."""
    try:
        found = await api.list(NODE, page=PAGE)
    except Forbidden:
        return ()
    labels = [node.metadata.labels for node in found.items]
    return tuple(dict.fromkeys(one[key] for one in labels for key in GPU_PRODUCT_LABELS if one.get(key)))


async def at_a_glance(api: Api, namespace: str, version: str) -> a.Cluster:
    """GPUs where the user may see nodes, jobs of the namespace, and whether anybody looks after them."""
    jobs = (await api.list(UNIFIED_JOB, namespace, page=PAGE)).items
    try:
        seen = await nodes(api)
    except Forbidden:
        seen = ()
    gpus = [(gpu, node) for node in seen for gpu in node.gpus]
    used = sum(1 for gpu, _ in gpus if gpu.jobs)
    free = sum(1 for gpu, node in gpus if not gpu.jobs and node.state == "ready")
    return a.Cluster(
        version=version,
        gpus=a.GpuCounts(len(gpus), used, free),
        jobs=dict(Counter(job.status.state or "PENDING" for job in jobs)),
        trouble=trouble_of(jobs, time.time()),
        now_s=time.time(),
    )


def trouble_of(jobs: Sequence[UnifiedJob], now_s: float) -> str | None:
    """Whether jobs lie there unseen."""
    unseen = [
        job
        for job in jobs
        if not job.status.state and now_s - (seconds(job.metadata.creation_timestamp) or now_s) > UNSEEN_S
    ]
    if not unseen:
        return None
    count = f"{len(unseen)} jobs" if len(unseen) > 1 else f"job {unseen[0].id}"
    return f"no operator has looked at {count}: is `batuta operator` running?"


async def wait_for(
    api: Api, uj: UnifiedJob, done: Callable[[a.Job], bool], tell: Callable[[a.Job], None] | None
) -> a.Job:
    """Looks at a job whenever it changes, until it is done."""
    meta, news = uj.metadata, asyncio.Event()
    informer = Informer(
        api,
        UNIFIED_JOB,
        lambda _: news.set(),
        namespace=meta.namespace,
        fields=f"metadata.name={meta.name}",
    )
    watching = asyncio.create_task(informer.run())
    try:
        await informer.synced.wait()
        while True:
            news.clear()
            now = informer.objects.get(uj.id)
            if now is None or now.metadata.uid != meta.uid:
                raise UnknownJobError(f"job {uj.id} was deleted")
            seen = job_view(now, time.time())
            if tell is not None:
                tell(seen)
            if done(seen):
                return seen
            await news.wait()
    finally:
        watching.cancel()


async def past_events(api: Api, namespace: str) -> tuple[list[KubeEvent], int]:
    """What the cluster still remembers, the oldest first, and the number of that moment."""
    listed = await api.list(EVENT, namespace, page=PAGE)
    version = listed.resource_version
    ordered = sorted(listed.items, key=lambda event: event.time_s)
    return ordered, int(version) if version.isdecimal() else 0


async def coming_events(api: Api, namespace: str, after: int | None) -> AsyncIterator[KubeEvent]:
    """Events as they happen, for ever."""
    queue: asyncio.Queue[KubeEvent] = asyncio.Queue()

    def take(changes: Sequence[object]) -> None:
        for change in changes:
            event = getattr(change, "object", None)
            if isinstance(event, KubeEvent) and _number(event) > (after or 0):
                queue.put_nowait(event)

    _, now = await past_events(api, namespace)  # who may not see events is told so here
    after = now if after is None else after
    watching = asyncio.create_task(Informer(api, EVENT, take, namespace=namespace).run())
    try:
        while True:
            yield await queue.get()
    finally:
        watching.cancel()


def _number(event: KubeEvent) -> int:
    version = event.metadata.resource_version
    return int(version) if version.isdecimal() else 0
