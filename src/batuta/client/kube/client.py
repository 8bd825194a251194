"""`KubeClient`: a Kubernetes cluster as a `Connection`, with the rights of the user and no server between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeAlias

from batuta.apitypes import resources as a
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden
from batuta.backends.kube.unified_job.from_task import TaskManifests
from batuta.backends.kube.unified_job.model import UNIFIED_JOB, UnifiedJob
from batuta.client.errors import ClientError, WaitTimeoutError
from batuta.client.kube import reading, writing
from batuta.client.kube.logs import follow_log, follow_logs, read_log, read_logs
from batuta.client.kube.reading import KubeEvent, event_view, matches, story_of
from batuta.client.kube.session import Session
from batuta.client.kube.views import job_view, result_of
from batuta.client.kube.writing import SubmitContext, manifests_of
from batuta.client.submission import Submission

JobRef: TypeAlias = a.Job | str


class KubeClient:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    @property
    def where(self) -> str:
        return self._where

    # ------------------------------------------------------------------------------------------------- submit

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
            namespace=self._session.run(self._own_namespace),
            user=lambda: self._session.run(writing.own_user_name),
            products=lambda: self._session.run(reading.gpu_products),
        )
        return manifests_of(submission, context)

    # --------------------------------------------------------------------------------------------------- try

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
        """The namespace of new jobs."""
        return self._session.run(self._own_namespace)

    # --------------------------------------------------------------------------------------------------- look

    def job(self, job: JobRef) -> a.Job:
        async def ask(api: Api) -> a.Job:
            return await reading.read_job(api, await self._find(api, job))

        return self._session.run(ask)

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        active: bool | None = None,
        user: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        since_s: float | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> tuple[a.Job, ...]:
        """All jobs of the namespace that match."""
        choice = reading.JobFilter(states, active, user, queue, name, since_s)

        async def ask(api: Api) -> list[a.Job]:
            return await reading.list_jobs(api, await self._scope(api), choice)

        found = self._session.run(ask)
        return tuple(found[::-1] if newest_first else found)[:limit]

    def explain(self, job: JobRef) -> a.Explanation:
        """The reason in its status, how many jobs of its queue wait longer, and its history."""

        async def ask(api: Api) -> a.Explanation:
            uj = await self._find(api, job)
            seen = job_view(uj, time.time())
            try:
                events, _ = await reading.past_events(api, uj.metadata.namespace)
            except Forbidden:
                events = []
            reason = seen.reason
            if reason is not None and seen.state in ("PENDING", "PREEMPTED"):
                reason = replace(reason, evidence=await self._ahead(api, uj))
            story = story_of(uj, events)
            trial = await writing.trial_of(api, uj.metadata.name, uj.metadata.namespace)
            return a.Explanation(
                uj.id,
                seen.state,
                reason,
                story,
                size_choice=seen.size_choice,
                endpoints=seen.endpoints,
                trial=trial,
            )

        return self._session.run(ask)

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
        """What the script gave to `batuta.sdk.result`. Raises ApiError (404) when it gave nothing."""
        uj = self._session.run(lambda api: self._find(api, job))
        return result_of(uj)

    def wait(
        self,
        job: JobRef,
        until: Literal["running", "ended"] = "ended",
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job:
        """Returns when the job runs, or has ended (however: look at its state)."""
        return self.wait_until(
            job, lambda now: now.is_over or (until == "running" and now.state == "RUNNING"), timeout_s, tell
        )

    def wait_until(
        self,
        job: JobRef,
        done: Callable[[a.Job], bool],
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job:
        """The same for any condition. It outlasts restarts of the API server."""

        async def ask(api: Api) -> a.Job:
            uj = await self._find(api, job)
            try:
                async with asyncio.timeout(timeout_s):
                    return await reading.wait_for(api, uj, done, tell)
            except TimeoutError:
                now = job_view(await api.get(UNIFIED_JOB, uj.metadata.name, uj.metadata.namespace), time.time())
                raise WaitTimeoutError(f"job {now.label} is {now.state} after {timeout_s:g} s") from None

        return self._session.run(ask)

    def log_bytes(
        self,
        job: JobRef,
        *,
        follow: bool = False,
        rank: int = 0,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> Iterator[bytes]:
        """One replica's output, as its pods wrote it. Raises OutputGoneError when they are gone."""
        uj = self._session.run(lambda api: self._find(api, job))
        read = follow_log if follow else read_log
        since = "" if since_s is None else datetime.fromtimestamp(since_s, UTC).isoformat(timespec="seconds")
        return self._session.stream(lambda api: read(api, uj, rank, tail, since))

    def rank_logs(
        self,
        job: JobRef,
        *,
        follow: bool = False,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> Iterator[tuple[int, bytes]]:
        """What all replicas printed, as pairs of a rank and some bytes."""
        uj = self._session.run(lambda api: self._find(api, job))
        read = follow_logs if follow else read_logs
        since = "" if since_s is None else datetime.fromtimestamp(since_s, UTC).isoformat(timespec="seconds")
        return self._session.stream(lambda api: read(api, uj, tail, since))

    def namespace_of(self, job: str) -> str:
        """Where a job of this name would be, if it is there or not; empty when it could be anywhere."""
        return job.rpartition("/")[0] or self._session.run(self._scope)

    # ------------------------------------------------------------------------------------------------- change

    def cancel(self, job: JobRef) -> a.Job:
        """Ends it for good. It is over when its state says so: `wait` for that."""
        return self._change(job, writing.cancel)

    def park(self, job: JobRef) -> a.Job:
        """Takes its GPUs away until `resume`."""
        return self._change(job, writing.park)

    def resume(self, job: JobRef) -> a.Job:
        return self._change(job, writing.resume)

    def resize(
        self,
        job: JobRef,
        nodes: int | None = None,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
    ) -> a.Job:
        """Pins its size, or changes the range within which the scheduler chooses."""
        return self._change(job, lambda api, uj: writing.resize(api, uj, nodes, min_nodes, max_nodes))

    def unpin(self, job: JobRef) -> a.Job:
        return self._change(job, writing.unpin)

    def _change(self, job: JobRef, change: Callable[[Api, UnifiedJob], Awaitable[UnifiedJob]]) -> a.Job:
        """A job that is over stays as it is."""

        async def ask(api: Api) -> a.Job:
            uj = await self._find(api, job)
            if uj.status.state not in a.FINAL_STATES:
                uj = await change(api, uj)
            return job_view(uj, time.time())

        return self._session.run(ask)

    # ------------------------------------------------------------------------------------------------ cluster

    def cluster(self) -> a.Cluster:
        """GPUs and jobs at a glance."""

        async def ask(api: Api) -> a.Cluster:
            return await reading.read_cluster(api, await self._scope(api), self._version)

        return self._session.run(ask)

    def nodes(self) -> tuple[a.Node, ...]:
        return self._session.run(reading.list_nodes)

    def cordon(self, node: str) -> a.Node:
        """Nothing new starts there; what runs stays."""
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

    def queues(self) -> NoReturn:
        self._cannot("tell its queues here: kubectl get clusterqueues and the operator's dashboard do")

    def queue_tree(self) -> NoReturn:
        self.queues()

    def queue(self, name: str, limit: int = 100) -> NoReturn:
        self.queues()

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> NoReturn:
        self._cannot("change its queues here: batuta install --set config.queues=… does it")

    def quota_objects(self) -> NoReturn:
        self._cannot("tell its quota here: kubectl get clusterqueues,localqueues,cohorts -o yaml does it")

    def apply_quota(self, files: Sequence[tuple[str, str]], *, dry_run: bool = False) -> NoReturn:
        self._cannot("change its quota here: kubectl apply -f FILE does it")

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> NoReturn:
        self._cannot(f"change its quota here: kubectl delete {kind.lower()} {name} does it")

    def policy(self) -> NoReturn:
        self._cannot("tell its policy: it stands in the operator's configuration (config.policy)")

    def set_policy(self, name: str) -> NoReturn:
        self._cannot(f"change its policy here: batuta install --apply --set config.policy={name} does it")

    def _cannot(self, what: str) -> NoReturn:
        raise ClientError(f"a cluster cannot {what}")

    # ------------------------------------------------------------------------------------------------- events

    def last_event(self) -> int:
        async def ask(api: Api) -> int:
            return (await reading.past_events(api, await self._scope(api)))[1]

        return self._session.run(ask)

    def recent_events(
        self, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]:
        """The last that the cluster still remembers (an hour's worth, as a rule), the oldest first."""

        async def ask(api: Api) -> list[KubeEvent]:
            return (await reading.past_events(api, await self._scope(api)))[0]

        found = [one for one in self._session.run(ask) if matches(one, types, job) and one.reason not in skip]
        return tuple(event_view(one) for one in found[-count:]) if count else ()

    def events(self, after: int | None = None, types: Sequence[str] = (), job: str | None = None) -> Iterator[a.Event]:
        """Events as they happen, for ever."""
        scope = self._session.run(self._scope)
        for one in self._session.stream(lambda api: reading.watch_events(api, scope, after)):
            if matches(one, types, job):
                yield event_view(one)

    # ------------------------------------------------------------------------------------------------ details

    async def _own_namespace(self, api: Api) -> str:
        """Return the namespace of new jobs."""
        self._where = f"{api.access.server}"
        return self._namespace or api.access.namespace or "default"

    async def _scope(self, api: Api) -> str:
        """Return the namespace that is read; empty for all."""
        own = await self._own_namespace(api)
        self._where += ", all namespaces" if self._all else f", namespace {own}"
        return "" if self._all else own

    async def _find(self, api: Api, job: JobRef) -> UnifiedJob:
        return await reading.find_job(api, await self._scope(api), job.id if isinstance(job, a.Job) else job)
