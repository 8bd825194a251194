"""Read what pods have of the GPUs of their node, and write it on the pods.

An agent writes on its own node alone: what its jobs and each of their pods, by uid, have of the GPUs. The World hears
from there what jobs have of a card that they share. For users the operator writes it on the pods too: on those that are
on that node and in a namespace that it serves. What is there already is not written again before it differs or is old.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.binder.gpu_table import STALE_S
from batuta.backends.kube.bounded_text import LARGEST_WHOLE, LATEST_S, MOST_GPUS, read_json
from batuta.backends.kube.client.informer import Change, ChangeType, key_of
from batuta.backends.kube.client.kinds import NODE, POD
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.node_controller import alike
from batuta.backends.kube.operator.workqueue import Changed, WriteQueue, Written, patch_object
from batuta.core.cluster import NodeName
from batuta.core.job import JobId
from batuta.core.world import World

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_WHOLE)]
Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, le=float(LARGEST_WHOLE))]
Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, lt=LATEST_S)]
Word: TypeAlias = Annotated[str, msgspec.Meta(max_length=253)]  # as long as a name in Kubernetes
AGAIN_S: Final = 300.0  # what has not changed much is written again after so long
MOST_AT_ONCE: Final = 20
PAUSE_S: Final = 0.4  # before the next writes: binding and status of jobs must not wait behind 8,000 of them
PREFIX: Final = "usage/"  # of the keys of writes
_WRITTEN: Final = (names.POD_USAGE, names.POD_JOB)
_log = logging.getLogger(__name__)


class _Report(msgspec.Struct, rename="camel", omit_defaults=True):
    """JSON of the agent, of which the operator writes no more than it has read."""


class Figures(_Report):
    """How busy GPUs are kept, from 0 to 1."""

    mean: Amount
    p95: Amount | None = None
    peak: Amount | None = None
    duty_cycle: Amount | None = None


class PodUsage(_Report):
    """What a pod has of its GPUs."""

    time: Time = 0.0  # on the pod alone: of the report that was written there
    gpus: Annotated[list[Count], msgspec.Meta(max_length=MOST_GPUS)] = []
    utilisation: Figures | None = None
    memory_mib: Count | None = None

    @property
    def mean(self) -> float | None:
        return None if self.utilisation is None else min(self.utilisation.mean, 1.0)


class JobUsage(_Report):
    """What a job has of the GPUs of one node, and how it behaves."""

    name: Word = ""
    pods: Count = 0
    gpus: Count = 0
    utilisation: Figures | None = None
    memory_mib: Count | None = None
    memory_peak_mib: Count | None = None
    memory_plateau_mib: Count | None = None
    type: Word = ""
    stage: Word = ""
    bottleneck: Word = ""
    step_time_s: Amount | None = None
    iteration: Count | None = None
    finish_time: Count | None = None
    slowdown: Amount | None = None


class JobPods(_Report):
    """A job and its pods on a node, by uid."""

    job: JobUsage
    pods: dict[str, PodUsage] = {}


class NodeReport(_Report):
    """What an agent says of the jobs on its node."""

    time: Time
    jobs: list[JobPods] = []


class Using(NamedTuple):
    """What an agent says of one pod."""

    pod: PodUsage
    job: JobUsage


def read_using(node: objects.Node, now_s: float) -> dict[str, Using] | None:
    """What the pods of a node have of its GPUs, by uid; None where no agent has said so lately."""
    text = node.metadata.annotations.get(names.PODS_USAGE)
    report = read_json(text, NodeReport | None, None)  # type: ignore[arg-type]
    if report is None or now_s - report.time > STALE_S:
        return None
    # A report from the future comes from a clock that is wrong.
    time_s = float(int(min(report.time, now_s)))
    found = ((uid, pod, one.job) for one in report.jobs for uid, pod in one.pods.items())
    return {uid: Using(msgspec.structs.replace(pod, time=time_s), job) for uid, pod, job in found}


def changes_of(annotations: Mapping[str, str], using: Using | None) -> dict[str, str | None]:
    """What is to be written on a pod so that it says what it has of its GPUs: nothing where that is no news."""
    if using is None:
        return {key: None for key in _WRITTEN if key in annotations}
    usage = read_json(annotations.get(names.POD_USAGE), PodUsage, PodUsage())
    job = read_json(annotations.get(names.POD_JOB), JobUsage, JobUsage())
    if abs(using.pod.time - usage.time) < AGAIN_S and _says_the_same(Using(usage, job), using):
        return {}
    return {key: msgspec.json.encode(one).decode() for key, one in zip(_WRITTEN, using, strict=True)}


def _says_the_same(before: Using, now: Using) -> bool:
    """Whether only measurements differ, and those by little."""
    return _facts(before) == _facts(now) and alike(before.pod.mean, now.pod.mean)


def _facts(using: Using) -> tuple[object, ...]:
    job = using.job
    return (using.pod.gpus, job.name, job.pods, job.gpus, job.type, job.stage, job.bottleneck)


def sharers_on(
    world: World,
    observed: ObjectCache,
    pods_on: Callable[[NodeName], Iterable[str]],
    job_of: Callable[[str], JobId | None],
    node: NodeName,
    now_s: float,
) -> dict[JobId, float]:
    """What jobs that share a card of a node have of it, where its agent knows. `job_of`: of a pod."""
    using = read_using(observed.nodes[node], now_s) or {}
    found: dict[JobId, float] = {}
    for key in pods_on(node) if using else ():
        pod, job = observed.pods.get(key), job_of(key)
        if pod is None or job is None or job not in world.jobs or pod.metadata.uid not in using:
            continue
        used = using[pod.metadata.uid].pod.mean
        if used is not None and world.jobs.jobs[world.jobs.row(job)].share is not None:
            found[job] = max(used, found.get(job, 0.0))
    return found


class _Write(NamedTuple):
    meta: objects.Meta
    changes: Mapping[str, str | None]


@dataclass(slots=True, eq=False)
class PodAnnotator:
    """Keeps annotations of pods as the agents of their nodes say. For the engine's thread."""

    observed: ObjectCache
    pods_on: Callable[[NodeName], Iterable[str]]
    writes: WriteQueue
    namespaces: Collection[str] = ()  # where it may write; empty for everywhere
    _changed: dict[NodeName, None] = field(default_factory=dict)
    _waiting: dict[str, _Write] = field(default_factory=dict)  # by pod
    _next_s: float = -math.inf
    _failure: str = ""

    def take(self, changed: Changed, now_s: float) -> None:
        if changed.kind is NODE:
            self._changed.update((change.object.metadata.name, None) for change in changed.changes)
        elif changed.kind is POD:
            for change in changed.changes:
                self._take_pod(change)

    def _take_pod(self, change: Change[objects.Pod]) -> None:
        """A pod that has ended uses nothing. Of one that is gone there is nothing to write."""
        is_gone = change.did is ChangeType.DELETED
        if is_gone or is_over(change.object):
            said = {} if is_gone or change.old is None else change.old.metadata.annotations
            self._want(change.object.metadata, changes_of(said, None))

    def heard(self, written: Written, now_s: float) -> None:
        """What failed is asked for again with the next report of the node; the same failure is logged once."""
        if written.error is None or not written.key.startswith(PREFIX):
            return
        self.writes.forget(written.key)
        if type(written.error).__name__ != self._failure:
            self._failure = type(written.error).__name__
            _log.warning("cannot annotate pod %s: %s", written.key.removeprefix(PREFIX), written.error)

    def drive(self, now_s: float) -> None:
        changed, self._changed = self._changed, {}
        for node in changed:
            self._compare(node, now_s)
        if not self._waiting or now_s < self._next_s:
            return
        self._next_s = now_s + PAUSE_S
        for key in list(islice(self._waiting, MOST_AT_ONCE)):
            meta, changes = self._waiting.pop(key)
            # With its uid, because another pod may have the name by now.
            body = {"metadata": {"uid": meta.uid, "annotations": changes}}
            self.writes.ask(f"{PREFIX}{key}", partial(patch_object, POD, meta, body), now_s)

    def next_s(self) -> float:
        return self._next_s if self._waiting else math.inf

    def _compare(self, name: NodeName, now_s: float) -> None:
        node = self.observed.nodes.get(name)
        using = None if node is None else read_using(node, now_s)
        if using is None:
            return  # nothing is known of its pods: what they say, and of when it is, stays
        for key in self.pods_on(name):
            pod = self.observed.pods.get(key)
            # An agent speaks of pods of its node alone.
            if pod is not None and pod.spec.node_name == name and not is_over(pod):
                self._want(pod.metadata, changes_of(pod.metadata.annotations, using.get(pod.metadata.uid)))

    def _want(self, meta: objects.Meta, changes: Mapping[str, str | None]) -> None:
        """Has a pod changed when it is its turn; one that waits keeps its place."""
        if changes and (not self.namespaces or meta.namespace in self.namespaces):
            self._waiting[key_of(meta)] = _Write(meta, changes)
        else:
            self._waiting.pop(key_of(meta), None)
