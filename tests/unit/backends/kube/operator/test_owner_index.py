"""Each pod is shown to the job that it belongs to, whoever of the two comes first."""

from typing import Any

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.owner_index import OwnerIndex
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.backends.kube.unified_job.model import UnifiedJob
from tests.support.kube.pods import make_gang
from tests.support.unified_jobs import manifest, read


def roster_of(observed: ObjectCache, *namespaces: str) -> OwnerIndex:
    writes = WriteQueue(lambda asked: None)
    site = ReconcileContext(Cluster(), writes, observed.owners(), lambda event: None, lambda party: None)
    return OwnerIndex(site, observed, {}, namespaces)


def unified(uid: str) -> UnifiedJob:
    body = manifest(name="resnet", namespace="team-a")
    body["metadata"]["uid"] = uid
    return read(body)


def member(owner: str) -> objects.Pod:
    """A pod of the job `team-a/resnet` with this uid."""
    reference = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "resnet", "uid": owner}
    meta = {
        "name": "resnet-0",
        "namespace": "team-a",
        "labels": {names.JOB_NAME: "resnet"},
        "ownerReferences": [{**reference, "controller": True}],
    }
    return msgspec.convert({"metadata": meta}, objects.Pod)


def gang(phase: str = "Pending", **metadata: Any) -> list[objects.Pod]:
    pods = make_gang("g", 2)
    for pod in pods:
        pod["metadata"] |= {"namespace": "team-a", **metadata}
        pod["status"] = {"phase": phase}
    return [msgspec.convert(pod, objects.Pod) for pod in pods]


def test_a_pod_that_comes_before_its_job_is_not_forgotten():
    roster = roster_of(ObjectCache())
    assert roster.see(member("one")) is None
    roster.meet(unified("one"))
    assert list(roster.runs["team-a/resnet"].pods()) == ["team-a/resnet-0"]


def test_a_pod_that_goes_before_its_job_comes_is():
    roster = roster_of(ObjectCache())
    roster.see(member("one"))
    roster.lose(member("one"))
    roster.meet(unified("one"))
    assert not roster.runs["team-a/resnet"].pods()


def test_a_pod_may_outlive_its_job_and_another_one_of_the_same_name():
    """Given a pod of a first job, a second job that came and went does not take it along."""
    roster = roster_of(ObjectCache())
    roster.meet(unified("two"))
    run = roster.see(member("one"))
    assert run is not None
    assert not run.pods()
    roster.drop(run)
    assert roster.see(member("one")) is None
    assert roster.lose(member("one")) is None


def test_a_job_that_came_while_one_of_the_same_name_went_is_met():
    observed = ObjectCache()
    roster = roster_of(observed)
    roster.meet(unified("one"))
    observed.note(observed.unified_jobs, Change(ChangeType.ADDED, unified("two")))
    before = roster.runs["team-a/resnet"]
    assert roster.drop(before)
    assert roster.runs["team-a/resnet"] is not before


def test_a_gang_begins_with_its_first_pod_but_not_with_one_that_is_over():
    roster = roster_of(ObjectCache())
    roster.finish_first_look()
    first, second = gang()
    assert roster.see(msgspec.structs.replace(first, status=objects.PodStatus(phase="Succeeded"))) is None
    run = roster.see(second)
    assert run is not None
    assert list(run.pods()) == ["team-a/g-1"]


def test_at_the_first_look_who_is_over_counts_once_another_member_is_seen():
    roster = roster_of(ObjectCache())
    over, alive = gang("Succeeded")[0], gang()[1]
    assert roster.see(over) is None
    run = roster.see(alive)
    assert run is not None
    assert set(run.pods()) == {"team-a/g-0", "team-a/g-1"}


def test_pods_of_other_namespaces_are_no_business_of_ours():
    roster = roster_of(ObjectCache(), "team-b")
    assert [roster.see(pod) for pod in gang()] == [None, None]
