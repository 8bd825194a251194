"""`KubeClient`: a Kubernetes cluster as a `Connection`, with the rights of the user and no server between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeAlias, TypeVar

from batuta.apitypes import resources as a
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden
from batuta.backends.kube.unified_job.from_task import TaskManifests
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.client.connection import JobClient
from batuta.client.errors import ClientError, WaitTimeoutError
from batuta.client.kube import reading, writing
from batuta.client.kube.logs import follow_log, follow_logs, read_log, read_logs
from batuta.client.kube.reading import KubeEvent, event_view, matches, story_of
from batuta.client.kube.session import Session
from batuta.client.kube.views import job_view, result_of
from batuta.client.kube.writing import SubmitContext, manifests_of
from batuta.client.submission import Submission

JobRef: TypeAlias = a.Job | str
P = ParamSpec("P")
T = TypeVar("T")


def _asks(ask: Callable[Concatenate[KubeClient, Api, P], Awaitable[T]]) -> Callable[Concatenate[KubeClient, P], T]:
    """Let a method wait for what it asks of the API server."""

    @wraps(ask)
    def run(self: KubeClient, /, *args: P.args, **options: P.kwargs) -> T:
        return self._session.run(lambda api: ask(self, api, *args, **options))

    return run


def _unavailable(what: str) -> Callable[..., NoReturn]:
    def refuse(self: KubeClient, *args: object, **options: object) -> NoReturn:
        raise ClientError(f"a cluster cannot {what}")

    return refuse


class KubeClient(JobClient):
    """A connection to a cluster. Opens nothing before it is used.

    A job is given by its name, `namespace/name`, or a Job.
    """

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
        *,
        all_namespaces: bool = False,
        version: str = "",
    ) -> None:
        self._session = Session(kubeconfig, context)
        self._namespace = namespace
        self._all = all_namespaces
        self._version = version
        self._where = ""

    def close(self) -> None:
        self._session.close()

    @property
    def where(self) -> str:
        return self._where

    def send_submission(self, submission: Submission, *, dry_run: bool = False) -> a.Submitted:
        """Creates the job. With `dry_run` the API server only checks it."""
        found = self._manifests(submission)
        made = self._session.run(lambda api: writing.submit(api, found, dry_run=dry_run))
        return a.Submitted(job_view(made, time.time()), found.notes)

    def manifest(self, submission: Submission) -> Mapping[str, Any]:
        """The UnifiedJob that `send_submission` would write."""
        return self._manifests(submission).job

    def _manifests(self, submission: Submission) -> TaskManifests:
        context = SubmitContext(
            namespace=self.namespace,
            user=lambda: self._session.run(writing.own_user_name),
            products=lambda: self._session.run(reading.gpu_products),
        )
        return manifests_of(submission, context)

    def try_out(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        """Creates a TrialRun; returns its name, and notes."""
        found = writing.trial_manifests(submission, self._manifests)
        made = self._session.run(lambda api: writing.create_trial(api, found))
        return made.metadata.name, found.notes

    def trial(self, name: str) -> tuple[str, a.Trial]:
        """The state of a TrialRun, and its results so far."""
        namespace = self.namespace
        run = self._session.run(lambda api: writing.find_trial(api, name, namespace))
        return run.status.state, writing.trial_view(run)

    @property
    def namespace(self) -> str:
        return self._session.run(self._own_namespace)

    @_asks
    async def job(self, api: Api, job: JobRef) -> a.Job:
        return await reading.read_job(api, await self._find(api, job))

    @_asks
    async def jobs(
        self, api: Api, /, *, newest_first: bool = False, limit: int | None = None, **wanted: Any
    ) -> tuple[a.Job, ...]:
        found = await reading.list_jobs(api, await self._scope(api), reading.JobFilter(**wanted))
        return tuple(found[::-1] if newest_first else found)[:limit]

    @_asks
    async def explain(self, api: Api, job: JobRef) -> a.Explanation:
        """The reason in its status, how many jobs of its queue wait longer, and its history."""
        uj = await self._find(api, job)
        seen, events = job_view(uj, time.time()), list[KubeEvent]()
        with suppress(Forbidden):
            events, _ = await reading.past_events(api, uj.metadata.namespace)
        reason, story = seen.reason, story_of(uj, events)
        if reason is not None and seen.state in ("PENDING", "PREEMPTED"):
            reason = replace(reason, evidence=await self._ahead(api, uj))
        trial = await writing.trial_of(api, uj.metadata.name, uj.metadata.namespace)
        choice, reached = seen.size_choice, seen.endpoints
        return a.Explanation(uj.id, seen.state, reason, story, size_choice=choice, endpoints=reached, trial=trial)

    def suggestions(self, job: JobRef) -> tuple[a.SuggestedChange, ...]:
        """None: only the operator sees the whole cluster; its API has suggestions."""
        return ()

    async def _ahead(self, api: Api, uj: UnifiedJob) -> dict[str, Any]:
        """How many jobs of its queue wait longer, as far as the user may see."""
        others = (await api.list(UNIFIED_JOB, uj.metadata.namespace, page=reading.PAGE)).items
        mine = uj.metadata.creation_timestamp, uj.id
        waiting = [
            one
            for one in others
            if one.spec.queue_name == uj.spec.queue_name and one.status.state in ("", "PENDING", "PREEMPTED")
        ]
        ahead = sum(1 for one in waiting if (one.metadata.creation_timestamp, one.id) < mine)
        return {"waiting longer in its queue": ahead, "waiting in its queue": len(waiting)}

    def result(self, job: JobRef) -> Any:
        return result_of(self._found(job))

    @_asks
    async def wait_until(
        self,
        api: Api,
        job: JobRef,
        done: Callable[[a.Job], bool],
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job:
        uj = await self._find(api, job)
        try:
            async with asyncio.timeout(timeout_s):
                return await reading.wait_for(api, uj, done, tell)
        except TimeoutError:
            now = job_view(await api.get(UNIFIED_JOB, uj.metadata.name, uj.metadata.namespace), time.time())
            raise WaitTimeoutError(f"job {now.label} is {now.state} after {timeout_s:g} s") from None

    def log_bytes(
        self, job: JobRef, *, follow: bool = False, rank: int = 0, tail: int | None = None, since_s: float | None = None
    ) -> Iterator[bytes]:
        """One replica's output, as its pods wrote it. Raises OutputGoneError when they are gone."""
        uj, read = self._found(job), follow_log if follow else read_log
        return self._session.stream(lambda api: read(api, uj, rank, tail, _as_time(since_s)))

    def rank_logs(
        self, job: JobRef, *, follow: bool = False, tail: int | None = None, since_s: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        uj, read = self._found(job), follow_logs if follow else read_logs
        return self._session.stream(lambda api: read(api, uj, tail, _as_time(since_s)))

    def namespace_of(self, job: str) -> str:
        """Where a job of this name would be, if it is there or not; empty when it could be anywhere."""
        return job.rpartition("/")[0] or self._session.run(self._scope)

    def cancel(self, job: JobRef) -> a.Job:
        return self._change(job, writing.cancel)

    def park(self, job: JobRef) -> a.Job:
        return self._change(job, writing.park)

    def resume(self, job: JobRef) -> a.Job:
        return self._change(job, writing.resume)

    def resize(
        self, job: JobRef, nodes: int | None = None, *, min_nodes: int | None = None, max_nodes: int | None = None
    ) -> a.Job:
        """Pins its size, or changes the range within which the scheduler chooses."""
        return self._change(job, lambda api, uj: writing.resize(api, uj, nodes, min_nodes, max_nodes))

    def unpin(self, job: JobRef) -> a.Job:
        return self._change(job, writing.unpin)

    @_asks
    async def _change(self, api: Api, job: JobRef, change: Callable[[Api, UnifiedJob], Awaitable[UnifiedJob]]) -> a.Job:
        """A job that is over stays as it is."""
        uj = await self._find(api, job)
        return job_view(uj if uj.status.state in a.FINAL_STATES else await change(api, uj), time.time())

    @_asks
    async def cluster(self, api: Api) -> a.Cluster:
        return await reading.read_cluster(api, await self._scope(api), self._version)

    def nodes(self) -> tuple[a.Node, ...]:
        return self._session.run(reading.list_nodes)

    def cordon(self, node: str) -> a.Node:
        return self._node_action(node, lambda api: writing.cordon(api, node))

    def uncordon(self, node: str) -> a.Node:
        return self._node_action(node, lambda api: writing.uncordon(api, node))

    def mended(self, node: str, gpu: int | None = None) -> a.Node:
        return self._node_action(node, lambda api: writing.mark_repaired(api, node, gpu))

    def _node_action(self, node: str, do: Callable[[Api], Awaitable[None]]) -> a.Node:
        self._session.run(do)
        return next(one for one in (*self.nodes(), a.Node(node)) if one.name == node)

    def drain(self, node: str) -> NoReturn:
        raise ClientError(f"draining evicts all pods, not only those of Batuta: kubectl drain {node} does it")

    queues = queue_tree = queue = _unavailable(
        "tell its queues here: kubectl get clusterqueues and the operator's dashboard do"
    )
    quota_objects = _unavailable("tell its quota here: kubectl get clusterqueues,localqueues,cohorts -o yaml does it")
    apply_quota = _unavailable("change its quota here: kubectl apply -f FILE does it")

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> NoReturn:
        raise ClientError(f"a cluster cannot change its quota here: kubectl delete {kind.lower()} {name} does it")

    @_asks
    async def policy(self, api: Api) -> a.PolicyAnswer:
        """The policy of the operator's ConfigMap, and the policies that this installation knows."""
        from batuta.client.kube.policy import read_policy  # noqa: PLC0415 - policies need NumPy, other verbs do not

        return await read_policy(api, self._namespace)

    @_asks
    async def set_policy(self, api: Api, name: str) -> a.PolicyAnswer:
        """Writes the policy into the operator's ConfigMap. Raises InputError for one that is not known here."""
        from batuta.client.kube.policy import set_policy  # noqa: PLC0415 - see above

        return await set_policy(api, self._namespace, name)

    @_asks
    async def last_event(self, api: Api) -> int:
        return (await reading.past_events(api, await self._scope(api)))[1]

    @_asks
    async def recent_events(
        self, api: Api, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]:
        """The last that the cluster still remembers (an hour's worth, as a rule), the oldest first."""
        known, _ = await reading.past_events(api, await self._scope(api))
        found = [one for one in known if matches(one, types, job) and one.reason not in skip]
        return tuple(event_view(one) for one in found[-count:]) if count else ()

    def events(self, after: int | None = None, types: Sequence[str] = (), job: str | None = None) -> Iterator[a.Event]:
        scope = self._session.run(self._scope)
        for one in self._session.stream(lambda api: reading.watch_events(api, scope, after)):
            if matches(one, types, job):
                yield event_view(one)

    async def _own_namespace(self, api: Api) -> str:
        self._where = f"{api.access.server}"
        return self._namespace or api.access.namespace or "default"

    async def _scope(self, api: Api) -> str:
        """Return the namespace that is read; empty for all."""
        own = await self._own_namespace(api)
        self._where += ", all namespaces" if self._all else f", namespace {own}"
        return "" if self._all else own

    async def _find(self, api: Api, job: JobRef) -> UnifiedJob:
        return await reading.find_job(api, await self._scope(api), job.id if isinstance(job, a.Job) else job)

    @_asks
    async def _found(self, api: Api, job: JobRef) -> UnifiedJob:
        return await self._find(api, job)


def _as_time(since_s: float | None) -> str:
    return "" if since_s is None else datetime.fromtimestamp(since_s, UTC).isoformat(timespec="seconds")
