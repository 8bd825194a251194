"""A cluster without a control plane: objects in a file, pods that run and end, and a whole operator on them.

What the operator's engine does with thousands of UnifiedJobs can be measured here in a minute, with nothing
else in the process: objects are kept in a file, so the memory of the process is the operator's.
"""

import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from batuta.backends.kube import objects
from batuta.backends.kube.client import kinds
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.client.errors import AlreadyExists, Conflict, Invalid, NotFound
from batuta.backends.kube.client.informer import Change, ChangeType, ObjectStore, key_of
from batuta.backends.kube.client.kinds import Kind, MalformedObjects
from batuta.backends.kube.operator.informers import SLIM, Relevance, news_of
from batuta.backends.kube.operator.workqueue import (
    Changed,
    Inbox,
    Unreadable,
    WriteFn,
    WriteWorkers,
    Written,
    carry_out,
)
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.backends.kube.progress.log_reader import LogReaders
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.bootstrap.operator_leader import Leader, LedConfig, MakeHealth
from tests.support.kube.nodes import NodeShape, node
from tests.support.kube.unified import manifest

Json = dict[str, Any]
NAMESPACE = "team"
WATCHED = (kinds.POD, UNIFIED_JOB)
RUNS = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "main", "ready": True, "state": {"running": {}}}],
}
HAS_ENDED = {
    "phase": "Succeeded",
    "conditions": [],
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
}


def has_failed(exit_code: int) -> Json:
    """The status of a pod whose program exited so."""
    ended = {"name": "main", "state": {"terminated": {"exitCode": exit_code}}}
    return {"phase": "Failed", "conditions": [], "containerStatuses": [ended]}


