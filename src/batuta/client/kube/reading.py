"""Reads jobs, nodes and events from the Kubernetes API server."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

import msgspec

from batuta.apitypes import resources as a
from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import read_time, read_whole
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden, NotFound
from batuta.backends.kube.client.informer import Change, Informer
from batuta.backends.kube.client.kinds import NODE, POD, PRIORITY_CLASS, Kind
from batuta.backends.kube.names import GPU_PRODUCT_LABELS
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, Condition, UnifiedJob
from batuta.client.errors import AmbiguousJobError, UnknownJobError
from batuta.client.kube.logs import labels_of
from batuta.client.kube.views import job_view, node_views


class InvolvedObject(msgspec.Struct, rename="camel", frozen=True):
    """The object that an event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""


class KubeEvent(msgspec.Struct, rename="camel", kw_only=True):
    """An event of the core API, which every viewer of a namespace may read."""

    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    involved_object: InvolvedObject = InvolvedObject()
    reason: str = ""
    message: str = ""
    type: str = ""
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    count: int | None = None

    @property
    def time_s(self) -> float:
        meta = self.metadata
        moments = (self.last_timestamp, self.event_time, self.first_timestamp, meta.creation_timestamp)
        return next((found for one in moments if (found := read_time(one)) is not None), 0.0)


EVENT: Final = Kind("", "v1", "events", "Event", KubeEvent)
KINDS: Final = (names.KIND, "Pod")  # kinds of objects whose events are shown: jobs and their pods
_TRUE: Final = {
    "QuotaReserved": "its queue has room for it",
    "Admitted": "it is admitted",
    "PodsReady": "all its pods are ready",
    "Complete": "it is complete",
}
_FALSE: Final = {"PodsReady": "its pods are not ready", "Admitted": "it has no GPUs"}


def event_view(event: KubeEvent) -> a.Event:
    """An event with its number: versions of one cluster only grow."""
    about = event.involved_object
    namespace = about.namespace or event.metadata.namespace
    data = {
        "time_s": event.time_s,
        "object": f"{about.kind} {namespace}/{about.name}",
        "severity": event.type,
        "sentence": sentence_of(event),
    }
    if about.kind == names.KIND:
        data["job"] = f"{namespace}/{about.name}"
    return a.Event(_number(event.metadata.resource_version), event.reason, data)


def sentence_of(event: KubeEvent) -> str:
    about = event.involved_object
    what = "job" if about.kind == names.KIND else about.kind.lower()
    namespace = about.namespace or event.metadata.namespace
    name = f"{namespace}/{about.name}" if about.kind == names.KIND else about.name
    return f"{what} {name}: {_message(event)}"


def _message(event: KubeEvent) -> str:
    times = f" ({event.count} times)" if event.count and event.count > 1 else ""
    return f"{event.message or event.reason}{times}"


def concerns(event: KubeEvent, job: str) -> bool:
    """Whether an event is about a job, or about a pod of it: they have its name before a dash."""
    namespace, _, name = job.rpartition("/")
    about = event.involved_object
    if namespace and (about.namespace or event.metadata.namespace) != namespace:
        return False
    if about.kind == names.KIND:
        return about.name == name
    return about.kind == "Pod" and about.name.startswith(f"{name}-")


def matches(event: KubeEvent, types: Sequence[str], job: str | None) -> bool:
    if event.involved_object.kind not in KINDS or (types and event.reason not in types):
        return False
    return job is None or concerns(event, job)


def story_of(uj: UnifiedJob, events: Iterable[KubeEvent]) -> tuple[a.Sentence, ...]:
    """Return the history of a job from its conditions and events, the oldest first."""
    submitted_s = read_time(uj.metadata.creation_timestamp) or 0.0
    chapters = [a.Sentence(submitted_s, "it was submitted")]
    chapters += [chapter for one in uj.status.conditions if (chapter := _condition_sentence(one, uj))]
    chapters += [
        # Of the job itself everything here speaks; its pods are named.
        a.Sentence(one.time_s, _message(one) if one.involved_object.kind == names.KIND else sentence_of(one))
        for one in events
        if concerns(one, uj.id)
    ]
    return tuple(sorted(dict.fromkeys(chapters), key=lambda chapter: chapter.time_s))


