"""Kueue in tests: its objects, Workloads from the API server's side, and the real one beside a cluster."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batuta.backends.kube.client.access import find_access
from batuta.backends.kube.client.api import Api
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.quota_controller import QuotaController, QuotaEventRecorder
from batuta.backends.kube.operator.informers import InformerSet
from batuta.backends.kube.operator.workqueue import Changed, Inbox, WriteQueue, WriteWorkers, Written
from batuta.core.event import Event, QuotaSet
from batuta.core.quota import MILLI, Quota
from tests.support.kube.api import ApiError, Json
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.processes import RunningProgram

PROGRAM = "kueue"
GPU = "nvidia.com/gpu"
_API = f"{kinds.GROUP}/{kinds.VERSION}"
ROOT = f"/apis/{_API}"
FILES = "batuta-queues"
"""The ConfigMap with queues."""


def knows_kueue(cluster: ControlPlane) -> bool:
    """Whether somebody has installed its definitions."""
    try:
        return bool(cluster.api.get(f"/apis/{kinds.GROUP}"))
    except ApiError:
        return False


def start_kueue(cluster: ControlPlane) -> RunningProgram:
    """Starts the real one on a cluster that has its definitions. It ends with the control plane."""
    return cluster.run(PROGRAM, f"--kubeconfig={cluster.kubeconfig_path}")


SHORT_FORM = "queues: [{name: team-a, quota: {'*': 4}}]"
"""A file with a queue of four GPUs."""


def write_files(cluster: ControlPlane, namespace: str, **files: str) -> None:
    """Replaces the ConfigMap with queues."""
    data = {f"{name}.yaml": text for name, text in files.items()}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": FILES, "namespace": namespace}}
    cluster.apply(body | {"data": data}, "--force-conflicts")


def nominal(quota: Quota, queue: str) -> int | None:
    """GPUs of a queue; None when it is not there."""
    found = quota.queue_of.get(queue)
    return None if found is None else found.groups[0].flavors[0].limits[0].nominal // MILLI


def queue_names(quota: Quota) -> set[str]:
    return {queue.name for queue in quota.cluster_queues}


# ------------------------------------------------------------------------------------------------ objects


def flavor(name: str = "gpus", **spec: Any) -> Json:
    return _object("ResourceFlavor", name, spec)


def cluster_queue(name: str, gpus: int, cpus: int = 0, of: str = "gpus", **spec: Any) -> Json:
    """So many GPUs of one flavor; takes the jobs of all namespaces unless told otherwise.

    The real Kueue wants quota in everything that pods ask for: `cpus` as well.
    """
    amounts = {GPU: gpus} | ({"cpu": cpus} if cpus else {})
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in amounts.items()]
    groups = [{"coveredResources": list(amounts), "flavors": [{"name": of, "resources": resources}]}]
    return _object("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups} | spec)


def local_queue(name: str, namespace: str, queue: str) -> Json:
    found = _object("LocalQueue", name, {"clusterQueue": queue})
    found["metadata"]["namespace"] = namespace
    return found


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": _API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def set_quota(cluster: ControlPlane, queue: str, gpus: int, cpus: int = 0) -> None:
    """Gives a ClusterQueue other quota."""
    spec = cluster_queue(queue, gpus, cpus)["spec"]
    path = f"{ROOT}/clusterqueues/{queue}"
    cluster.api.patch(path, {"spec": {"resourceGroups": spec["resourceGroups"]}})


def wait_until_active(cluster: ControlPlane, namespace: str, queue: str) -> None:
    """Returns when somebody who decides says that a LocalQueue takes jobs."""

    def look() -> bool:
        status = cluster.api.get(f"{ROOT}/namespaces/{namespace}/localqueues/{queue}").get("status", {})
        listed = status.get("conditions", ())
        return any(one["type"] == "Active" and one["status"] == "True" for one in listed)

    wait_until(look, f"queue {queue} to be known", 30.0)


def clear(cluster: ControlPlane) -> None:
    """Takes away all queues and flavors, also those that the real Kueue holds on to."""
    for plural in ("localqueues", "clusterqueues", "cohorts", "resourceflavors"):
        for one in cluster.api.items(f"{ROOT}/{plural}"):
            meta = one["metadata"]
            place = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
            path = f"{ROOT}/{place}{plural}/{meta['name']}"
            try:
                cluster.api.patch(path, {"metadata": {"finalizers": None}})
                cluster.api.delete(path)
            except ApiError as error:
                if error.status != 404:
                    raise


# ---------------------------------------------------------------------------------------------- Workloads


class Workload:
    """The Workload of one object, by the name of its owner."""

    def __init__(self, cluster: ControlPlane, namespace: str, owner: str) -> None:
        self.cluster, self.namespace, self.owner = cluster, namespace, owner
        self.path = f"{ROOT}/namespaces/{namespace}/workloads"

    def get(self) -> Json:
        """The object; empty while there is none."""
        for one in self.cluster.api.items(self.path):
            if any(ref["name"] == self.owner for ref in one["metadata"].get("ownerReferences", ())):
                return one
        return {}

    def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition; empty when it is not there."""
        listed = self.get().get("status", {}).get("conditions", ())
        return next(((one["status"], one["reason"]) for one in listed if one["type"] == kind), ("", ""))

    def message(self, kind: str) -> str:
        listed = self.get().get("status", {}).get("conditions", ())
        return next((one["message"] for one in listed if one["type"] == kind), "")

    @property
    def assigned(self) -> Json:
        """What was admitted of its first pod set; empty while nothing was."""
        admission = self.get().get("status", {}).get("admission") or {}
        return next(iter(admission.get("podSetAssignments", ())), {})

    def is_said(self, kind: str, status: str, reason: str = "", within_s: float = 60.0) -> None:
        """Waits for a condition."""

        def look() -> bool:
            found = self.condition(kind)
            return found[0] == status and reason in ("", found[1])

        try:
            wait_until(look, f"{kind} {status} of {self.owner}", within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.get()}") from None

    def patch(self, body: Json) -> None:
        self.cluster.api.patch(f"{self.path}/{self.get()['metadata']['name']}", body)


