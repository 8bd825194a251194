"""A cluster as the verbs talk to one: no server of ours in between, and no rights but the user's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeAlias

from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import Forbidden
from batuta.backends.kube.operator.watched import UNIFIED_JOB
from batuta.backends.kube.unified_job.from_task import TaskManifests
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.client import answers as a
from batuta.client.errors import ClientError, WaitTimeoutError
from batuta.client.kube import reading, tending, trying, writing
from batuta.client.kube.events import KubeEvent, event_view, story_of, wanted
from batuta.client.kube.job_view import job_view, result_of
from batuta.client.kube.launching import Sender, manifests_of
from batuta.client.kube.log import follow_log, read_log
from batuta.client.kube.session import Session
from batuta.client.submission import Submission

AskedJob: TypeAlias = a.Job | str


class KubeClient:
    """A connection to a cluster. Opens nothing before it is used.

    Wherever a job is asked for, its name, `namespace/name` or a Job will do.
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
        """Writes it. With `dry_run` the API server checks it, and forgets it."""
        found = self._manifests(submission)
        made = self._session.run(lambda api: writing.submit(api, found, dry_run=dry_run))
        return a.Submitted(job_view(made, time.time()), found.notes)

    def manifest(self, submission: Submission) -> Mapping[str, Any]:
        """The UnifiedJob that `send_submission` would write."""
        return self._manifests(submission).job

    def _manifests(self, submission: Submission) -> TaskManifests:
        sender = Sender(
            namespace=self._session.run(self._home),
            user=lambda: self._session.run(writing.own_name),
            products=lambda: self._session.run(reading.products),
        )
        return manifests_of(submission, sender)

    # --------------------------------------------------------------------------------------------------- try

    def try_out(self, submission: Submission) -> tuple[str, tuple[str, ...]]:
        """Writes a TrialRun of it; its name, and what is to be known about it."""
        found = trying.trial_manifests(submission, self._manifests)
        made = self._session.run(lambda api: trying.create(api, found))
        return made.metadata.name, found.notes

    def trial(self, name: str) -> tuple[str, a.Trial]:
        """The state of a TrialRun, and what it has shown so far."""
        namespace = self.namespace
        run = self._session.run(lambda api: trying.find(api, name, namespace))
        return run.status.state, trying.trial_view(run)

    @property
    def namespace(self) -> str:
        """Where new jobs come into."""
        return self._session.run(self._home)

    # --------------------------------------------------------------------------------------------------- look

    def job(self, job: AskedJob) -> a.Job:
        async def ask(api: Api) -> a.Job:
            return await reading.in_full(api, await self._find(api, job))

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
        choice = reading.Choice(states, active, user, queue, name, since_s)

        async def ask(api: Api) -> list[a.Job]:
            return await reading.list_jobs(api, await self._place(api), choice)

        found = self._session.run(ask)
        return tuple(found[::-1] if newest_first else found)[:limit]

    def explain(self, job: AskedJob) -> a.Explanation:
        """What its status says, how many of its queue came before it, and what happened to it so far."""

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
            trial = await trying.trial_of(api, uj.metadata.name, uj.metadata.namespace)
            return a.Explanation(uj.id, seen.state, reason, story, size_choice=seen.size_choice, trial=trial)

        return self._session.run(ask)

    def suggestions(self, job: AskedJob) -> tuple[a.Suggestion, ...]:
        """None: only the operator has the whole cluster in mind, and it is asked as a server is."""
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

    def result(self, job: AskedJob) -> Any:
        """What the script gave to `batuta.sdk.result`. Raises ApiError (404) when it gave nothing."""
        uj = self._session.run(lambda api: self._find(api, job))
        return result_of(uj)

    def wait(
        self,
        job: AskedJob,
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
        job: AskedJob,
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
                now = job_view(
                    await api.get(UNIFIED_JOB, uj.metadata.name, uj.metadata.namespace), time.time()
                )
                raise WaitTimeoutError(f"job {now.label} is {now.state} after {timeout_s:g} s") from None

        return self._session.run(ask)

    def log_bytes(
        self,
        job: AskedJob,
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

    def namespace_of(self, job: str) -> str:
        """Where a job of this name would be, if it is there or not; empty when it could be anywhere."""
        return job.rpartition("/")[0] or self._session.run(self._place)

    # ------------------------------------------------------------------------------------------------- change

    def cancel(self, job: AskedJob) -> a.Job:
        """Ends it for good. It is over when its state says so: `wait` for that."""
        return self._change(job, writing.cancel)

    def park(self, job: AskedJob) -> a.Job:
        """Takes its GPUs away until `resume`."""
        return self._change(job, writing.park)

    def resume(self, job: AskedJob) -> a.Job:
        return self._change(job, writing.resume)

    def resize(
        self,
        job: AskedJob,
        nodes: int | None = None,
        *,
        min_nodes: int | None = None,
        max_nodes: int | None = None,
    ) -> a.Job:
        """Pins its size, or changes the range within which the scheduler chooses."""
        return self._change(job, lambda api, uj: writing.resize(api, uj, nodes, min_nodes, max_nodes))

    def unpin(self, job: AskedJob) -> a.Job:
        return self._change(job, writing.unpin)

    def _change(self, job: AskedJob, change: Callable[[Api, UnifiedJob], Awaitable[UnifiedJob]]) -> a.Job:
        """A job that is over stays as it is."""

        async def ask(api: Api) -> a.Job:
            uj = await self._find(api, job)
            if uj.status.state not in a.OVER:
                uj = await change(api, uj)
            return job_view(uj, time.time())

        return self._session.run(ask)

    # ------------------------------------------------------------------------------------------------ cluster

    def cluster(self) -> a.Cluster:
        """GPUs and jobs at a glance."""

        async def ask(api: Api) -> a.Cluster:
            return await reading.at_a_glance(api, await self._place(api), self._version)

        return self._session.run(ask)

    def nodes(self) -> tuple[a.Node, ...]:
        return self._session.run(reading.nodes)

    def cordon(self, node: str) -> a.Node:
        """Nothing new starts there; what runs stays."""
        return self._tend(node, lambda api: tending.cordon(api, node))

    def uncordon(self, node: str) -> a.Node:
        return self._tend(node, lambda api: tending.uncordon(api, node))

    def mended(self, node: str, gpu: int | None = None) -> a.Node:
        return self._tend(node, lambda api: tending.mended(api, node, gpu))

    def _tend(self, node: str, do: Callable[[Api], Awaitable[None]]) -> a.Node:
        self._session.run(do)
        return next(one for one in (*self.nodes(), a.Node(node)) if one.name == node)

    def drain(self, node: str) -> NoReturn:
        raise ClientError(
            f"draining evicts pods of everybody, also those that are not ours: kubectl drain {node} does it"
        )

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
            return (await reading.past_events(api, await self._place(api)))[1]

        return self._session.run(ask)

    def recent_events(
        self, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]:
        """The last that the cluster still remembers (an hour's worth, as a rule), the oldest first."""

        async def ask(api: Api) -> list[KubeEvent]:
            return (await reading.past_events(api, await self._place(api)))[0]

        found = [one for one in self._session.run(ask) if wanted(one, types, job) and one.reason not in skip]
        return tuple(event_view(one) for one in found[-count:]) if count else ()

    def events(
        self, after: int | None = None, types: Sequence[str] = (), job: str | None = None
    ) -> Iterator[a.Event]:
        """Events as they happen, for ever."""
        place = self._session.run(self._place)
        for one in self._session.stream(lambda api: reading.coming_events(api, place, after)):
            if wanted(one, types, job):
                yield event_view(one)

    # ------------------------------------------------------------------------------------------------ details

    async def _home(self, api: Api) -> str:
        """The namespace that new jobs come into."""
        self._where = f"{api.access.server}"
        return self._namespace or api.access.namespace or "default"

    async def _place(self, api: Api) -> str:
        """The namespace that is looked at; empty for all."""
        own = await self._home(api)
        self._where += ", all namespaces" if self._all else f", namespace {own}"
        return "" if self._all else own

    async def _find(self, api: Api, job: AskedJob) -> UnifiedJob:
        return await reading.find(api, await self._place(api), job.id if isinstance(job, a.Job) else job)