class OfflineCluster:
    """The API server and the kubelets. Writes are done by a thread of its own."""

    def __init__(self, folder: Path, nodes: int = 8) -> None:
        self.inbox = Inbox()
        self.course: tuple[Json, ...] = (RUNS, HAS_ENDED)
        """What becomes of a pod that is bound, one status after the other."""
        self.events: list[Json] = []  # what the operator has written about objects
        self.conditions: list[Json] = []  # and as conditions of objects that are in no file
        self._todo: queue.SimpleQueue[tuple[str, WriteFn] | Json | Callable[[], None] | None] = queue.SimpleQueue()
        self._file = sqlite3.connect(folder / "objects.db", check_same_thread=False, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = OFF")
        self._file.execute("PRAGMA synchronous = OFF")
        self._file.execute("CREATE TABLE IF NOT EXISTS objects (kind, key, body, PRIMARY KEY (kind, key))")
        self._known: dict[str, ObjectStore[Any]] = {kind.plural: ObjectStore(SLIM.get(kind)) for kind in WATCHED}
        self._version = time.time_ns()  # above all that an earlier one gave
        self._shown: dict[Kind[Any], ObjectStore[Any]] = {}
        self._malformed = MalformedObjects(lambda *what: self.inbox.put(Unreadable(*what)))
        shape = NodeShape(gpus=8)
        self._nodes = [msgspec.convert(node(f"node-{k}", k, shape), objects.Node) for k in range(nodes)]
        self._thread = threading.Thread(target=self._work, name="offline-cluster", daemon=True)

    def open(self) -> None:
        """Shows all that there is, as a list does; from now on it does what it is told."""
        self.inbox.put(Changed(kinds.NODE, [Change(ChangeType.ADDED, one) for one in self._nodes]))
        for kind in (UNIFIED_JOB, kinds.POD):
            found = [self._decode(kind, body) for body in self._bodies(kind)]
            self.inbox.put(Changed(kind, self._known[kind.plural].replace(found)))
        self._thread.start()

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join(30)
        self._file.close()

    def post(self, asked: Any) -> None:
        """Writes of the operator. Logs that it wants to listen to have nothing to say."""
        if isinstance(asked, list):
            for one in asked:
                self._todo.put(one)

    def remove(self, name: str) -> None:
        """A user deletes a UnifiedJob."""
        uid = self._get(UNIFIED_JOB, f"{NAMESPACE}/{name}")["metadata"]["uid"]  # type: ignore[index]
        self._todo.put(("", partial(_delete, name, uid)))

    def submit(self, name: str, **how: Any) -> None:
        """A user creates a UnifiedJob; each of its pods ends at once when it runs."""
        self._todo.put(manifest(name, "Pods", **how))

    def annotate(self, name: str, **annotations: str) -> None:
        """A user annotates a UnifiedJob."""
        body = {"metadata": {"annotations": annotations}}
        self._todo.put(("", lambda api: api.patch(UNIFIED_JOB, name, body, NAMESPACE)))

    def shown(self, kind: Kind[Any]) -> list[Json]:
        """All objects of a kind, as `kubectl get` would show them."""
        return self._bodies(kind)

    def show(self, kind: Kind[Any], listed: Iterable[bytes]) -> None:
        """The API server shows objects that other clients wrote, whatever they say. They are in no file."""
        if self._thread.is_alive():
            self._todo.put(partial(self._show, kind, list(listed)))
        else:
            self._show(kind, list(listed))  # it was there before the operator was started

    def hide(self) -> None:
        """These objects are gone, all of them."""
        self._todo.put(self._hide)

    def wait_until_told(self) -> None:
        """Until the operator has taken in all that was shown."""
        told, taken = threading.Event(), threading.Event()
        self._todo.put(told.set)
        assert told.wait(60)
        self.inbox.put(Changed(kinds.NODE, _Noted(taken)))
        assert taken.wait(60)

    # ------------------------------------------------------------------------------------ its own thread

    def _show(self, kind: Kind[Any], listed: Sequence[bytes]) -> None:
        known, changes = self._shown.setdefault(kind, ObjectStore(SLIM.get(kind))), list[Change[Any]]()
        for raw in listed:
            found = self._malformed.decode(kind, msgspec.Raw(raw))
            if found is not None:
                self._version += 1
                found.metadata.resource_version = str(self._version)
                known.put(found, changes)
        self._tell(kind, changes)

    def _hide(self) -> None:
        for kind, known in self._shown.items():
            self._tell(kind, known.replace(()))

    def _work(self) -> None:
        while (one := self._todo.get()) is not None:
            if callable(one):
                one()
            elif isinstance(one, dict):
                _done(self.create(UNIFIED_JOB, one, NAMESPACE))
            else:
                key, do = one
                self.inbox.put(Written(key, _done(carry_out(do, cast(Api, self)))))

    async def update(self, kind: Kind[Any], name: str, body: Json, namespace: str = "") -> Any:
        return await self.create(kind, body, namespace)

    async def raw(self, method: str, path: str, body: bytes = b"") -> bytes:
        raise NotFound(path)

    async def create(self, kind: Kind[Any], body: Json, namespace: str = "") -> Any:
        name = body["metadata"].get("name") or f"{body['metadata'].get('generateName', '')}{uuid.uuid4().hex}"
        if kind is kinds.EVENT:
            self.events.append(body)
        if kind is kinds.CONFIG_MAP:
            self._version += 1
            return kinds.ConfigMap(metadata=objects.Meta(resource_version=str(self._version)))
        if kind not in WATCHED:
            return None  # a Service, which nobody reads here
        if self._get(kind, f"{namespace}/{name}") is not None:
            raise AlreadyExists(f"{kind} {name} is there")
        own = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4()), "generation": 1}
        meta = body["metadata"] | own | {"creationTimestamp": _now()}
        made = body | {"metadata": meta}
        if kind is kinds.POD:
            made["status"] = {"phase": "Pending"}
        self._put(kind, made)
        return None

    async def apply(self, kind: Kind[Any], body: Json, **how: Any) -> None:
        if kind in WATCHED:
            await self.patch(kind, body["metadata"]["name"], body, body["metadata"]["namespace"])

    async def patch(self, kind: Kind[Any], name: str, body: Json, namespace: str = "", **how: Any) -> None:
        if kind not in WATCHED:
            return
        before = self._get(kind, f"{namespace}/{name}")
        if before is None:
            self.conditions += [one | {"object": name} for one in body.get("status", {}).get("conditions", ())]
            raise NotFound(f"no {kind} {name}")
        self._put(kind, _merged(before, body))

    async def patch_status(self, kind: Kind[Any], name: str, status: Json, namespace: str = "") -> None:
        await self.patch(kind, name, {"status": status}, namespace)

    async def delete(self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", **how: Any) -> None:
        found = self._get(kind, f"{namespace}/{name}")
        if found is None or (uid and found["metadata"]["uid"] != uid):
            raise NotFound(f"no {kind} {name}")
        self._drop(kind, found)
        for pod in self._bodies(kinds.POD) if kind is UNIFIED_JOB else ():
            if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences", ())):
                self._drop(kinds.POD, pod)

    async def bind(
        self, namespace: str, pod: str, uid: str, node: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        found = self._get(kinds.POD, f"{namespace}/{pod}")
        if found is None or found["metadata"]["uid"] != uid:
            raise NotFound("no such pod")
        if found["spec"].get("nodeName", node) != node:
            raise Conflict("it has a node")
        meta = {"annotations": dict(annotations or {})}
        for status in ({}, *self.course):
            found = _merged(found, {"metadata": meta, "spec": {"nodeName": node}, "status": status})
            self._put(kinds.POD, found)

    # ---------------------------------------------------------------------------------------- the file

    def _get(self, kind: Kind[Any], key: str) -> Json | None:
        found = self._file.execute("SELECT body FROM objects WHERE kind = ? AND key = ?", (kind.plural, key)).fetchone()
        return None if found is None else msgspec.json.decode(found[0])

    def _bodies(self, kind: Kind[Any]) -> list[Json]:
        rows = self._file.execute("SELECT body FROM objects WHERE kind = ? ORDER BY key", (kind.plural,))
        return [msgspec.json.decode(body) for (body,) in rows.fetchall()]

    def _put(self, kind: Kind[Any], body: Json) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        found, changes = self._decode(kind, body), list[Change[Any]]()
        self._file.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)",
            (kind.plural, key_of(found.metadata), msgspec.json.encode(body)),
        )
        self._known[kind.plural].put(found, changes)
        self._tell(kind, changes)

    def _drop(self, kind: Kind[Any], body: Json) -> None:
        found, changes = self._decode(kind, body), list[Change[Any]]()
        self._file.execute("DELETE FROM objects WHERE kind = ? AND key = ?", (kind.plural, key_of(found.metadata)))
        self._known[kind.plural].drop(found, changes)
        self._tell(kind, changes)

    def _tell(self, kind: Kind[Any], changes: list[Change[Any]]) -> None:
        """As the operator's informers do: what says nothing new is not told."""
        news = [change for change in changes if news_of(change) is not Relevance.NONE]
        if news:
            self.inbox.put(Changed(kind, news))

    @staticmethod
    def _decode(kind: Kind[Any], body: Json) -> Any:
        try:
            return kind.decode(msgspec.json.encode(body))
        except msgspec.MsgspecError as error:
            raise Invalid(str(error)) from error


