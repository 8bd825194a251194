"""Batuta decides, and whoever looks at Workloads and queues sees it."""

import threading
from typing import Any, cast

import msgspec
import pytest

from batuta.backends.kube import objects
from batuta.backends.kube.client import kinds as core_kinds
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.kinds import KueueObject, find, is_true
from batuta.backends.kube.kueue.setup import watched_kinds
from batuta.backends.kube.operator.backend import OutlookObserver
from batuta.backends.kube.operator.workqueue import Changed, Inbox, WriteWorkers, Written
from batuta.backends.kube.operator_config import OperatorConfig
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.bootstrap.operator_leader import kube_backend
from batuta.core.world import World
from batuta.engine.fence import NoFence
from batuta.engine.journal import JournaledWorld, NoJournal
from batuta.engine.loop import Engine, Live
from batuta.engine.observers import Observers
from batuta.engine.profile import profile_for
from batuta.engine.requests import Requests
from tests.support.kube.nodes import NodeShape, node
from tests.support.unified_jobs import unified_job
from tests.unit.backends.kube.kueue.settings import GPU, came, queue_spec, setting

SPACE = "team-a"
CONFIG = OperatorConfig.model_validate({"kueue": {"showWorkloads": True}})


class Cluster:
    """An operator, and an API server that has Workloads and queues and nothing else."""

    def __init__(self, gpus: int) -> None:
        self.now_s = 1000.0
        self.shown: dict[tuple[str, str], KueueObject] = {}
        """By plural and name."""
        self.writes: list[str] = []
        self._inbox = Inbox(gather_s=0.0)
        machine = msgspec.convert(node("node-0", 0, NodeShape(gpus=8)), objects.Node)
        self._inbox.put(Changed(core_kinds.NODE, [came(machine)]))
        for kind, found in (
            (kinds.RESOURCE_FLAVOR, setting("gpus", {})),
            (kinds.CLUSTER_QUEUE, setting("team", queue_spec(gpus))),
            (kinds.LOCAL_QUEUE, setting("train", {"clusterQueue": "team"}, SPACE)),
        ):
            self._show(kind, found)
        for kind in watched_kinds(CONFIG):
            self._inbox.put(Changed(kind, (), kinds.VERSION))
        world = World()
        backend, _, shown = kube_backend(world, self._inbox, cast(WriteWorkers, self), CONFIG, lambda: self.now_s)
        live = Live(Requests(backend.wake), profile_for, threading.RLock())
        assert shown is not None
        outlook = OutlookObserver(backend.reconciler, lambda: self.now_s)
        observers = Observers(NoFence(), [("jobs", outlook), ("queues", shown)])
        state = JournaledWorld(world, NoJournal())
        self._engine = Engine(state, backend, profile_for(CONFIG.policy), observers, live=live)

    def _show(self, kind: Any, found: KueueObject) -> None:
        key = kind.plural, found.metadata.name
        self._inbox.put(Changed(kind, [came(found, self.shown.get(key))]))
        self.shown[key] = found

    def post(self, asked: list[tuple[str, Any]]) -> None:
        """Does what is asked for, as far as it is about objects of Kueue."""
        for key, do in asked:
            if key.startswith("kueue//workload/"):
                self.writes.append(key)
                body = do.args[1]
                meta = body["metadata"]
                owners = {"ownerReferences": meta["ownerReferences"], "resourceVersion": "1"}
                self._show(kinds.WORKLOAD, setting(meta["name"], body["spec"], SPACE, metadata=owners))
            elif key.startswith("kueue//status/"):
                self._patch(key, kinds.WORKLOAD, do.args[1], do.args[3]["status"])
            elif key.startswith("kueue//queue/"):
                kind = kinds.CLUSTER_QUEUE if "clusterqueues" in key else kinds.LOCAL_QUEUE
                self._patch(key, kind, do.args[1], do.args[3]["status"])
            self._inbox.put(Written(key, None))

    def _patch(self, key: str, kind: Any, name: str, status: dict[str, Any]) -> None:
        self.writes.append(key)
        there = self.shown[kind.plural, name]
        merged = {word: value for word, value in {**there.status, **status}.items() if value is not None}
        self._show(kind, msgspec.structs.replace(there, status=merged))

    def submit(self, name: str, replicas: int) -> None:
        sizes = {"minReplicas": replicas, "maxReplicas": replicas}
        uj = unified_job(name=name, queueName="train", replicas=sizes)
        uj.metadata.uid = f"uid-of-{name}"
        self._inbox.put(Changed(UNIFIED_JOB, [came(uj)]))

    def step(self, times: int = 6) -> None:
        for _ in range(times):
            self.now_s += 1.0
            self._inbox.put(None)
            self._engine.step()

    def workload(self, job: str) -> KueueObject:
        [found] = [
            one
            for (plural, name), one in self.shown.items()
            if plural == "workloads" and name.startswith(f"unifiedjob-{job}-")
        ]
        return found

    def status(self, kind: Any, name: str) -> dict[str, Any]:
        return self.shown[kind.plural, name].status


@pytest.fixture
def cluster() -> Cluster:
    """A queue with quota for four GPUs, a job that has three of them, and one that wants two."""
    made = Cluster(gpus=4)
    made.step()
    made.submit("first", 3)
    made.step()
    made.submit("second", 2)
    made.step()
    return made


def test_a_job_with_quota_has_an_admitted_workload_and_one_without_says_why(cluster):
    first, second = cluster.workload("first").status, cluster.workload("second").status
    assert is_true(first, "QuotaReserved")
    assert is_true(first, "Admitted")
    [assigned] = first["admission"]["podSetAssignments"]
    assert (assigned["count"], assigned["flavors"]) == (3, {GPU: "gpus"})
    assert assigned["resourceUsage"] == {GPU: "3"}
    assert find(second, "QuotaReserved")["reason"] == "WaitingForQuota"
    assert "1 of 4 left" in find(second, "QuotaReserved")["message"]
    assert "admission" not in second


def test_queues_show_who_waits_and_what_is_used(cluster):
    for kind, name in ((kinds.CLUSTER_QUEUE, "team"), (kinds.LOCAL_QUEUE, "train")):
        status = cluster.status(kind, name)
        assert (status["pendingWorkloads"], status["admittedWorkloads"]) == (1, 1), name
        assert status["flavorsUsage"][0]["resources"][0]["total"] == "3"
        assert is_true(status, "Active")


def test_nothing_is_written_while_nothing_happens(cluster):
    cluster.step(20)
    before = len(cluster.writes)
    cluster.step(60)
    assert len(cluster.writes) == before
