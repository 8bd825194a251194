"""The calls of `Client` that are not about one job: nodes, queues, quota, policy, forecasts, events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from batuta.apitypes import forecasts as f
from batuta.apitypes import queues as q
from batuta.apitypes import resources as a
from batuta.apitypes.report import Report
from batuta.client.decoding import decode, decode_list
from batuta.client.errors import AnswerError
from batuta.client.submission import Submission
from batuta.client.transport import Transport, follow_events, read_past

MAX_EVENT_WINDOW = 20_000
SLOW_TIMEOUT_S = 200.0
"""For forecasts and reports: they take a while where there are thousands of jobs."""
DOCTOR_TIMEOUT_S = 120.0


class ClusterCalls:
    """The half of `Client` that is not about one job."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def cluster(self) -> a.Cluster:
        """GPUs, jobs and the server at a glance."""
        return decode(a.Cluster, self._transport.json("GET", "/cluster"))

    def timeline(self, since_s: float | None = None) -> dict[str, Any]:
        params = {} if since_s is None else {"since_s": since_s}
        answer: dict[str, Any] = self._transport.json("GET", "/timeline", params=params)
        return answer

    # -------------------------------------------------------------------------------------------------- nodes

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
        return decode(a.Node, self._transport.json("POST", path, repeatable=repeatable, json=body))

    # --------------------------------------------------------------------------------------- queues, policies

    def queues(self) -> tuple[q.Queue, ...]:
        return self.queue_tree().queues

    def queue_tree(self) -> q.Queues:
        return decode(q.Queues, self._transport.json("GET", "/queues"))

    def queue(self, name: str, limit: int = 100) -> q.QueueDetail:
        """One queue, with its first pending jobs and the first jobs that hold its quota."""
        path = f"/queues/{quote(name, safe='')}"
        return decode(q.QueueDetail, self._transport.json("GET", path, params={"limit": limit}))

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> q.Queue:
        """Makes a queue or changes it: quota, cohort, weight, held."""
        path = f"/queues/{quote(name, safe='')}"
        return decode(q.Queue, self._transport.json("PUT", path, json=dict(queue)))

    def policy(self) -> a.PolicyAnswer:
        return decode(a.PolicyAnswer, self._transport.json("GET", "/policy"))

    def set_policy(self, name: str) -> a.PolicyAnswer:
        return decode(a.PolicyAnswer, self._transport.json("PUT", "/policy", json={"name": name}))

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
        return decode(q.QuotaChanged, self._transport.json("PATCH", "/quota", json=body, repeatable=True))

    def delete_quota_object(self, kind: str, name: str, namespace: str = "") -> q.QuotaChanged:
        """Removes an object; a queue in which jobs run goes when they are done."""
        path = f"/quota/{quote(kind, safe='')}/{quote(name, safe='')}"
        params = {"namespace": namespace} if namespace else {}
        return decode(q.QuotaChanged, self._transport.json("DELETE", path, params=params))

    # ------------------------------------------------------------------------------ forecasts, report, checks

    def eta(self, job: str | None = None, *, expects_arrivals: bool = True) -> f.EtaAnswer:
        """When jobs start and finish; all that are not over, or the one with this id.

        `expects_arrivals`: jobs keep coming as they did lately; False asks for a forecast without new jobs.
        """
        params: dict[str, Any] = {} if job is None else {"job": job}
        if not expects_arrivals:
            params["arrivals"] = "false"
        found = self._transport.json("GET", "/eta", params=params, timeout=SLOW_TIMEOUT_S)
        return decode(f.EtaAnswer, found)

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
        found = self._transport.json("POST", "/whatif", json=body, repeatable=True, timeout=SLOW_TIMEOUT_S)
        return decode(f.WhatIfAnswer, found)

    def shadow(self) -> f.ShadowAnswer:
        return decode(f.ShadowAnswer, self._transport.json("GET", "/shadow"))

    def set_shadow(self, policy: str) -> f.ShadowAnswer:
        """Sets the shadow policy; an empty name ends it."""
        return decode(f.ShadowAnswer, self._transport.json("PUT", "/shadow", json={"policy": policy}))

    def report(self, from_s: float | None = None, to_s: float | None = None) -> Report:
        """GPU time used, lost, idle and waited for; without times, of the last week."""
        params = {key: value for key, value in (("from_s", from_s), ("to_s", to_s)) if value is not None}
        found = self._transport.json("GET", "/report", params=params, timeout=SLOW_TIMEOUT_S)
        return decode(Report, found)

    def examine(self, *, full: bool = False) -> a.Examination:
        """Stuck gangs, leaked quota, the journal and so on; `full` looks through a large journal, too."""
        params = {"full": "true"} if full else {}
        found = self._transport.json("GET", "/doctor", params=params, timeout=DOCTOR_TIMEOUT_S)
        return decode(a.Examination, found)

    # ------------------------------------------------------------------------------------------------- events

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

    # ----------------------------------------------------------------------------------------- keys, shutdown

    def tokens(self) -> tuple[a.Token, ...]:
        return decode_list(a.Token, self._transport.json("GET", "/tokens"), "tokens")

    def create_token(self, user: str, role: str) -> a.Token:
        """Creates a token. The server shows it only this once."""
        return decode(a.Token, self._transport.json("POST", "/tokens", json={"user": user, "role": role}))

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
    return ({"types": ",".join(types)} if types else {}) | ({"job": job} if job is not None else {})
