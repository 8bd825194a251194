"""Changes that users may ask for, as requests to the engine."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec

from batuta.api.auth import Caller
from batuta.api.dependencies import USER_PRIORITY, JobHistory, NoJobHistory
from batuta.api.request_models import JobPatch
from batuta.api.responses import HttpProblem, bad_input, not_found
from batuta.core import event as ev
from batuta.core.cluster import Node, NodeName
from batuta.core.curve import SpeedCurve
from batuta.core.job import DesiredState, Job, JobId, JobState
from batuta.core.quota import MILLI, ClusterQueue, FlavorResource, Quota, counts_gpus, rest_of
from batuta.core.trial import never_fits
from batuta.core.world import World
from batuta.engine.requests import RequestFn
from batuta.engine.trials.lifecycle import plan_trial
from batuta.prediction.application_history import legal_sizes
from batuta.quota.tree import QuotaTree
from batuta.quota.workload import demand
from batuta.spec.problem import InputError, Problem, did_you_mean, refuse
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_job import DEFAULT_QUEUE, LONGEST_CURVE, PRIOR_EXPONENT, check_fits, task_to_job
from batuta.spec.task_resources import with_class_priority
from batuta.store.records import IdempotencyKeys, Role, job_number
from batuta.store.store import Store

P = ParamSpec("P")


class JobIdAllocator:
    """Ids of new jobs: decimal numbers, counted up, never used twice. For the engine's thread."""

    def __init__(self, store: Store, take: Callable[[int], int] = lambda number: number) -> None:
        """`take` makes a number durable before it is used, and returns it or a larger one."""
        # The store keeps tasks longer than the World keeps their jobs.
        self._stored = store.tasks.largest_number()
        self._take = take
        self._last: int | None = None

    def next(self, world: World) -> int:
        if self._last is None:
            self._last = max((*map(job_number, world.jobs.ids), *map(job_number, world.past), self._stored))
        self._last = self._take(self._last + 1)
        return self._last


def caused_by(actor: str, make: RequestFn) -> RequestFn:
    """Return a request whose events say which user caused them."""

    def stamped(world: World) -> Sequence[ev.Event]:
        return [replace(event, actor=actor) if isinstance(event, ev.ByUser) else event for event in make(world)]

    return stamped


def check_named_queue(queue: str | None, quota: Quota) -> None:
    """Raise InputError for a named queue while no queues are set up: there is only the default one."""
    if queue and queue != DEFAULT_QUEUE and not quota:
        raise InputError.of(
            f"there is no queue {queue}: no queues are set up",
            fix=f"batuta queues apply -f FILE, or leave it out for {DEFAULT_QUEUE}",
        )


def check_quota(job: Job, quota: Quota) -> list[Problem]:
    """Return why the job can never have quota for its smallest size, even in an idle cluster; else empty."""
    if not quota:
        return []
    way = quota.way(job.namespace, job.queue)
    if way is None:
        if job.queue == DEFAULT_QUEUE:
            return []
        known = sorted({one.name for one in quota.local_queues} | set(quota.queue_of))
        return [Problem(f"there is no queue {job.queue}", fix=did_you_mean(job.queue, known))]
    queue = quota.queue_of.get(way.cluster_queue)
    # A queue without its cluster queue or flavors may be completed while the job waits.
    if queue is None or any(one.flavor not in quota.flavor_of for group in queue.groups for one in group.flavors):
        return []
    return _exceeds_quota(job, queue, QuotaTree(quota), has_rest=queue.name == DEFAULT_QUEUE and bool(rest_of(quota)))


def _exceeds_quota(job: Job, queue: ClusterQueue, tree: QuotaTree, *, has_rest: bool) -> list[Problem]:
    covered = [resource for group in queue.groups for resource in group.resources]
    if not any(map(counts_gpus, covered)):
        return [Problem(f"queue {queue.name} has no quota for GPUs", fix="another queue")]
    node, found = tree.queues[queue.name], list[Problem]()
    for group in queue.groups:
        for resource in group.resources:
            needs = demand(job, resource, job.min)
            most = max(
                (node.most(tree.fr_number[FlavorResource(one.flavor, resource)]) for one in group.flavors), default=0
            )
            if needs > most:
                gpus = "GPU" if needs == MILLI else "GPUs"
                what = gpus if counts_gpus(resource) else resource
                message = f"needs at least {needs / MILLI:g} {what}; queue {queue.name} can have {most / MILLI:g}"
                if has_rest and counts_gpus(resource):
                    message += ", which is what quotas leave to jobs that name no queue"
                    found.append(Problem(message, fix="name a queue (--queue), or give default quota"))
                    continue
                found.append(Problem(message, fix="fewer nodes, or another queue"))
    return found