def _condition_sentence(condition: Condition, uj: UnifiedJob) -> a.Sentence | None:
    """Return the last change of a condition; None where it was never true, or no longer matters."""
    time_s, started_s = read_time(condition.last_transition_time), read_time(uj.status.start_time)
    if time_s is None:
        return None
    if condition.status == "True":
        failed = condition.message or "it failed"
        sentence = failed if condition.type == "Failed" else _TRUE.get(condition.type)
    else:
        has_lost_it = started_s is not None and time_s > started_s and uj.status.state not in a.FINAL_STATES
        sentence = _FALSE.get(condition.type) if has_lost_it else None
    return a.Sentence(time_s, sentence) if sentence else None


PAGE = 500
UNSEEN_S = 30.0  # a job without a status for so long has no operator


async def find_job(api: Api, namespace: str, name: str) -> UnifiedJob:
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


async def read_job(api: Api, uj: UnifiedJob) -> a.Job:
    """Return a job in full, with its GPUs and the value of its priority class."""
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
class JobFilter:
    """Which jobs to list; None for no restriction."""

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


async def list_jobs(api: Api, namespace: str, choice: JobFilter) -> list[a.Job]:
    """The jobs of a namespace (empty: of all), in the order in which they were submitted."""
    listed, now_s = await api.list(UNIFIED_JOB, namespace, page=PAGE), time.time()
    found = [job for one in listed.items if choice.fits(job := job_view(one, now_s))]
    return sorted(found, key=lambda job: (job.submitted_s or 0.0, job.id))


async def list_nodes(api: Api) -> tuple[a.Node, ...]:
    found = await api.list(NODE, page=PAGE)
    pods = await api.list(POD, fields="spec.nodeName!=", page=PAGE)
    return node_views(found.items, pods.items)


async def gpu_products(api: Api) -> tuple[str, ...]:
    """Return the GPU product labels of the nodes; none if the user may not list nodes."""
    try:
        found = await api.list(NODE, page=PAGE)
    except Forbidden:
        return ()
    labels = [node.metadata.labels for node in found.items]
    return tuple(dict.fromkeys(one[key] for one in labels for key in GPU_PRODUCT_LABELS if one.get(key)))


async def read_cluster(api: Api, namespace: str, version: str) -> a.Cluster:
    """Return the GPUs (if the user may list nodes), the jobs of the namespace, and a missing operator."""
    jobs = (await api.list(UNIFIED_JOB, namespace, page=PAGE)).items
    try:
        seen = await list_nodes(api)
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
    """Return a sentence if no operator reconciles the jobs."""
    unseen = [
        job
        for job in jobs
        if not job.status.state and now_s - (read_time(job.metadata.creation_timestamp) or now_s) > UNSEEN_S
    ]
    if not unseen:
        return None
    count = f"{len(unseen)} jobs" if len(unseen) > 1 else f"job {unseen[0].id}"
    return f"no operator has looked at {count}: is `batuta operator` running?"


async def wait_for(
    api: Api, uj: UnifiedJob, done: Callable[[a.Job], bool], tell: Callable[[a.Job], None] | None
) -> a.Job:
    """Return the job when `done`; it is read again whenever it changes."""
    meta, news = uj.metadata, asyncio.Event()
    informer = Informer(
        api, UNIFIED_JOB, lambda _: news.set(), namespace=meta.namespace, fields=f"metadata.name={meta.name}"
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
    """Return the events that the cluster still has, the oldest first, and the version of the list."""
    listed = await api.list(EVENT, namespace, page=PAGE)
    return sorted(listed.items, key=lambda event: event.time_s), _number(listed.resource_version)


async def watch_events(api: Api, namespace: str, after: int | None) -> AsyncIterator[KubeEvent]:
    queue: asyncio.Queue[KubeEvent] = asyncio.Queue()

    def take(changes: Sequence[Change[KubeEvent]]) -> None:
        for change in changes:
            if _number(change.object.metadata.resource_version) > (after or 0):
                queue.put_nowait(change.object)

    _, now = await past_events(api, namespace)  # raises Forbidden here, not in the watch
    after = now if after is None else after
    watching = asyncio.create_task(Informer(api, EVENT, take, namespace=namespace).run())
    try:
        while True:
            yield await queue.get()
    finally:
        watching.cancel()


def _number(version: str) -> int:
    return read_whole(version, most=2**63 - 1) or 0
