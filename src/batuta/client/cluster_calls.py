"""What can be asked of the cluster as a whole: nodes, queues, the policy, events, tokens, the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from batuta.client import answers as a
from batuta.client import queue_answers as q
from batuta.client.decoding import decode, decode_list
from batuta.client.doctor_calls import DoctorCalls
from batuta.client.foresight_calls import ForesightCalls
from batuta.client.quota_calls import QuotaCalls
from batuta.client.report_calls import ReportCalls
from batuta.client.transport import Transport
from batuta.client.watching import follow_events, read_past

FARTHEST = 20_000
"""How many events are looked through for recent ones."""


class ClusterCalls(QuotaCalls, ForesightCalls, ReportCalls, DoctorCalls):
    """The half of `Client` that is not about one job."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def cluster(self) -> a.Cluster:
        """GPUs, jobs and the server at a glance."""
        return decode(a.Cluster, self._transport.json("GET", "/cluster"))

    def timeline(self, since_s: float | None = None) -> dict[str, Any]:
        """Who had how many GPUs when."""
        params = {} if since_s is None else {"since_s": since_s}
        answer: dict[str, Any] = self._transport.json("GET", "/timeline", params=params)
        return answer

    # -------------------------------------------------------------------------------------------------- nodes

    def nodes(self) -> tuple[a.Node, ...]:
        return decode_list(a.Node, self._transport.json("GET", "/nodes"), "nodes")

    def cordon(self, node: str) -> a.Node:
        """Nothing new starts there; what runs stays."""
        return self._tell_node(node, "cordon")

    def uncordon(self, node: str) -> a.Node:
        """Ends a cordon; where there is none, a node that is out for its health is well by your word."""
        # Said twice it means more than once: the first ends the cordon, the second overrules health.
        return self._tell_node(node, "uncordon", repeatable=False)

    def drain(self, node: str) -> a.Node:
        """Cordons it, and moves away what runs there."""
        return self._tell_node(node, "drain")

    def mended(self, node: str, gpu: int | None = None) -> a.Node:
        """What was to be done about a node's or GPU's illness is done: it proves itself in a burn-in."""
        return self._tell_node(node, "mended", {} if gpu is None else {"gpu": gpu}, repeatable=False)

    def _tell_node(
        self, node: str, what: str, body: dict[str, int] | None = None, *, repeatable: bool = True
    ) -> a.Node:
        path = f"/nodes/{quote(node, safe='')}/{what}"
        return decode(a.Node, self._transport.json("POST", path, repeatable=repeatable, json=body))

    # --------------------------------------------------------------------------------------- queues, policies

    def queues(self) -> tuple[q.Queue, ...]:
        return self.queue_tree().queues

    def queue_tree(self) -> q.QueueTree:
        """All queues, and the cohorts that they are in."""
        return decode(q.QueueTree, self._transport.json("GET", "/queues"))

    def queue(self, name: str, limit: int = 100) -> q.QueueDetail:
        """One queue, with the first of those that wait in it and of those that have its quota."""
        path = f"/queues/{quote(name, safe='')}"
        return decode(q.QueueDetail, self._transport.json("GET", path, params={"limit": limit}))

    def set_queue(self, name: str, queue: Mapping[str, Any]) -> q.Queue:
        """Makes a queue or changes it: quota, cohort, weight, held."""
        path = f"/queues/{quote(name, safe='')}"
        return decode(q.Queue, self._transport.json("PUT", path, json=dict(queue)))

    def policy(self) -> a.Policy:
        return decode(a.Policy, self._transport.json("GET", "/policy"))

    def set_policy(self, name: str) -> a.Policy:
        """From the next cycle on this policy decides."""
        return decode(a.Policy, self._transport.json("PUT", "/policy", json={"name": name}))

    # ------------------------------------------------------------------------------------------------- events

    def last_event(self) -> int:
        """The number of the newest event."""
        return self.cluster().seq

    def events(
        self, after: int | None = None, types: Sequence[str] = (), job: str | None = None
    ) -> Iterator[a.Event]:
        """Events as they happen, for ever; those after a number of the journal come first.

        An event `reset` says that some were missed. It outlasts restarts of the server.
        """
        return follow_events(self._transport, after, _wanted(types, job))

    def recent_events(
        self, count: int, types: Sequence[str] = (), job: str | None = None, skip: Sequence[str] = ()
    ) -> tuple[a.Event, ...]:
        """The last events of the journal, the oldest first; those of types in `skip` do not count."""
        last, window = self.cluster().seq, max(64, 4 * count)
        while True:
            after = max(0, last - window)
            past = read_past(self._transport, after, last, _wanted(types, job))
            found = [event for event in past if event.type not in skip]
            if len(found) >= count or after == 0 or window >= FARTHEST:
                return tuple(found[-count:]) if count else ()
            window *= 8

    # ----------------------------------------------------------------------------------------- keys, shutdown

    def tokens(self) -> tuple[a.Token, ...]:
        return decode_list(a.Token, self._transport.json("GET", "/tokens"), "tokens")

    def create_token(self, user: str, role: str) -> a.Token:
        """The only time that the token itself is told."""
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


def _wanted(types: Sequence[str], job: str | None) -> dict[str, Any]:
    return ({"types": ",".join(types)} if types else {}) | ({"job": job} if job is not None else {})
