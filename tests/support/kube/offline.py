"""Pods and nodes in memory, and the operator's engine on them, step by step: it can be lost after any write.

What happens in a minute on a control plane takes a second here, and the same thing each time.
"""

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import ApiError, Conflict, NotFound
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.operator.backend import OutlookObserver
from batuta.backends.kube.operator.workqueue import Changed, Inbox, WriteFn, WriteWorkers, Written
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.bootstrap.operator_leader import kube_backend
from batuta.core.world import World
from batuta.engine.journal import JournaledWorld, NoJournal
from batuta.engine.loop import Engine, Live
from batuta.engine.profile import profile_for
from batuta.engine.requests import Requests

Json = dict[str, Any]
STEP_S = 0.5


class Pods:
    """What an API server has of pods and nodes, and its answers to an operator."""

    def __init__(self, *nodes: Json) -> None:
        self.nodes = [msgspec.convert(node, objects.Node) for node in nodes]
        self.by_name: dict[str, objects.Pod] = {}
        self.news: list[Change[objects.Pod]] = []
        self._version = 0

    def add(self, manifest: Json, namespace: str = "default") -> None:
        name = manifest["metadata"]["name"]
        own = {"namespace": namespace, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
        status = {"phase": "Pending"}
        made = manifest | {"metadata": manifest["metadata"] | own, "status": status}
        # As the API server does: what has a limit and no request asks for the limit.
        for container in made["spec"]["containers"]:
            resources = container["resources"]
            resources["requests"] = resources.get("limits", {}) | resources.get("requests", {})
        self._keep(ChangeType.ADDED, msgspec.convert(made, objects.Pod))

    def set_phase(self, name: str, phase: str) -> None:
        before = self.by_name[name]
        status = msgspec.structs.replace(before.status, phase=phase)
        self._keep(ChangeType.MODIFIED, msgspec.structs.replace(before, status=status))

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Its tenant annotates it."""
        before = self.by_name[name]
        meta = msgspec.structs.replace(before.metadata, annotations={**before.metadata.annotations, **annotations})
        self._keep(ChangeType.MODIFIED, msgspec.structs.replace(before, metadata=meta))

    def begin_deletion(self, name: str, ends_s: float) -> None:
        """Somebody has deleted it; its containers still run, and may until this time."""
        before, ends = self.by_name[name], datetime.fromtimestamp(ends_s, UTC).isoformat()
        meta = msgspec.structs.replace(before.metadata, deletion_timestamp=ends)
        self._keep(ChangeType.MODIFIED, msgspec.structs.replace(before, metadata=meta))

    def vanish(self, name: str) -> None:
        """Its containers have ended, and the kubelet has said so."""
        gone = self.by_name.pop(name)
        self.news.append(Change(ChangeType.DELETED, gone, gone))

    def bound(self) -> dict[str, objects.Pod]:
        return {name: pod for name, pod in self.by_name.items() if pod.spec.node_name}

    async def bind(self, namespace: str, pod: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        before = self.by_name.get(pod)
        if before is None or before.metadata.uid != uid:
            raise NotFound("no such pod")
        if before.spec.node_name not in ("", node):
            raise Conflict("it has a node")
        meta = msgspec.structs.replace(before.metadata, annotations={**before.metadata.annotations, **annotations})
        spec = msgspec.structs.replace(before.spec, node_name=node)
        self._keep(ChangeType.MODIFIED, msgspec.structs.replace(before, metadata=meta, spec=spec))

    async def delete(self, kind: object, name: str, namespace: str, **how: object) -> None:
        if name not in self.by_name:
            raise NotFound("no such pod")
        self.vanish(name)

    async def patch(self, *what: object, **how: object) -> None:
        """Words about why a pod waits, which nobody reads here."""

    async def create(self, *what: object, **how: object) -> None:
        """An event, likewise."""

    def _keep(self, did: ChangeType, pod: objects.Pod) -> None:
        self._version += 1
        meta = msgspec.structs.replace(pod.metadata, resource_version=str(self._version))
        kept = msgspec.structs.replace(pod, metadata=meta)
        old = self.by_name.get(meta.name)
        self.by_name[meta.name] = kept
        self.news.append(Change(did, kept, old))


class Operator:
    """An operator that has just been started, and has no journal of what was before."""

    def __init__(self, pods: Pods, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self.posted: list[tuple[str, WriteFn]] = []
        """Writes that nobody has carried out yet."""
        self._pods = pods
        self._inbox = Inbox(gather_s=0.0)
        pods.news.clear()
        self._inbox.put(Changed(kinds.NODE, [Change(ChangeType.ADDED, node) for node in pods.nodes]))
        listed = [pods.by_name[name] for name in sorted(pods.by_name)]
        self._inbox.put(Changed(kinds.POD, [Change(ChangeType.ADDED, pod) for pod in listed]))
        write_workers = cast(WriteWorkers, self)
        world, config = World(), OperatorConfig()
        backend, *_ = kube_backend(world, self._inbox, write_workers, config, lambda: self.now_s)
        live = Live(Requests(backend.wake), profile_for, threading.RLock())
        rules, watch = profile_for(config.policy), OutlookObserver(backend.reconciler, lambda: self.now_s)
        self._engine = Engine(JournaledWorld(world, NoJournal()), backend, rules, watch, live=live)

    def see_node(self, node: objects.Node) -> None:
        """A node has come."""
        self._inbox.put(Changed(kinds.NODE, [Change(ChangeType.ADDED, node)]))

    def post(self, asked: list[tuple[str, WriteFn]]) -> None:
        self.posted += asked

    def carry_out(self, number: int) -> None:
        """Does one of the writes; the answer is on its way to the operator."""
        key, do = self.posted.pop(number)
        self._inbox.put(Written(key, done(do, self._pods)))

    def carry_out_all(self) -> None:
        while self.posted:
            self.carry_out(0)

    def step(self) -> None:
        """Lets it hear what has happened, decide, and say what it wants to be written."""
        self.now_s += STEP_S
        news, self._pods.news = self._pods.news, []
        if news:
            self._inbox.put(Changed(kinds.POD, news))
        self._inbox.put(None)
        self._engine.step()


def done(do: WriteFn, pods: Pods) -> ApiError | None:
    """Carries a write out; what went wrong."""
    try:
        for _ in cast(Iterator[None], do(cast(Api, pods)).__await__()):
            raise AssertionError("nothing waits for anything here")
    except ApiError as error:
        return error
    return None
