"""`batuta.Client`: submit jobs from Python, watch them, change them."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from batuta.apitypes import forecasts as f
from batuta.apitypes import queues as q
from batuta.apitypes import resources as a
from batuta.client.address import Address, find_address
from batuta.client.connection import JobClient, RankPiece, follow_ranks
from batuta.client.decoding import decode, decode_list
from batuta.client.errors import AmbiguousJobError, AnswerError, ApiError, ClientError, UnknownJobError
from batuta.client.submission import Submission
from batuta.client.transport import RANKS, TIMEOUT_S, Transport, follow_events, follow_log, read_past, wait_for

T = TypeVar("T")
PAGE = 1000
MAX_EVENT_WINDOW = 20_000
SLOW_TIMEOUT_S = 200.0  # for forecasts and reports: they take a while where there are thousands of jobs
DOCTOR_TIMEOUT_S = 120.0


class Client(JobClient):
    """A connection to a Batuta server. Opens nothing before it is used.

    Without arguments it is the server of $BATUTA_SERVER, else the one of the state directory ($BATUTA_HOME,
    by default ~/.batuta). A job is given by its id, its name, or a Job.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        home: Path | str | None = None,
        *,
        ca_file: Path | str | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """`ca_file` has the certificates of whom to believe that they are the server; default $BATUTA_CA_FILE."""
        self._transport = Transport(lambda: find_address(server, token, home, ca_file=ca_file), timeout_s, transport)

    def close(self) -> None:
        self._transport.close()

    @property
    def where(self) -> str:
        """The URL of the server that answered last."""
        return self.address.url if self.address is not None else ""

    @property
    def address(self) -> Address | None:
        """Of the server that answered last; None before the first request."""
        return self._transport.address

    def submit(
        self,
        task: Path | str | Mapping[str, Any] | None = None,
        *,
        command: str | Sequence[str] | None = None,
        like: a.Job | str | None = None,
        key: str | None = None,
        **overrides: Any,
    ) -> a.Job:
        """Submits a task file, the text of one, a mapping, a command, or what an earlier job ran (`like`).

        Returns when it is stored.

        Overrides are those of `batuta launch`: name, gpus, num_nodes, min_nodes, max_nodes, restartable,
        queue, priority, workdir, env, secret. A key of your own makes it safe to submit again after a crash.
        """
        earlier = None if like is None else self.job(like).id
        return self.send_submission(Submission.of(task, command, overrides, key, earlier)).job

    def dry_run(
        self,
        task: Path | str | Mapping[str, Any] | None = None,
        *,
        command: str | Sequence[str] | None = None,
        **overrides: Any,
    ) -> a.Submitted:
        """Returns the job that `submit` would create. Nothing is stored."""
        return self.send_submission(Submission.of(task, command, overrides), dry_run=True)

    def send_submission(self, submission: Submission, *, dry_run: bool = False) -> a.Submitted:
        """Sends it, and again where the connection breaks: its key makes sure that there is one job."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": submission.key}
        params = {"dryrun": "true" if dry_run else None}
        request = {"content": submission.body(), "headers": headers, "params": params}
        return self._call(a.Submitted, "POST", "/jobs", repeatable=True, **request)

    def manifest(self, submission: Submission) -> Mapping[str, Any] | None:
        """None: the server makes a job of a task."""
        return None

    def job(self, job: a.Job | str) -> a.Job:
        """A job by its id or name. A name means the one living job that has it, else the newest one."""
        if isinstance(job, a.Job):
            return self._job(job.id)
        check_job(job)
        try:
            return self._job(job)
        except ApiError as error:
            if error.status not in (400, 404, 422):
                raise
        return self._by_name(job)

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
        """All jobs that match, however many pages they take."""
        params: dict[str, Any] = {"state": list(states) or None, "user": user, "queue": queue, "name": name}
        params |= {"active": None if active is None else str(active).lower(), "since_s": since_s}
        params["order"] = "newest" if newest_first else None
        found: list[a.Job] = []
        while limit is None or len(found) < limit:
            params["limit"] = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self._transport.json("GET", "/jobs", params=params)
            found += decode_list(a.Job, page, "jobs")
            if not page.get("next"):
                break
            params["cursor"] = page["next"]
        return tuple(found)

    def explain(self, job: a.Job | str) -> a.Explanation:
        return decode(a.Explanation, self._get(job, "/explain"))

    def suggestions(self, job: a.Job | str) -> tuple[a.SuggestedChange, ...]:
        return decode_list(a.SuggestedChange, self._get(job, "/suggestions"), "suggestions")

    def result(self, job: a.Job | str) -> Any:
        """The value that the script passed to `batuta.sdk.result`. Raises ApiError (404) without one."""
        answer = self._get(job, "/result")
        return answer.get("value") if isinstance(answer, dict) else answer

    def progress(self, job: a.Job | str, points: int = 500) -> tuple[a.ProgressPoint, ...]:
        return decode_list(a.ProgressPoint, self._get(job, "/progress", points=points), "points")

    def job_events(self, job: a.Job | str) -> tuple[a.Event, ...]:
        found, cursor = list[a.Event](), None
        while True:
            page = self._get(job, "/events", limit=PAGE, cursor=cursor)
            found += [_event(one) for one in page.get("events", ())]
            if not (cursor := page.get("next")):
                return tuple(found)

    def wait_until(
        self,
        job: a.Job | str,
        done: Callable[[a.Job], bool],
        timeout_s: float | None = None,
        tell: Callable[[a.Job], None] | None = None,
    ) -> a.Job:
        check_value("timeout_s", timeout_s, int, float)
        known = self._known(job)
        return wait_for(self._transport, known.id, lambda: self._job(known.id), done, timeout_s, tell)

    def logs(self, job: a.Job | str, *, follow: bool = False, rank: int = 0, tail: int | None = None) -> Iterator[str]:
        """Lines of one replica's output. With `follow` it goes on until the job ends."""
        rest = b""
        for chunk in self.log_bytes(job, follow=follow, rank=rank, tail=tail):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if rest:
            yield rest.decode("utf-8", "replace")

    def log_bytes(
        self,
        job: a.Job | str,
        *,
        follow: bool = False,
        rank: int = 0,
        tail: int | None = None,
        since_s: float | None = None,
    ) -> Iterator[bytes]:
        """Output of one replica as it was written, in pieces of any length."""
        if since_s is not None:
            raise ClientError("a server does not know when a line was printed: ask for the last ones instead")
        known = self._known(job)
        path = f"{self._path(known)}/logs"
        params: dict[str, Any] = {"rank": rank, "tail": tail}
        if follow:
            yield from follow_log(self._transport, path, params, lambda: self._job(known.id).is_over)
            return
        with self._transport.stream(path, quiet_s=TIMEOUT_S, params=params) as response:
            yield from response.iter_bytes()

    def rank_logs(
        self, job: a.Job | str, *, follow: bool = False, tail: int | None = None, since_s: float | None = None
    ) -> Iterator[RankPiece]:
        """What all replicas printed, as pairs of a rank and some bytes: as it comes, or rank by rank."""
        known = self._known(job)

        def read(rank: int) -> Iterator[bytes]:
            return self.log_bytes(known, follow=follow, rank=rank, tail=tail, since_s=since_s)

        def count() -> int:
            path, params = f"{self._path(known)}/logs", {"rank": 0, "tail": 0}
            with self._transport.stream(path, quiet_s=TIMEOUT_S, params=params) as response:
                return int(response.headers.get(RANKS, 1))

        if follow:
            yield from follow_ranks(read, count, lambda: self._job(known.id).is_over)
            return
        for rank in range(count()):
            yield from ((rank, piece) for piece in read(rank))

    def cancel(self, job: a.Job | str) -> a.Job:
        """Ends it for good. It is over when its state says so: `wait` for that."""
        return self._call(a.Job, "DELETE", self._path(job))

    def park(self, job: a.Job | str) -> a.Job:
        """Takes its GPUs away, after a checkpoint, until `resume`."""
        return self._change(job, wish="park")

    def resume(self, job: a.Job | str) -> a.Job:
        return self._change(job, wish="run")

    def resize(
        self, job: a.Job | str, nodes: int | None = None, *, min_nodes: int | None = None, max_nodes: int | None = None
    ) -> a.Job:
        """Asks for another number of nodes, or another range of them."""
        asked = {"nodes": nodes, "min_nodes": min_nodes, "max_nodes": max_nodes}
        for name, value in asked.items():
            check_value(name, value, int)
        return self._change(job, **{key: value for key, value in asked.items() if value is not None})

    def unpin(self, job: a.Job | str) -> a.Job:
        """Gives the job the sizes of its task again."""
        return self._change(job, auto=True)

    def set_priority(self, job: a.Job | str, priority: int) -> a.Job:
        check_value("priority", priority, int)
        return self._change(job, priority=priority)

    def move(self, job: a.Job | str, queue: str) -> a.Job:
        check_value("queue", queue, str)
        return self._change(job, queue=queue)

    def cluster(self) -> a.Cluster:
        """GPUs, jobs and the server at a glance."""
        return self._call(a.Cluster, "GET", "/cluster")

    def timeline(self, since_s: float | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._transport.json("GET", "/timeline", params={"since_s": since_s})
        return answer

    def nodes(self) -> tuple[a.Node, ...]:
        return decode_list(a.Node, self._transport.json("GET", "/nodes"), "nodes")

    def cordon(self, node: str) -> a.Node:
        """Nothing new starts there; what runs stays."""
        return self._node_action(node, "cordon")

    def uncordon(self, node: str) -> a.Node:
        """Ends a cordon; where there is none, puts a node back into service that health took out."""
        # Not repeatable: the first call ends the cordon, a second one overrides health.
        return self._node_action(node, "uncordon", repeatable=False)

    def drain(self, node: str) -> a.Node:
        """Cordons it, and moves away what runs there."""
        return self._node_action(node, "drain")

    def mended(self, node: str, gpu: int | None = None) -> a.Node:
        """Reports a repair of a node or GPU: a burn-in follows."""
        return self._node_action(node, "mended", {} if gpu is None else {"gpu": gpu}, repeatable=False)

    def _node_action(
        self, node: str, what: str, body: dict[str, int] | None = None, *, repeatable: bool = True
    ) -> a.Node:
        path = f"/nodes/{quote(node, safe='')}/{what}"
        return self._call(a.Node, "POST", path, repeatable=repeatable, json=body)

    def queues(self) -> tuple[q.Queue, ...]:
        return self.queue_tree().queues

    def queue_tree(self) -> q.Queues:
        return self._call(q.Queues, "GET", "/queues")

    def queue(self, name: str, limit: int = 100) -> q.QueueDetail:
        """One queue, with its first pending jobs and the first jobs that hold its quota."""
        path = f"/queues/{quote(name, safe='')}"
        return self._call(q.QueueDetail, "GET", path, params={"limit": limit})

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> q.Queue:
        """Makes a queue or changes it: quota, cohort, weight, held."""
        path = f"/queues/{quote(name, safe='')}"
        return self._call(q.Queue, "PUT", path, json=dict(queue))

    def policy(self) -> a.PolicyAnswer:
        return self._call(a.PolicyAnswer, "GET", "/policy")

    def set_policy(self, name: str) -> a.PolicyAnswer:
        return self._call(a.PolicyAnswer, "PUT", "/policy", json={"name": name})

    def quota_objects(self) -> list[dict[str, Any]]:
        found = self._transport.json("GET", "/quota")
        objects = found.get("objects") if isinstance(found, dict) else None
        if not isinstance(objects, list):
            raise AnswerError("the server's answer has no list of objects")
        return objects

    def apply_quota(self, files: Sequence[tuple[str, str]], *, dry_run: bool = False) -> q.QuotaChanged:
        """Applies texts of files, each with its name: all or none. Raises ApiError with all problems."""
        written = [{"name": name, "text": text} for name, text in files]
        # Applied twice is applied once.
        body = {"files": written, "dry_run": dry_run}
        return self._call(q.QuotaChanged, "PATCH", "/quota", json=body, repeatable=True)

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> q.QuotaChanged:
        """Removes an object; a queue in which jobs run goes when they are done."""
        path = f"/quota/{quote(kind, safe='')}/{quote(name, safe='')}"
        return self._call(q.QuotaChanged, "DELETE", path, params={"namespace": namespace or None})

    def eta(
        self, job: str | None = None, *, expects_arrivals: bool = True, within_s: float | None = None
    ) -> f.EtaAnswer:
        """When jobs start and finish; all that are not over, or the one with this id.

        `expects_arrivals`: jobs keep coming as they did lately; False asks for a forecast without new jobs.
        `within_s`: how long to wait for a fine forecast, up to a minute; then the answer is an earlier or a
        coarse one, and says so. None: the server decides, half a second where there are many jobs.
        """
        params = {"job": job, "arrivals": None if expects_arrivals else "false", "within_s": within_s}
        return self._call(f.EtaAnswer, "GET", "/eta", params=params, timeout=SLOW_TIMEOUT_S)

    def what_if(
        self,
        *,
        policy: str | None = None,
        add_nodes: str = "",
        quota: Sequence[tuple[str, str]] = (),
        submit: Sequence[Submission] = (),
        drain: Sequence[str] = (),
        expects_arrivals: bool = False,
        seed: int = 0,
    ) -> f.WhatIfAnswer:
        """What a change would do to every job; nothing is changed. Raises ApiError with all problems."""
        body = what_if_body(
            policy=policy,
            add_nodes=add_nodes,
            quota=quota,
            submit=submit,
            drain=drain,
            expects_arrivals=expects_arrivals,
            seed=seed,
        )
        return self._call(f.WhatIfAnswer, "POST", "/whatif", json=body, repeatable=True, timeout=SLOW_TIMEOUT_S)

    def shadow(self) -> f.ShadowAnswer:
        return self._call(f.ShadowAnswer, "GET", "/shadow")

    def set_shadow(self, policy: str) -> f.ShadowAnswer:
        """Sets the shadow policy; an empty name ends it."""
        return self._call(f.ShadowAnswer, "PUT", "/shadow", json={"policy": policy})

    def report(self, from_s: float | None = None, to_s: float | None = None) -> f.Report:
        """GPU time used, lost, idle and waited for; without times, of the last week."""
        params = {"from_s": from_s, "to_s": to_s}
        return self._call(f.Report, "GET", "/report", params=params, timeout=SLOW_TIMEOUT_S)

    def examine(self, *, full: bool = False) -> a.Examination:
        """Stuck gangs, leaked quota, the journal and so on; `full` looks through a large journal, too."""
        params = {"full": "true" if full else None}
        return self._call(a.Examination, "GET", "/doctor", params=params, timeout=DOCTOR_TIMEOUT_S)

    def last_event(self) -> int:
        return self.cluster().seq

    def events(self, after: int | None = None, types: Sequence[str] = (), job: str | None = None) -> Iterator[a.Event]:
        """Events as they happen, for ever; those after a number of the journal come first.

        An event `reset` says that some were missed. It outlasts restarts of the server.
        """
        return follow_events(self._transport, after, _event_params(types, job))

    def recent_events(
        self, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]:
        """The last events of the journal, the oldest first; those of types in `skip` do not count."""
        last, window = self.cluster().seq, max(64, 4 * count)
        while True:
            after = max(0, last - window)
            past = read_past(self._transport, after, last, _event_params(types, job))
            found = [event for event in past if event.type not in skip]
            if len(found) >= count or after == 0 or window >= MAX_EVENT_WINDOW:
                return tuple(found[-count:]) if count else ()
            window *= 8

    def audit(
        self,
        *,
        user: str | None = None,
        job: a.Job | str | None = None,
        since_s: float | None = None,
        limit: int = 1_000,
    ) -> tuple[a.Event, ...]:
        """What users did, the oldest first; `actor` of an event's data is the user. At most the last `limit`."""
        only = job.id if isinstance(job, a.Job) else job
        params = {"user": user, "job": only, "since_s": since_s, "limit": limit}
        found = self._transport.json("GET", "/audit", params=params)
        events = found.get("events") if isinstance(found, dict) else None
        if not isinstance(events, list):
            raise AnswerError("the server's answer has no events")
        return tuple(a.Event(int(one["seq"]), str(one["type"]), one) for one in reversed(events))

    def tokens(self) -> tuple[a.Token, ...]:
        return decode_list(a.Token, self._transport.json("GET", "/tokens"), "tokens")

    def create_token(self, user: str, role: str, valid_s: float | None = 90 * 86_400.0) -> a.Token:
        """Creates a token, which ends after 90 days, another time, or never (None). It is shown only this once."""
        return self._call(a.Token, "POST", "/tokens", json={"user": user, "role": role, "valid_s": valid_s})

    def revoke_token(self, token_hash: str) -> None:
        self._transport.json("DELETE", f"/tokens/{quote(token_hash, safe='')}")

    def session_link(self) -> str:
        """A link that logs a browser in to the dashboard, once, within a minute."""
        return str(self._transport.json("POST", "/session-links")["url"])

    def shut_down(self, *, keep_jobs: bool = False) -> None:
        """Ends the server. With `keep_jobs` what runs goes on, and the next server takes it over."""
        self._transport.json("POST", "/shutdown", json={"keep_jobs": keep_jobs}, repeatable=False)

    def is_ready(self) -> bool:
        """Whether the server takes requests. Raises NoServerError when there is none."""
        return self._transport.send("GET", "/readyz").is_success

    def _call(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        return decode(kind, self._transport.json(method, path, **request))

    def _job(self, job_id: str) -> a.Job:
        return self._call(a.Job, "GET", f"/jobs/{quote(job_id, safe='')}")

    def _by_name(self, name: str) -> a.Job:
        name = unicodedata.normalize("NFC", name)
        living = self.jobs(name=name, active=True, newest_first=True, limit=20)
        if len(living) == 1:
            return living[0]
        if living:
            ids = [job.id for job in living]
            raise AmbiguousJobError(
                f"{len(ids)} jobs that are not over have the name {name}: say which one by its id "
                f"({', '.join(f'{job.id} {job.state}' for job in living)})",
                ids,
            )
        ended = self.jobs(name=name, newest_first=True, limit=1)
        if not ended:
            raise UnknownJobError(f"there is no job {name}: `batuta queue -a` lists them")
        return ended[0]

    def _known(self, job: a.Job | str) -> a.Job:
        return job if isinstance(job, a.Job) else self.job(job)

    def _path(self, job: a.Job | str) -> str:
        return f"/jobs/{quote(self._known(job).id, safe='')}"

    def _get(self, job: a.Job | str, what: str, **params: Any) -> Any:
        return self._transport.json("GET", self._path(job) + what, params=params)

    def _change(self, job: a.Job | str, **change: Any) -> a.Job:
        # The change is idempotent.
        return self._call(a.Job, "PATCH", self._path(job), json=change, repeatable=True)


def check_job(job: object) -> None:
    """Raises TypeError for a value that names no job."""
    if not isinstance(job, str):
        hint = f": write {str(job)!r}" if isinstance(job, int) else ""
        raise TypeError(f"a job is a Job, or its id or name as text; got {type(job).__name__} {job}{hint}")


_WORDS: Mapping[type, str] = {int: "a whole number", float: "a number", str: "a text"}


def check_value(name: str, value: object, *kinds: type) -> None:
    """Raises TypeError for a value of another type than the argument has; None is left to the caller."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
        raise TypeError(f"{name} must be {_WORDS[kinds[-1]]}, got {type(value).__name__} {value!r}")


def _event(data: Any) -> a.Event:
    if not isinstance(data, dict):
        raise ClientError("the server's answer has an event that is none")
    return a.Event(int(data.get("seq") or data.get("id") or 0), str(data.get("type") or ""), data)


def what_if_body(*, submit: Sequence[Submission] = (), **said: Any) -> Mapping[str, Any]:
    """The request body of a what-if: empty options are left out."""
    quota = [{"name": name, "text": text} for name, text in said.pop("quota", ())]
    body: dict[str, Any] = {key: value for key, value in said.items() if value}
    if "drain" in body:
        body["drain"] = list(body["drain"])
    if quota:
        body["quota"] = quota
    if submit:
        body["submit"] = [json.loads(one.body()) for one in submit]
    return body


def _event_params(types: Sequence[str], job: str | None) -> dict[str, Any]:
    return {"types": ",".join(types) or None, "job": job}
