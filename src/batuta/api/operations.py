"""What people may change, as requests to the engine: each looks at the World at its moment, or refuses."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from batuta.api.asked import JobPatch
from batuta.api.auth import Who
from batuta.api.experience import Experience, NoExperience
from batuta.api.job_numbers import JobNumbers
from batuta.api.problems import Refusal, not_found
from batuta.api.quota_fit import check_quota
from batuta.api.resize import resized
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.job import Job, JobId, JobState
from batuta.core.trial_events import never_fits
from batuta.core.wish import Wish
from batuta.core.world import World
from batuta.engine.requests import Make
from batuta.engine.trials.ladder import plan_trial
from batuta.prediction.initial_size import legal_sizes
from batuta.spec.problem import InputError
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_fit import check_fits
from batuta.spec.task_job import task_to_job
from batuta.spec.task_priority import with_class_priority
from batuta.store.records import IdempotencyKeys
from batuta.store.store import Store

_WISHES = {"run": Wish.RUN, "park": Wish.PARK}


@dataclass(slots=True)
class Submission:
    """A submit on its way: what is asked for, and which job it has become."""

    task: Task
    text: str
    """The same as it is stored."""
    user: str
    key: str = ""
    """The client's key, made unique by its user; empty for none."""
    digest: str = ""
    """Of the request, to know it again."""
    job: JobId = ""
    is_new: bool = True


class Operations:
    """Makes the requests. Each `Make` runs in the engine's thread, so it is quick and waits for nothing."""

    def __init__(
        self, store: Store, clock: Callable[[], float], experience: Experience | None = None
    ) -> None:
        self._keys: IdempotencyKeys = store.idempotency
        self._numbers = JobNumbers(store)
        self._clock = clock
        self._experience = experience or NoExperience()

    def submit(self, submission: Submission) -> Make:
        """A new job; with a key that has made one already, that one."""

        def make(world: World) -> Sequence[ev.Event]:
            if submission.key and self._known(submission):
                return ()
            number, now_s = self._numbers.next(world), self._now_s(world)
            job = self.fitting_job(world, submission.task, submission.user, number, now_s)
            if submission.key:
                # Last of all: what is claimed becomes durable together with the event.
                self._keys.claim(submission.key, job.id, now_s, submission.digest)
            submission.job = job.id
            return (ev.JobSubmitted(now_s, job, task=submission.text),)

        return make

    def fitting_job(self, world: World, task: Task, user: str, number: int, now_s: float) -> Job:
        """The job of a task, if it could ever run here; else all that is in the way."""
        name = str(number) if number else "dryrun"
        task = with_class_priority(task, world.quota.priority_classes)
        job = task_to_job(task, name, now_s, user=user, sequence=number, nodes=world.nodes.nodes)
        # A task that cannot save what it has done is not resized: its size is chosen once.
        for_good = task.elastic.checkpoint is Checkpoint.NONE
        most = most_that_fit(job, world.nodes.nodes) if task.auto_nodes else None
        wanted = task.trial.wanted
        if wanted is None:
            wanted = job.share is None and world.quota.wants_trial(job.namespace, job.queue)
        job = self._experience.advise(job, open_up_to=most, for_good=for_good and not wanted)
        _check(world, job)
        if wanted:
            reach = most_that_fit(job, world.nodes.nodes)
            trial = plan_trial(job, task.trial, reach, open_up_to=most, for_good=for_good)
            job = replace(job, trial=trial, size_choice=None)
        return job

    def _known(self, submission: Submission) -> bool:
        claim = self._keys.find(submission.key)
        if claim is None:
            return False
        if claim.request != submission.digest:
            raise Refusal(
                422, f"this Idempotency-Key was used for another request, which made job {claim.job}"
            )
        submission.job, submission.is_new = claim.job, False
        return True

    def cancel(self, job: JobId, who: Who) -> Make:
        """The job ends; one that was cancelled already stays so."""

        def make(world: World) -> Sequence[ev.Event]:
            past = world.past.get(job)
            if past is not None and past.state is JobState.CANCELLED:
                who.check_own(past.job)
                return ()
            row = _living(world, job, who)
            if world.jobs.wish_of(row) is Wish.CANCEL:
                return ()
            return (ev.JobWished(self._now_s(world), job, Wish.CANCEL),)

        return make

    def patch(self, job: JobId, patch: JobPatch, legal_nodes: Sequence[int] | None, who: Who) -> Make:
        """Another size, priority or queue; parked or not."""

        def make(world: World) -> Sequence[ev.Event]:
            row = _living(world, job, who)
            known, now_s, events = world.jobs.jobs[row], self._now_s(world), list[ev.Event]()
            if world.jobs.wish_of(row) is Wish.CANCEL:
                raise Refusal(409, f"job {job} is cancelled, and that cannot be taken back")
            changed = resized(known, patch, legal_nodes)
            if changed != known:
                _check(world, changed)
                events.append(ev.JobChanged(now_s, changed))
                if _is_stuck(world, row):
                    # Another size may fit, which is what it waits for somebody to say.
                    events.append(ev.JobWished(now_s, job, Wish.RUN))
            if patch.wish is not None and _WISHES[patch.wish] is not world.jobs.wish_of(row):
                events.append(ev.JobWished(now_s, job, _WISHES[patch.wish]))
            return events

        return make

    def cordon(self, node: NodeName) -> Make:
        """Nothing new on this node."""
        return lambda world: self._cordon(world, node)

    def uncordon(self, node: NodeName) -> Make:
        def make(world: World) -> Sequence[ev.Event]:
            if not world.cordoned >> _index(world, node) & 1:
                return ()
            return (ev.NodeUncordoned(self._now_s(world), node),)

        return make

    def drain(self, node: NodeName) -> Make:
        """Nothing new on this node, and what runs there moves elsewhere."""

        def make(world: World) -> Sequence[ev.Event]:
            jobs, now_s = world.jobs, self._now_s(world)
            leaving = [
                ev.JobWished(now_s, jobs.ids[row], Wish.EVICT)
                for row, placement in enumerate(jobs.placements)
                if placement is not None and node in placement.nodes and jobs.wish_of(row) is Wish.RUN
            ]
            return (*self._cordon(world, node), *leaving)

        return make

    def _cordon(self, world: World, node: NodeName) -> Sequence[ev.Event]:
        if world.cordoned >> _index(world, node) & 1:
            return ()
        return (ev.NodeCordoned(self._now_s(world), node),)

    def set_policy(self, name: str, started_with: str) -> Make:
        """Another policy from the next cycle on. That it can be used was found out before."""

        def make(world: World) -> Sequence[ev.Event]:
            if (world.policy or started_with) == name:
                return ()
            return (ev.PolicySet(self._now_s(world), name),)

        return make

    def _now_s(self, world: World) -> float:
        """Time never goes back in the journal, whatever somebody does to the clock."""
        return max(self._clock(), world.now_s)


