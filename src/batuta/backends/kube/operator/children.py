"""Write the objects that make up a UnifiedJob, as its job type wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api, Propagation
from batuta.backends.kube.client.errors import NotFound
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.jobtypes import job_type as children
from batuta.backends.kube.jobtypes.job_type import Child, ChildKind, JobType, Manifest, Run
from batuta.backends.kube.jobtypes.job_type import Observed as Seen
from batuta.backends.kube.jobtypes.writes import Apply, Create, Delete, Key, Patch, Write, next_writes
from batuta.backends.kube.operator.cache import ObjectCache, delete_unified_job
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.workqueue import WriteFn
from batuta.backends.kube.unified_job.model import UnifiedJob

KINDS: dict[ChildKind, Kind[Any]] = {
    children.POD: kinds.POD,
    children.SERVICE: kinds.SERVICE,
    children.CONFIG_MAP: kinds.CONFIG_MAP,
    children.JOB: kinds.JOB,
    children.MPI_JOB: kinds.MPI_JOB,
}


ECHO_S = 10.0
"""So long the informers may take to show what was written."""


class Unmakeable(Exception):
    """A type of job cannot say what objects there shall be; why, for people."""


class Children:
    """Brings the children of one job to what is wanted. Asked again and again, until all is right."""

    def __init__(self, context: ReconcileContext, observed: ObjectCache) -> None:
        self._context = context
        self._observed = observed
        self._applied: dict[Key, str] = {}
        """What was written last of objects that are not watched, by hash."""
        self._done: dict[str, tuple[Write, float]] = {}
        """By key: what was written and not shown yet; it is not written again before this time."""
        self._troubles: dict[str, str] = {}
        """By key: why a write did not work."""
        self.due_s = math.inf
        """When something is to be written again that does not show."""

    def seen(self, uj: UnifiedJob, pods: Iterable[objects.Pod]) -> Seen:
        """What the informers know."""
        found = [
            (kind, one)
            for kind, table in (
                (children.JOB, self._observed.jobs),
                (children.MPI_JOB, self._observed.mpi_jobs),
            )
            for one in self._observed.owned(table, uj.id)
            if any(owner.uid == uj.metadata.uid for owner in one.metadata.owner_references)
        ]
        return Seen(tuple(pods), tuple(found))

    def bring(self, kind: JobType, uj: UnifiedJob, run: Run, seen: Seen, now_s: float, keep_over: bool = False) -> None:
        """Asks for the next writes that bring the children to a run; to none of them for a target of 0."""
        try:
            follow = kind.follow(uj, run, seen)
            wanted = [*kind.children(uj, run), *follow.children]
        except Exception as error:
            # Job types may be third-party, and templates may have got past every schema.
            raise Unmakeable(f"{kind.name} cannot make its objects of this template: {error!r}") from error
        if keep_over:
            seen = Seen([pod for pod in seen.pods if not is_over(pod)], seen.objects)
        writes = {_key(write): write for write in next_writes(wanted, seen, run, self._applied)}
        # What is not wanted any more was done, as the informers show, or has no point now. But if another
        # client undoes a patch, it is not made again at once: the two programs would overwrite each other.
        self._done = {
            key: (write, until_s)
            for key, (write, until_s) in self._done.items()
            if key in writes or (isinstance(write, Patch) and now_s < until_s)
        }
        self.due_s = math.inf
        self._troubles = {key: why for key, why in self._troubles.items() if key in writes}
        for key, write in writes.items():
            done, until_s = self._done.get(key, (None, 0.0))
            if done != write or now_s >= until_s:
                is_list = isinstance(write, Apply) and write.child in follow.children
                self._ask(uj, key, write, now_s, follow.nudge if is_list else ())
            else:
                self.due_s = min(self.due_s, until_s)

    @property
    def trouble(self) -> str:
        """Why something that shall be there cannot be written; empty while all can."""
        return next(iter(self._troubles.values()), "")

    def is_clear(self, seen: Seen) -> bool:
        """Whether nothing holds a place any more. A node that is gone takes the places of its pods along."""
        return not any(
            pod.spec.node_name and self._context.has_node(pod.spec.node_name) and not is_over(pod) for pod in seen.pods
        )

    def clear(
        self, kind: JobType | None, uj: UnifiedJob, without: Run, seen: Seen, now_s: float, keep_over: bool
    ) -> bool:
        """Asks for the end of everything that holds a place; whether nothing does.

        `kind`: None when it cannot be asked what there shall be; pods end all the same. `keep_over`: pods
        that have ended stay so that their logs can be read.
        """
        try:
            if kind is None:
                self.delete_pods(uj, seen.pods, now_s)
            else:
                self.bring(kind, uj, without, seen, now_s, keep_over)
        except Unmakeable:
            self.delete_pods(uj, seen.pods, now_s)
        return self.is_clear(seen)

    def delete_job(self, uj: UnifiedJob, now_s: float) -> None:
        """Deletes the UnifiedJob itself, and with it all that it owns."""
        delete_unified_job(self._context.writes, uj.id, uj.metadata.uid, now_s)

    def delete_pods(self, uj: UnifiedJob, pods: Iterable[objects.Pod], now_s: float) -> None:
        """Deletes pods that are not over, whatever the type of their job thinks of it."""
        for pod in pods:
            meta = pod.metadata
            if not meta.deletion_timestamp and not is_over(pod):
                do = partial(_delete, kinds.POD, meta.name, meta.namespace, meta.uid, Propagation.BACKGROUND)
                self._context.writes.ask(f"{uj.id}//delete/{meta.uid}", do, now_s)

    def _ask(self, uj: UnifiedJob, key: str, write: Write, now_s: float, nudge: tuple[str, ...] = ()) -> None:
        do = _doing(write, uj.metadata.namespace, nudge)
        if not self._context.writes.ask(f"{uj.id}//{key}", do, now_s):
            return
        if isinstance(write, Apply):
            self._applied[write.child.kind, write.child.name] = write.child.hash
        else:
            self._done[key] = write, now_s + ECHO_S

    def failed(self, key: str, why: str) -> None:
        """A write did not work: what was thought to be written is written again."""
        self._done.pop(key, None)
        if key.startswith("apply/"):
            self._applied.clear()
        if key.startswith(("apply/", "create/", "patch/")):
            verb, _, what = key.partition("/")
            self._troubles[key] = f"cannot {verb} {what}: {why}"


def _key(write: Write) -> str:
    """One write at a time has this key."""
    match write:
        case Create(child):
            return f"create/{child.kind.plural}/{child.name}"
        case Apply(child):
            return f"apply/{child.kind.plural}/{child.name}"
        case Patch(kind, name):
            return f"patch/{kind.plural}/{name}"
        case Delete(_, _, uid):
            return f"delete/{uid}"


def _doing(write: Write, namespace: str, nudge: tuple[str, ...]) -> WriteFn:
    """How to do it. `nudge`: pods that shall see at once what is applied."""
    match write:
        case Create(child):
            return partial(_create, KINDS[child.kind], child.manifest, namespace)
        case Apply(child):
            return partial(_apply, child, nudge)
        case Patch(kind, name, body):
            return partial(_patch, KINDS[kind], name, body, namespace)
        case Delete(kind, name, uid):
            return partial(_delete, KINDS[kind], name, namespace, uid, Propagation(write.propagation))


async def _create(kind: Kind[Any], manifest: Manifest, namespace: str, api: Api) -> None:
    # One that is there already has another owner: it is tried again, less and less often.
    await api.create(kind, manifest, namespace)


async def _apply(child: Child, nudge: tuple[str, ...], api: Api) -> None:
    await api.apply(KINDS[child.kind], child.manifest, force=True)
    for pod in nudge:
        seen = {"metadata": {"annotations": {names.NUDGE: child.hash}}}
        await _patch(kinds.POD, pod, seen, child.manifest["metadata"]["namespace"], api)


async def _patch(kind: Kind[Any], name: str, body: Manifest, namespace: str, api: Api) -> None:
    try:
        await api.patch(kind, name, body, namespace)
    except NotFound:
        return


async def _delete(kind: Kind[Any], name: str, namespace: str, uid: str, propagation: Propagation, api: Api) -> None:
    try:
        await api.delete(kind, name, namespace, uid=uid, propagation=propagation)
    except NotFound:
        return