class TaskSizes(NamedTuple):
    """The sizes that a task can have, in nodes."""

    low: int
    asked: int
    high: int
    legal: tuple[int, ...] | None  # the only ones; None when every number from low to high is one

    @classmethod
    def of(cls, task: Task) -> TaskSizes:
        elastic = task.elastic
        return cls(elastic.min_nodes, task.num_nodes, elastic.max_nodes, elastic.legal_sizes)

    @property
    def is_rigid(self) -> bool:
        return self.low == self.high


def patched_job(job: Job, patch: JobPatch, sizes: TaskSizes | None) -> Job:
    """Return the job with the patch applied, within the sizes that its task can have."""
    legal_nodes = None if sizes is None else sizes.legal
    if patch.auto:
        if sizes is None:
            raise bad_input(
                f"what the task of job {job.id} said about its size is not known", "min_nodes and max_nodes"
            )
        patch = patch.model_copy(
            update={"nodes": sizes.asked, "min_nodes": sizes.low, "max_nodes": sizes.high, "auto": None}
        )
    changed = replace(
        job, priority=job.priority if patch.priority is None else patch.priority, queue=patch.queue or job.queue
    )
    if patch.nodes is None and patch.min_nodes is None and patch.max_nodes is None:
        return changed
    if job.cpu_only:
        raise bad_input("a job without GPUs has one size", "submit it again with another num_nodes")
    low, size, high = _patched_range(job, patch, legal_nodes)
    each = job.gpus_per_replica
    legal = None if legal_nodes is None else tuple(n * each for n in legal_nodes if low <= n <= high)
    changed = replace(
        changed,
        min=low * each,
        size=size * each,
        max=high * each,
        sizes=legal,
        curve=_extended_curve(job.curve, min(high * each, LONGEST_CURVE)),
    )
    faults = changed.faults()
    if faults:
        raise InputError([Problem(fault) for fault in faults])
    return changed


def _extended_curve(curve: SpeedCurve, largest: int) -> SpeedCurve:
    """Return the curve up to a larger size, by the prior beyond what is known."""
    known = len(curve.speeds) - 1
    more = (curve.speeds[-1] * (n / known) ** PRIOR_EXPONENT for n in range(known + 1, largest + 1))
    return replace(curve, speeds=(*curve.speeds, *more))