def most_that_fit(job: Job, nodes: Sequence[Node]) -> int:
    """The largest size of a job that the nodes could ever give to it; its smallest if there is none."""
    sizes = legal_sizes(job)

    def is_too_large(gpus: int) -> bool:
        return bool(check_fits(replace(job, size=gpus, min=gpus, max=gpus, sizes=None), nodes))

    return sizes[max(bisect_left(sizes, True, key=is_too_large) - 1, 0)]


def _check(world: World, job: Job) -> None:
    problems = check_fits(job, world.nodes.nodes) + check_quota(job, world.quota)
    if problems:
        raise InputError(problems)


def _living(world: World, job: JobId, who: Who) -> int:
    """The row of a job that the asker may change."""
    past = world.past.get(job)
    if past is not None:
        who.check_own(past.job)
        raise Refusal(409, f"job {job} is over: {past.state.value}")
    if job not in world.jobs:
        raise not_found(f"job {job}")
    row = world.jobs.row(job)
    who.check_own(world.jobs.jobs[row])
    return row


def _is_stuck(world: World, row: int) -> bool:
    """Whether a job is held because its trial runs found no size that fits."""
    job = world.jobs.jobs[row]
    if job.trial is None or world.jobs.wish_of(row) is not Wish.TRY:
        return False
    return never_fits(world.trials.get(job.id, ()), job.trial.sizes)


def _index(world: World, node: NodeName) -> int:
    i = world.nodes.index.get(node)
    if i is None:
        raise not_found(f"node {node}")
    return i
