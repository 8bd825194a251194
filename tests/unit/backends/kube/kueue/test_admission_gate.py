"""A Kueue that decides: what the World is told of a job, and when, and what Kueue is told in return."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.admission_gate import name_of
from batuta.backends.kube.kueue.quota_controller import quota_from_config
from batuta.backends.kube.kueue.workload import request_of_unified_job, workload_manifest
from batuta.backends.kube.operator.workqueue import Changed, Inbox, Message, Written
from batuta.backends.kube.operator_config import Admission, OperatorConfig
from batuta.backends.kube.unified_job.model import UNIFIED_JOB
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.bootstrap.operator_leader import kube_backend
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.event import Event
from batuta.core.job import DesiredState, Job
from batuta.core.world import World
from tests.support.unified_jobs import unified_job
from tests.unit.backends.kube.kueue.settings import GPU, came, setting, went

KEY = "team-a/resnet"
FLAVOR = {"nodeLabels": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


class Cluster:
    """An operator whose API server is this test: what it writes is noted, what it sees is put in."""

    def __init__(self, world: World | None = None, *seen: Message) -> None:
        self.world = world or World()
        self.posted: list[tuple[str, Any]] = []
        self.now_s = 1000.0
        self.inbox = Inbox(gather_s=0.0)
        for kind in (kinds.RESOURCE_FLAVOR, kinds.WORKLOAD_PRIORITY_CLASS, kinds.WORKLOAD):
            self.inbox.put(Changed(kind, (), kinds.VERSION))
        self.inbox.put(Changed(kinds.RESOURCE_FLAVOR, [came(setting("h100", FLAVOR))]))
        for message in seen:
            self.inbox.put(message)
        config = OperatorConfig(admission=Admission.KUEUE)
        self.backend, *_ = kube_backend(self.world, self.inbox, self, config, lambda: self.now_s)  # type: ignore[arg-type]

    def post(self, asked: list[tuple[str, Any]]) -> None:
        self.posted += asked
        for key, _ in asked:
            self.inbox.put(Written(key, None))

    def events(self) -> list[Event]:
        """What the World is told next."""
        self.now_s += 1.0
        self.inbox.put(None)
        found = list(self.backend.next_events(None))
        for event in found:
            apply(self.world, event)
        return found

    def shows(self, kind: Any, *changes: Any) -> list[Event]:
        self.inbox.put(Changed(kind, changes))
        return self.events()

    def written(self, what: str) -> list[Any]:
        """The bodies of writes to Workloads."""
        return [do.args for key, do in self.posted if key.startswith(f"kueue//{what}/")]


def job(**changes: Any) -> Any:
    return unified_job(name="resnet", queueName="train", **changes)


def workload(uj: Any, *truths: str, count: int = 4, version: int = 1, active: bool = True) -> Any:
    """Its Workload as Kueue has left it; `truths` are the conditions that are true."""
    all_known = ("QuotaReserved", "Admitted", "Evicted", "Finished")
    listed = [
        {"type": kind, "status": "True" if kind in truths else "False", "reason": "Preempted", "message": "m"}
        for kind in all_known
    ]
    status: dict[str, Any] = {"conditions": listed}
    if "QuotaReserved" in truths:
        main = {"name": "main", "count": count, "flavors": {GPU: "h100"}}
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [main]}
    owner = {"kind": "UnifiedJob", "name": uj.metadata.name, "uid": uj.metadata.uid}
    meta = {"ownerReferences": [owner], "resourceVersion": str(version)}
    asked = to_job(uj, {})
    assert isinstance(asked, Job)
    spec = workload_manifest(request_of_unified_job(uj, asked))["spec"] | {"active": active}
    return setting(name_of(uj), spec, uj.metadata.namespace, status=status, metadata=meta)


@pytest.fixture
def running() -> Cluster:
    """A cluster with a job that Kueue has admitted with four of its eight replicas."""
    cluster = Cluster()
    cluster.events()
    cluster.shows(UNIFIED_JOB, came(job()))
    cluster.shows(kinds.WORKLOAD, came(workload(job(), "QuotaReserved", "Admitted")))
    assert KEY in cluster.world.jobs
    return cluster


def test_the_world_does_not_know_a_job_that_kueue_has_not_admitted():
    cluster = Cluster()
    cluster.events()
    assert cluster.shows(UNIFIED_JOB, came(job())) == []
    [(_, body)] = cluster.written("workload")
    assert body["spec"]["podSets"][0]["count"] == 8
    assert cluster.shows(kinds.WORKLOAD, came(workload(job(), "QuotaReserved"))) == []


def test_a_job_that_is_cancelled_while_it_waits_for_kueue_ends():
    cluster = Cluster()
    cluster.events()
    cluster.shows(UNIFIED_JOB, came(job()))
    cancelled = job(annotations={names.CANCEL: "true"})
    told = cluster.shows(UNIFIED_JOB, came(cancelled, job()))
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.CANCEL]


def test_a_job_that_comes_suspended_asks_for_nothing():
    cluster = Cluster()
    cluster.events()
    assert cluster.shows(UNIFIED_JOB, came(job(suspend=True))) == []
    assert cluster.written("workload") == []


def test_where_kueue_decides_the_world_forgets_the_quota_that_it_had():
    world = World()
    apply(world, ev.QuotaSet(1.0, quota_from_config([{"name": "team-a", "quota": {"*": 1}}])))
    assert world.quota
    Cluster(world).events()
    assert not world.quota


def test_an_admitted_job_has_the_size_and_the_nodes_that_were_admitted(running):
    known = running.world.jobs.jobs[0]
    assert (known.min, known.max) == (1, 4)
    assert known.node_labels == (("gpu", "h100"),)
    assert "gpu" in known.tolerations


def test_a_job_that_is_evicted_is_parked_and_its_quota_given_back_when_nothing_of_it_runs(running):
    evicted = workload(job(), "QuotaReserved", "Admitted", "Evicted", version=2)
    told = running.shows(kinds.WORKLOAD, came(evicted))
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.PARK]
    running.events()
    [(_, _, _, body, _)] = running.written("status")
    status = {one["type"]: one["status"] for one in body["status"]["conditions"]}
    assert (status["QuotaReserved"], status["Admitted"], status["Requeued"]) == ("False", "False", "True")
    assert body["status"]["admission"] is None
    assert body["metadata"]["resourceVersion"] == "2"


def test_one_that_is_admitted_again_runs_again(running):
    running.shows(kinds.WORKLOAD, came(workload(job(), "QuotaReserved", "Admitted", "Evicted", version=2)))
    running.shows(kinds.WORKLOAD, came(workload(job(), version=3)))
    told = running.shows(kinds.WORKLOAD, came(workload(job(), "QuotaReserved", "Admitted", count=2, version=4)))
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.RUN]
    assert running.world.jobs.jobs[0].max == 2


def test_an_operator_that_starts_anew_goes_on_from_what_kueue_says(running):
    """Given a parked job in the journal that Kueue has admitted meanwhile, it may run."""
    running.shows(kinds.WORKLOAD, came(workload(job(), "QuotaReserved", "Admitted", "Evicted", version=2)))
    seen = (
        Changed(UNIFIED_JOB, [came(job())]),
        Changed(kinds.WORKLOAD, [came(workload(job(), "QuotaReserved", "Admitted", version=5))]),
    )
    again = Cluster(running.world, *seen)
    told = again.events()
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.RUN]


def test_a_job_that_its_user_suspends_is_made_inactive_and_active_again_by_us_only(running):
    paused = job(suspend=True)
    running.shows(UNIFIED_JOB, came(paused, job()))
    [(_, _, _, body, _)] = running.written("spec")
    assert body["spec"] == {"active": False}
    inactive = workload(job(), "QuotaReserved", "Admitted", version=2, active=False)
    marked = replace_meta(inactive, annotations=body["metadata"]["annotations"])
    running.shows(kinds.WORKLOAD, came(marked))
    running.shows(UNIFIED_JOB, came(job(), paused))
    assert running.written("spec")[-1][3]["spec"] == {"active": True}


def test_a_workload_that_somebody_else_made_inactive_is_left_alone(running):
    inactive = workload(job(), "QuotaReserved", "Admitted", version=2, active=False)
    told = running.shows(kinds.WORKLOAD, came(inactive))
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.PARK]
    assert running.written("spec") == []


def test_another_template_asks_kueue_anew_when_nothing_of_the_old_one_runs(running):
    """Given a change that was not admitted, the job is parked, and its Workload makes way for another."""
    larger = job(pod={"nodeSelector": {"zone": "b"}})
    larger.metadata.generation = 2
    told = running.shows(UNIFIED_JOB, came(larger, job()))
    assert [one.wish for one in told if isinstance(one, ev.JobWished)] == [DesiredState.PARK]
    running.events()
    assert len(running.written("delete")) == 1


def test_a_job_that_is_deleted_takes_its_workload_along(running):
    """Given a Workload that nobody else cleans up, it goes when the pods of its job are gone."""
    running.shows(UNIFIED_JOB, went(job()))
    running.events()
    running.events()
    assert len(running.written("delete")) == 1
    assert len(running.written("workload")) == 1


def replace_meta(found: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, **changes))
