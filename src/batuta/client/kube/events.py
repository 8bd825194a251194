"""Events of a namespace, and the story of a job that they tell together with its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.unified_job.model import Condition, UnifiedJob
from batuta.client import answers as a
from batuta.client.kube.job_view import seconds


class About(msgspec.Struct, rename="camel", frozen=True):
    """The object that an event is about."""

    kind: str = ""
    name: str = ""
    namespace: str = ""


class KubeEvent(msgspec.Struct, rename="camel", kw_only=True):
    """An event as the core API has it: who may view a namespace may read these."""

    metadata: objects.Meta = msgspec.field(default_factory=objects.Meta)
    involved_object: About = About()
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
        return next((found for one in moments if (found := seconds(one)) is not None), 0.0)


EVENT: Final = Kind("", "v1", "events", "Event", KubeEvent)
KINDS: Final = (names.KIND, "Pod")
"""Whose events are told: those of jobs and of their pods."""
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
    version = event.metadata.resource_version
    data = {
        "time_s": event.time_s,
        "object": f"{about.kind} {namespace}/{about.name}",
        "severity": event.type,
        "sentence": sentence_of(event),
    }
    if about.kind == names.KIND:
        data["job"] = f"{namespace}/{about.name}"
    return a.Event(int(version) if version.isdecimal() else 0, event.reason, data)


def sentence_of(event: KubeEvent) -> str:
    about = event.involved_object
    what = "job" if about.kind == names.KIND else about.kind.lower()
    namespace = about.namespace or event.metadata.namespace
    name = f"{namespace}/{about.name}" if about.kind == names.KIND else about.name
    return f"{what} {name}: {_said(event)}"


def _said(event: KubeEvent) -> str:
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


def wanted(event: KubeEvent, types: Sequence[str], job: str | None) -> bool:
    if event.involved_object.kind not in KINDS or (types and event.reason not in types):
        return False
    return job is None or concerns(event, job)


def story_of(uj: UnifiedJob, events: Iterable[KubeEvent]) -> tuple[a.Chapter, ...]:
    """What happened to a job, the oldest first."""
    submitted_s = seconds(uj.metadata.creation_timestamp) or 0.0
    chapters = [a.Chapter(submitted_s, "it was submitted")]
    chapters += [chapter for one in uj.status.conditions if (chapter := _chapter(one, uj))]
    chapters += [
        # Of the job itself everything here speaks; its pods are named.
        a.Chapter(one.time_s, _said(one) if one.involved_object.kind == names.KIND else sentence_of(one))
        for one in events
        if concerns(one, uj.id)
    ]
    return tuple(sorted(dict.fromkeys(chapters), key=lambda chapter: chapter.time_s))


def _chapter(condition: Condition, uj: UnifiedJob) -> a.Chapter | None:
    """The last change of a condition. Those that were never true, or no longer matter, tell nothing."""
    time_s, started_s = seconds(condition.last_transition_time), seconds(uj.status.start_time)
    if time_s is None:
        return None
    if condition.status == "True":
        failed = condition.message or "it failed"
        sentence = failed if condition.type == "Failed" else _TRUE.get(condition.type)
    else:
        has_lost_it = started_s is not None and time_s > started_s and uj.status.state not in a.OVER
        sentence = _FALSE.get(condition.type) if has_lost_it else None
    return a.Chapter(time_s, sentence) if sentence else None