@contextmanager
def leading(
    cluster: OfflineCluster, state: Path, config: OperatorConfig | None = None, health: MakeHealth | None = None
) -> Iterator[Leader]:
    """What decides in `batuta operator`, on this cluster, with a journal below `state`."""
    cluster.open()
    config = config or OperatorConfig()
    write_workers, listeners = cast(WriteWorkers, cluster), cast(LogReaders, cluster)
    leader = Leader(LedConfig(config, config), state, cluster.inbox, write_workers, listeners, health)
    leader.service.start()
    try:
        yield leader
    finally:
        leader.end()
        cluster.close()


def run_jobs(
    cluster: OfflineCluster,
    leader: Leader,
    names: Sequence[str],
    at_once: int = 50,
    within_s: float = 600.0,
    **how: Any,
) -> None:
    """Submits jobs, so many at a time, and waits until all have come and gone in the World."""
    ended, give_up_s = leader.cycles.schedule.ended, time.monotonic() + within_s
    before = ended["SUCCEEDED"]
    for number, name in enumerate(names):
        while number - (ended["SUCCEEDED"] - before) >= at_once:
            _wait(leader, give_up_s)
        cluster.submit(name, **how)
    while ended["SUCCEEDED"] - before < len(names):
        _wait(leader, give_up_s)


def _wait(leader: Leader, give_up_s: float) -> None:
    assert leader.service.running, leader.service.trouble
    assert time.monotonic() < give_up_s, "jobs do not end"
    time.sleep(0.002)


class _Noted(tuple[Change[Any], ...]):
    """No changes; it notes that they were looked at."""

    def __new__(cls, seen: threading.Event) -> "_Noted":
        made = super().__new__(cls)
        made.seen = seen
        return made

    seen: threading.Event

    def __iter__(self) -> Iterator[Change[Any]]:
        self.seen.set()
        return iter(())


def _merged(before: Json, patch: Json) -> Json:
    """A JSON merge patch."""
    found = dict(before)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            inner = found.get(key)
            found[key] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            found[key] = value
    return found


async def _delete(name: str, uid: str, api: Api) -> None:
    await api.delete(UNIFIED_JOB, name, NAMESPACE, uid=uid)


def _done(doing: Any) -> Any:
    """Does it, and returns what it returns."""
    try:
        doing.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("nothing waits for anything here")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
