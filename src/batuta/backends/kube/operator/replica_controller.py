"""Bring the replicas of a UnifiedJob to their places together, and end them in order.

`Children` writes the objects that make up the job, as its job type wants them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import is_over
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api, Propagation
from batuta.backends.kube.client.kinds import Kind
from batuta.backends.kube.jobtypes import job_type as children
from batuta.backends.kube.jobtypes.job_type import Child, ChildKind, JobStatus, JobType, Observed, Outcome, Run
from batuta.backends.kube.jobtypes.writes import Apply, Create, Delete, Key, Patch, Write, next_writes
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import PodGroup, ReconcileContext
from batuta.backends.kube.operator.run_state import AdoptedRun, GangStatus, Places, RunState, resume_run
from batuta.backends.kube.operator.workqueue import WriteFn, delete_object, patch_object
from batuta.backends.kube.progress.trainer_session import TrainerSession
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core.cluster import NodeName, Placement
from batuta.core.job import Job
from batuta.engine.jobs.outcome import Outcome as RunOutcome
from batuta.engine.jobs.outcome import RunEnd
from batuta.engine.jobs.reconcile import Fit, ObservedRun, RunPhase, StopProgress

KINDS: dict[ChildKind, Kind[Any]] = {
    children.POD: kinds.POD,
    children.SERVICE: kinds.SERVICE,
    children.CONFIG_MAP: kinds.CONFIG_MAP,
    children.JOB: kinds.JOB,
    children.MPI_JOB: kinds.MPI_JOB,
}
ECHO_S = 10.0  # so long the informers may take to show what was written


@dataclass(frozen=True, slots=True)
class Started:
    """All members run, and none is surplus: the run has started, or has its new size."""

    run: Run
    places: Places


@dataclass(frozen=True, slots=True)
class MisplacedPod:
    """Another scheduler has bound a replica to this node, which is not its own."""

    replica: int
    node: NodeName


Became: TypeAlias = JobStatus | Started | MisplacedPod
"""What has become of a run: it goes on or is over, or something is to be told of it."""
_GOES_ON = JobStatus()


class Unmakeable(Exception):
    """A type of job cannot say what objects there shall be; why, for people."""


@dataclass(slots=True, eq=False)
class Children:
    """Brings the children of one job to what is wanted. Asked again and again, until all is right."""

    context: ReconcileContext
    observed: ObjectCache
    due_s: float = math.inf  # when something is to be written again that does not show
    _applied: dict[Key, str] = field(default_factory=dict)
    """What was written last of objects that are not watched, by hash."""
    _done: dict[str, tuple[Write, float]] = field(default_factory=dict)
    """By key: what was written and not shown yet; it is not written again before this time."""
    _troubles: dict[str, str] = field(default_factory=dict)  # by key: why a write did not work

    def seen(self, uj: UnifiedJob, pods: Iterable[objects.Pod]) -> Observed:
        found = [
            (kind, one)
            for kind, table in ((children.JOB, self.observed.jobs), (children.MPI_JOB, self.observed.mpi_jobs))
            for one in self.observed.owned(table, uj.id)
            if any(owner.uid == uj.metadata.uid for owner in one.metadata.owner_references)
        ]
        return Observed(tuple(pods), tuple(found))

    def bring(
        self, kind: JobType, uj: UnifiedJob, run: Run, seen: Observed, now_s: float, keep_over: bool = False
    ) -> None:
        """Asks for the next writes that bring the children to a run; to none of them for a target of 0."""
        try:
            follow = kind.follow(uj, run, seen)
            wanted = [*kind.children(uj, run), *follow.children]
        except Exception as error:
            # Job types may be third-party, and templates may have got past every schema.
            raise Unmakeable(f"{kind.name} cannot make its objects of this template: {error!r}") from error
        if keep_over:
            seen = Observed([pod for pod in seen.pods if not is_over(pod)], seen.objects)
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

    def clear(
        self, kind: JobType | None, uj: UnifiedJob, without: Run, seen: Observed, now_s: float, keep_over: bool
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
        # A node that is gone takes the places of its pods along.
        return not any(
            pod.spec.node_name and self.context.has_node(pod.spec.node_name) and not is_over(pod) for pod in seen.pods
        )

    def delete_pods(self, uj: UnifiedJob, pods: Iterable[objects.Pod], now_s: float) -> None:
        """Deletes pods that are not over, whatever the type of their job thinks of it."""
        for pod in pods:
            meta = pod.metadata
            if not meta.deletion_timestamp and not is_over(pod):
                do = partial(delete_object, kinds.POD, meta, propagation=Propagation.BACKGROUND)
                self.context.writes.ask(f"{uj.id}//delete/{meta.uid}", do, now_s)

    def _ask(self, uj: UnifiedJob, key: str, write: Write, now_s: float, nudge: tuple[str, ...] = ()) -> None:
        do = _doing(write, uj.metadata.namespace, nudge)
        if not self.context.writes.ask(f"{uj.id}//{key}", do, now_s):
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


@dataclass(slots=True, eq=False)
class ReplicaController:
    """One job, through all its starts. It decides nothing: what has become of a run is handed back."""

    context: ReconcileContext
    run_state: RunState
    children: Children
    session: TrainerSession
    due_s: float = math.inf  # when to look again, since it was last asked whether the members stay

    def seen(self, uj: UnifiedJob) -> Observed:
        return self.children.seen(uj, self.run_state.pod_set.pods.values())

    def take_up(
        self, uj: UnifiedJob, kind: JobType, job: Job, planned: Placement | None, now_s: float
    ) -> AdoptedRun | None:
        """Goes on with the run that an operator before this one had begun, if there is one that can."""
        found = resume_run(uj, kind, self.run_state.pod_set, planned)
        if found is not None:
            self.run_state.take_up(found, kind)
            if self.run_state.has_started:
                self._begin(kind, job, now_s)
        return found

    def bring(
        self, uj: UnifiedJob, kind: JobType, job: Job, workers: Places, tolerant: UnifiedJob, now_s: float
    ) -> Became:
        """Does the next step to the places that are wanted, or raises Unmakeable.

        `tolerant`: the object with a template that tolerates all that its pods may.
        """
        if self.run_state.aim(uj, kind, workers):
            self.session.ended(now_s)
        run, seen = self.run_state.run, self.seen(uj)
        assert run is not None
        status = kind.status(uj, run, seen)
        if status.outcome is not Outcome.RUNNING:
            return status
        self.children.bring(kind, tolerant, run, seen, now_s)
        self.due_s = min(self.due_s, self.children.due_s)
        return self._take_seats(uj, kind, job, now_s)

    def _take_seats(self, uj: UnifiedJob, kind: JobType, job: Job, now_s: float) -> Became:
        """All members are there: those without a place get theirs together."""
        found = self.run_state.gang_status(kind)
        if found.lost:
            gone = f"replica {', '.join(map(str, found.lost))} is gone"
            return JobStatus(outcome=Outcome.DISRUPTED, message=gone)
        if found.astray is not None:
            return MisplacedPod(*found.astray)
        if found.is_full and found.waiting and self.run_state.run is not None:
            key, since_s = f"{uj.id}#{self.run_state.run.start}", read_time(uj.metadata.creation_timestamp) or 0.0
            self.context.request_binding(PodGroup(key, uj.id, found.waiting, job.priority, since_s))
        if found.is_full and found.are_seated:
            return self._settle(kind, job, found, now_s)
        return _GOES_ON

    def _settle(self, kind: JobType, job: Job, found: GangStatus, now_s: float) -> Became:
        run_state = self.run_state
        assert run_state.run is not None
        run_state.stood = run_state.places
        if run_state.has_started or not found.is_exact or not found.have_begun:
            return _GOES_ON
        run_state.has_started, run_state.ran = True, run_state.places
        self._begin(kind, job, now_s)
        return Started(run_state.run, run_state.places)

    def _begin(self, kind: JobType, job: Job, now_s: float) -> None:
        """From now on it is listened to what the run reports, which began when its last pod was started."""
        assert self.run_state.run is not None
        members = self.run_state.members(kind).values()
        begun_s = max((read_time(pod.status.start_time) or 0.0 for pod in members), default=0.0) or now_s
        self.session.began(job, self.run_state.run.start, self.run_state.places, min(begun_s, now_s))

    def observe(
        self, uj: UnifiedJob, kind: JobType, workers: Places | None, deadline_s: float, now_s: float
    ) -> ObservedRun | None:
        """Return the run as it relates to these places; None when one is wanted there and there is none.

        Without places that are wanted, whatever is left of earlier runs counts as a run that has to go.
        """
        self.due_s = math.inf
        run_state, session = self.run_state, self.session
        run, is_gone = run_state.run, run_state.run is None or run_state.is_spent
        if workers is not None and is_gone:
            return None
        stop = StopProgress.ASKED if session.is_asked else StopProgress.NO
        phase = RunPhase.RUNNING if run_state.has_started else RunPhase.STARTING
        if workers is not None and run_state.keeps_members(uj, kind, workers):
            return ObservedRun(phase, Fit.SAME, stop, is_announced=run_state.has_started)
        if run is None or is_gone or not run_state.ran:
            return ObservedRun(phase, Fit.RESTART)
        status = kind.status(uj, run, self.seen(uj))
        if status.outcome is Outcome.SUCCEEDED:
            succeeded = RunOutcome(RunEnd.SUCCEEDED, status.exit_code, status.message)
            return ObservedRun(RunPhase.OVER, Fit.RESTART, outcome=succeeded)
        if status.outcome is not Outcome.RUNNING:
            # It has to go anyway: to judge it would only keep others from its GPUs.
            return ObservedRun(RunPhase.FAILING, Fit.RESTART)
        return ObservedRun(
            phase,
            Fit.RESTART,
            stop,
            can_save=session.can_save(uj, run_state.pods()),
            has_saved=session.has_saved(now_s),
            deadline_s=deadline_s,
        )

    def has_last_words(self, kind: JobType, job: Job, now_s: float) -> bool:
        """Whether the end of what a run that is over has said is still to be heard: its result, say."""
        if self.run_state.run is None:
            return False
        if not self.run_state.ran:
            self.run_state.ran = self.run_state.places
            self._begin(kind, job, now_s)  # it finished before it was seen running
        has_more = self.session.has_more_to_say(kind, self.run_state.pod_set.pods.values(), now_s)
        self.due_s = min(self.due_s, self.session.due_s)
        return has_more

    def stop(self, uj: UnifiedJob, kind: JobType, keep_waiting: bool, now_s: float) -> bool:
        """Gives all places back; whether no pod has one any more.

        `keep_waiting`: pods that have no place stay, and serve for the next try.
        """
        self.run_state.leave()
        self.session.ended(now_s)
        if keep_waiting and self.run_state.run is not None and not self.run_state.pod_set.has_places(kind):
            return False
        self.run_state.is_spent = True
        is_clear = self.clear(uj, kind, now_s)
        if is_clear:
            self.run_state.end()
        return is_clear

    def clear(self, uj: UnifiedJob, kind: JobType | None, now_s: float, *, keep_over: bool = False) -> bool:
        """Asks for the end of everything that holds a place; whether nothing does."""
        without = self.run_state.without_replicas(uj)
        return self.children.clear(kind, uj, without, self.seen(uj), now_s, keep_over)


def _key(write: Write) -> str:
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
            return partial(_create, child, namespace)
        case Apply(child):
            return partial(_apply, child, nudge)
        case Patch(kind, name, body):
            return partial(patch_object, KINDS[kind], objects.Meta(name=name, namespace=namespace), body)
        case Delete(kind, name, uid):
            meta = objects.Meta(name=name, namespace=namespace, uid=uid)
            return partial(delete_object, KINDS[kind], meta, propagation=Propagation(write.propagation))


async def _create(child: Child, namespace: str, api: Api) -> None:
    # One that is there already has another owner: it is tried again, less and less often.
    await api.create(KINDS[child.kind], child.manifest, namespace)


async def _apply(child: Child, nudge: tuple[str, ...], api: Api) -> None:
    await api.apply(KINDS[child.kind], child.manifest, force=True)
    for pod in nudge:
        seen = {"metadata": {"annotations": {names.NUDGE: child.hash}}}
        meta = objects.Meta(name=pod, namespace=child.manifest["metadata"]["namespace"])
        await patch_object(kinds.POD, meta, seen, api)