def warnings(cluster: ControlPlane, name: str, namespace: str = "default") -> list[str]:
    """What `kubectl describe` warns of at an object."""
    events = cluster.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    return [one["note"] for one in events if one["regarding"]["name"] == name and one["type"] == "Warning"]


# --------------------------------------------------------------------------------- what an operator hears


class Heard:
    """What an operator's World would be told about quota."""

    def __init__(self, desk: QuotaController, said: list[Event]) -> None:
        self._desk = desk
        self._said = said

    @property
    def quota(self) -> Quota:
        return self._desk.known

    @property
    def times(self) -> int:
        """How often the World was told something new."""
        return sum(isinstance(event, QuotaSet) for event in self._said)

    def until(self, look: Callable[[Quota], Any], what: str, within_s: float = 30.0) -> Quota:
        """Waits until the quota is as it should be."""
        try:
            wait_until(lambda: look(self.quota), what, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {self.quota}") from None
        return self.quota


@contextmanager
def hearing(kubeconfig: Path, namespace: str, *, reads_objects: bool = True) -> Iterator[Heard]:
    """Informers, writes and desk of an operator whose own namespace this is, without anything else of it."""
    inbox, ended, up = Inbox(), threading.Event(), Future[Callable[[], object]]()
    said: list[Event] = []

    async def talk() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with Api(await find_access(kubeconfig)) as api:
            write_workers = WriteWorkers(api, inbox)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(write_workers.run())
                    further = kinds.SETTINGS if reads_objects else ()
                    await InformerSet(api, inbox, [], tasks, further, (namespace, FILES)).start()
                    writes.append(WriteQueue(write_workers.post))
                    up.set_result(lambda: loop.call_soon_threadsafe(stop.set))
                    await stop.wait()
                    raise _Ended
            except* _Ended:
                pass

    writes: list[WriteQueue] = []
    talking = threading.Thread(target=lambda: _run(talk, up), name="talking")
    talking.start()
    stop = up.result(60.0)
    desk = QuotaController(said.append, QuotaEventRecorder(writes[0].ask), known=Quota(), base=Quota())
    working = threading.Thread(target=_work, args=(desk, writes[0], inbox, ended), name="working")
    working.start()
    try:
        yield Heard(desk, said)
    finally:
        ended.set()
        stop()
        talking.join(30.0)
        working.join(30.0)


class _Ended(Exception):
    """Raised among tasks to end them all."""


def _run(talk: Callable[[], Any], up: "Future[Any]") -> None:
    try:
        asyncio.run(talk())
    except BaseException as error:
        if not up.done():
            up.set_exception(error)
        raise


def _work(desk: QuotaController, writes: WriteQueue, inbox: Inbox, ended: threading.Event) -> None:
    while not ended.is_set():
        now_s = time.time()
        for message in inbox.take(0.05):
            if isinstance(message, Changed):
                desk.take(message, now_s)
            elif isinstance(message, Written):
                writes.heard(message, now_s)
        desk.drive(time.time())
        writes.send()
