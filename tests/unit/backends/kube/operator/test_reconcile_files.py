"""One reconcile of a UnifiedJob lives in six files, which docs/architecture.md names."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import batuta
from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.client.kinds import POD, Kind
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import PodGroup, ReconcileContext
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.workqueue import WriteFn, WriteQueue, Written
from batuta.core import event as ev
from batuta.core.cluster import Placement, Span
from tests.support.unified_jobs import unified_job

SRC = Path(batuta.__file__).parent
PAGE = SRC.parents[1] / "docs" / "architecture.md"
PACKAGES = ("backends/kube/operator", "backends/kube/unified_job", "engine/jobs")
SHARED = {
    "backends/kube/operator/cache.py",  # the objects that informers have shown
    "backends/kube/operator/context.py",  # interfaces to the surroundings, and their defaults
    "backends/kube/operator/workqueue.py",  # writes to the API server
    "backends/kube/unified_job/model.py",  # the declaration of the object
    "engine/jobs/backoff.py",  # values
    "engine/jobs/outcome.py",
    "engine/jobs/progress.py",  # reads reports for every backend, behind the trainer session
}
MOST_FILES = 6
PLACES = Placement((Span("n0", (0,)), Span("n1", (0,))))


class Operator:
    """Reconciles one job against an API server that accepts every write, and notes the files that it enters."""

    def __init__(self) -> None:
        self.told: list[ev.Event] = []
        self.asked: list[PodGroup] = []
        self.files: set[str] = set()
        self._pods: list[dict[str, Any]] = []
        self._posted: list[tuple[str, WriteFn]] = []
        self._writes = WriteQueue(self._posted.extend)
        observed = ObjectCache()
        context = ReconcileContext(Cluster(), self._writes, observed.owners(), self.told.append, self.asked.append)
        pod = {"containers": [{"name": "main", "image": "example.com/train:1"}]}
        self.run = UnifiedJobReconciler(context, observed, unified_job(replicas={"maxReplicas": 2}, pod=pod))

    def drive(self, now_s: float) -> None:
        sys.setprofile(self._enter)
        try:
            self.run.drive(now_s)
        finally:
            sys.setprofile(None)
        self._writes.send()
        for key, do in self._posted:
            asyncio.run(_done(do, self))
            self._writes.heard(Written(key, None), now_s)
        self._posted.clear()

    def show(self, phase: str, *, is_bound: bool) -> None:
        """Its pods as the watch shows them."""
        for index, manifest in enumerate(self._pods):
            pod = msgspec.json.decode(msgspec.json.encode(manifest), type=objects.Pod)
            pod.metadata.uid, pod.status.phase = f"uid-{index}", phase
            if is_bound:
                pod.spec.node_name = f"n{index}"
                pod.metadata.annotations |= {names.GPUS: "0"}
            self.run.see(pod)

    async def create(self, kind: Kind[Any], body: dict[str, Any], namespace: str) -> None:
        if kind is POD:
            self._pods.append(body)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        """Every other verb of the API server."""
        if verb not in ("apply", "delete", "patch", "patch_status"):
            raise AttributeError(verb)
        return _accept

    def _enter(self, frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SRC):
            self.files.add(path.relative_to(SRC).as_posix())


async def _accept(*args: object, **options: object) -> None:
    """Any write works."""


async def _done(do: WriteFn, api: Any) -> None:
    await do(api)


def reconciled_files() -> set[str]:
    """The files that a job's reconciler enters from its submission to its end."""
    operator = Operator()
    operator.drive(1.0)
    operator.run.want(PLACES)
    operator.drive(2.0)
    operator.show("Pending", is_bound=False)
    operator.drive(3.0)
    assert len(operator.asked[-1].placements) == 2
    operator.show("Running", is_bound=True)
    operator.drive(4.0)
    operator.show("Succeeded", is_bound=True)
    operator.drive(5.0)
    assert [type(one) for one in operator.told] == [ev.JobSubmitted, ev.JobStarted, ev.JobEnded]
    return {file for file in operator.files if file.startswith(PACKAGES)} - SHARED


def test_one_reconcile_of_a_unified_job_lives_in_six_files() -> None:
    files = reconciled_files()
    assert len(files) <= MOST_FILES, sorted(files)


def test_the_walk_of_a_unified_job_names_every_file_of_its_reconcile() -> None:
    walk = PAGE.read_text(encoding="utf-8").partition("## The way of a UnifiedJob")[2].partition("\n## ")[0]
    missing = {file for file in reconciled_files() if f"`{file}`" not in walk}
    assert not missing