def _patched_range(job: Job, patch: JobPatch, legal: Sequence[int] | None) -> tuple[int, int, int]:
    """Return the smallest, requested and largest number of nodes."""
    each = job.gpus_per_replica
    if patch.nodes is not None and patch.min_nodes is None and patch.max_nodes is None:
        low = size = high = patch.nodes
    else:
        low, high = patch.min_nodes or job.min // each, patch.max_nodes or job.max // each
        size = patch.nodes or min(max(job.size // each, low), high)
        if patch.nodes is None and legal is not None and size not in legal:
            size = max((n for n in legal if low <= n <= size), default=low)
    if not low <= size <= high:
        raise bad_input(f"nodes must be within min_nodes..max_nodes, found {size} outside {low}..{high}")
    for nodes in sorted({low, size, high}):
        if legal is not None and nodes not in legal:
            raise bad_input(f"{nodes} nodes is no size of this task", f"one of {', '.join(map(str, legal[:32]))}")
    return low, size, high


_WISHES = {"run": DesiredState.RUN, "park": DesiredState.PARK}


@dataclass(slots=True)
class Submission:
    """A submit in progress: the request, and the job that it has become."""

    task: Task
    text: str  # the same as it is stored
    user: str
    key: str = ""  # the client's key, made unique by its user; empty for none
    digest: str = ""  # of the request, to know it again
    job: JobId = ""
    is_new: bool = True
    caller: Caller | None = None


def _request(
    make: Callable[Concatenate[Operations, World, P], Sequence[ev.Event]],
) -> Callable[Concatenate[Operations, P], RequestFn]:
    """Let a method return a request: the engine calls it with the World of that moment."""

    @wraps(make)
    def request(self: Operations, /, *args: P.args, **options: P.kwargs) -> RequestFn:
        return lambda world: make(self, world, *args, **options)

    return request


class Operations:
    """Makes requests to the engine. Each runs in the engine's thread on the World of that moment, quickly."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        experience: JobHistory | None = None,
        user_priority: int = USER_PRIORITY,
        take_number: Callable[[int], int] = lambda number: number,
    ) -> None:
        """`user_priority` is the highest that users may give jobs of queues without a limit of their own.

        `take_number` makes a job number durable before it is given out (see `JobIdAllocator`).
        """
        self._user_priority = user_priority
        self._keys: IdempotencyKeys = store.idempotency
        self._numbers = JobIdAllocator(store, take_number)
        self._clock = clock
        self._experience = experience or NoJobHistory()

    @_request
    def submit(self, world: World, submission: Submission) -> Sequence[ev.Event]:
        """Submit a job; with a key that was used before, find the job that it made."""
        if submission.key and self._known(submission):
            return ()
        number, now_s = self._numbers.next(world), self._now_s(world)
        job = self.fitting_job(world, submission.task, submission.user, number, now_s)
        if submission.caller is not None:
            self.check_priority(world, job, submission.caller)
        if submission.key:
            # Last: the claim becomes durable together with the event.
            self._keys.claim(submission.key, job.id, now_s, submission.digest)
        submission.job = job.id
        return (ev.JobSubmitted(now_s, job, task=submission.text),)

    def fitting_job(self, world: World, task: Task, user: str, number: int, now_s: float) -> Job:
        """Return the job of a task. Raises InputError with every reason why it could never run here."""
        name = str(number) if number else "dryrun"
        task = with_class_priority(task, world.quota.priority_classes)
        job = task_to_job(task, name, now_s, user=user, sequence=number, nodes=world.nodes.nodes)
        # A task that cannot save what it has done is not resized: its size is chosen once.
        for_good = task.elastic.checkpoint is Checkpoint.NONE
        most = largest_fitting_size(job, world.nodes.nodes) if task.auto_nodes else None
        wanted = task.trial.wanted
        if wanted is None:
            wanted = job.share is None and world.quota.wants_trial(job.namespace, job.queue)
        job = self._experience.advise(job, open_up_to=most, for_good=for_good and not wanted)
        _check_admissible(world, job)
        if wanted:
            reach = largest_fitting_size(job, world.nodes.nodes)
            trial = plan_trial(job, task.trial, reach, open_up_to=most, for_good=for_good)
            job = replace(job, trial=trial, size_choice=None)
        return job

    def check_priority(self, world: World, job: Job, caller: Caller) -> None:
        own = world.effective_quota.max_priority(job.namespace, job.queue)
        most, by = (self._user_priority, "the role user") if own is None else (own, f"queue {job.queue}")
        asked = job.priority if job.trial is None else max(job.priority, job.trial.priority)
        if caller.may(Role.ADMIN) or asked <= most:
            return
        raise HttpProblem(
            403,
            f"priority {asked} is above {most}, the most that {by} allows {caller.user}; "
            f"an admin may set it, or max_priority of queue {job.queue}",
        )

    def _known(self, submission: Submission) -> bool:
        claim = self._keys.find(submission.key)
        if claim is None:
            return False
        if claim.request != submission.digest:
            raise HttpProblem(422, f"this Idempotency-Key was used for another request, which made job {claim.job}")
        submission.job, submission.is_new = claim.job, False
        return True

    @_request
    def cancel(self, world: World, job: JobId, caller: Caller) -> Sequence[ev.Event]:
        """Cancel a job; no change for one that is cancelled."""
        past = world.past.get(job)
        if past is not None and past.state is JobState.CANCELLED:
            caller.check_owner(past.job)
            return ()
        row = _changeable_row(world, job, caller)
        if world.jobs.wish_of(row) is DesiredState.CANCEL:
            return ()
        return (ev.JobWished(self._now_s(world), job, DesiredState.CANCEL),)

    @_request
    def patch(
        self, world: World, job: JobId, patch: JobPatch, sizes: TaskSizes | None, caller: Caller
    ) -> Sequence[ev.Event]:
        """Change size, priority or queue; park or resume. `sizes` are those of its task, if known."""
        row = _changeable_row(world, job, caller)
        known, now_s, events = world.jobs.jobs[row], self._now_s(world), list[ev.Event]()
        if world.jobs.wish_of(row) is DesiredState.CANCEL:
            raise HttpProblem(409, f"job {job} is cancelled, and that cannot be taken back")
        check_named_queue(patch.queue, world.quota)
        if any((patch.nodes, patch.min_nodes, patch.max_nodes, patch.auto)) and sizes is not None and sizes.is_rigid:
            _check_rigid(world, row, sizes)
        changed = patched_job(known, patch, sizes)
        if changed != known:
            _check_admissible(world, changed)
            if (changed.priority, changed.queue) != (known.priority, known.queue):
                self.check_priority(world, changed, caller)
            events.append(ev.JobChanged(now_s, changed))
            if _is_stuck(world, row):
                # Its trial runs found no size that fits; this one may.
                events.append(ev.JobWished(now_s, job, DesiredState.RUN))
        if patch.wish is not None and _WISHES[patch.wish] is not world.jobs.wish_of(row):
            events.append(ev.JobWished(now_s, job, _WISHES[patch.wish]))
        return events

    @_request
    def cordon(self, world: World, node: NodeName) -> Sequence[ev.Event]:
        return self._cordon(world, node)

    @_request
    def uncordon(self, world: World, node: NodeName) -> Sequence[ev.Event]:
        is_cordoned = world.cordoned >> _node_index(world, node) & 1
        return (ev.NodeUncordoned(self._now_s(world), node),) if is_cordoned else ()

    @_request
    def drain(self, world: World, node: NodeName) -> Sequence[ev.Event]:
        """Start nothing new on this node, and evict what runs there."""
        jobs, now_s = world.jobs, self._now_s(world)
        leaving = [
            ev.JobWished(now_s, jobs.ids[row], DesiredState.EVICT)
            for row, placement in enumerate(jobs.placements)
            if placement is not None and node in placement.nodes and jobs.wish_of(row) is DesiredState.RUN
        ]
        return (*self._cordon(world, node), *leaving)

    def _cordon(self, world: World, node: NodeName) -> Sequence[ev.Event]:
        is_cordoned = world.cordoned >> _node_index(world, node) & 1
        return () if is_cordoned else (ev.NodeCordoned(self._now_s(world), node),)

    @_request
    def set_policy(self, world: World, name: str, started_with: str) -> Sequence[ev.Event]:
        """Use another policy, which was checked before, from the next cycle on."""
        return () if (world.policy or started_with) == name else (ev.PolicySet(self._now_s(world), name),)

    def _now_s(self, world: World) -> float:
        """Return the time by the clock, but never before the World's: time never goes back in the journal."""
        return max(self._clock(), world.now_s)


def largest_fitting_size(job: Job, nodes: Sequence[Node]) -> int:
    """Return the largest legal size of a job that fits on the nodes when idle; its smallest if none does."""
    sizes = legal_sizes(job)

    def is_too_large(gpus: int) -> bool:
        return bool(check_fits(replace(job, size=gpus, min=gpus, max=gpus, sizes=None), nodes))

    return sizes[max(bisect_left(sizes, True, key=is_too_large) - 1, 0)]


def _check_admissible(world: World, job: Job) -> None:
    problems = check_fits(job, world.nodes.nodes) + check_quota(job, world.effective_quota)
    refuse(problems)


def _changeable_row(world: World, job: JobId, caller: Caller) -> int:
    """Return the row of a living job that the caller may change."""
    past = world.past.get(job)
    if past is not None:
        caller.check_owner(past.job)
        raise HttpProblem(409, f"job {job} is over: {past.state.value}")
    if job not in world.jobs:
        raise not_found(f"job {job}")
    row = world.jobs.row(job)
    caller.check_owner(world.jobs.jobs[row])
    return row


def _check_rigid(world: World, row: int, sizes: TaskSizes) -> None:
    """Raise HttpProblem for a resize of a rigid job that has started: it would lose its work."""
    jobs = world.jobs
    if math.isnan(float(jobs.first_start_s[row])):
        return
    nodes = "1 node" if sizes.asked == 1 else f"{sizes.asked} nodes"
    raise HttpProblem(
        409,
        f"job {jobs.ids[row]} is not elastic: its task says {nodes} and no range, and it has started; "
        "a task with elastic: {min_nodes: …, max_nodes: …} can be resized",
    )


def _is_stuck(world: World, row: int) -> bool:
    """Whether a job is held because its trial runs found no size that fits."""
    job = world.jobs.jobs[row]
    if job.trial is None or world.jobs.wish_of(row) is not DesiredState.TRY:
        return False
    return never_fits(world.trials.get(job.id, ()), job.trial.sizes)


def _node_index(world: World, node: NodeName) -> int:
    i = world.nodes.index.get(node)
    if i is None:
        raise not_found(f"node {node}")
    return i
