"""How jobs and queues stand, in the words of Kueue's conditions and status."""

from collections import Counter

from batuta.backends.kube.kueue.kinds import conditions, find
from batuta.backends.kube.kueue.queue_status import (
    cluster_queue_condition,
    cluster_queue_status,
    local_queue_condition,
    local_queue_status,
    usage_by_local_queue,
)
from batuta.backends.kube.kueue.workload import WorkloadState
from batuta.core.job import Job, JobState
from batuta.core.quota import LocalQueue, Quota, StopPolicy
from batuta.quota.reasons import Reserved
from batuta.quota.usage import JobUse, measure
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_objects
from tests.unit.backends.kube.kueue.settings import GPU, queue_spec

JOB = Job("team/a", 0.0, size=2, min=2, max=8, gpus_per_replica=2, queue="train", namespace="team")
WAITS = WorkloadState(JOB, JobState.PENDING, 0, Reserved(False, "WaitingForQuota", "needs 2"), "team-a")
RUNS = WorkloadState(JOB, JobState.RUNNING, 4, Reserved(True, "QuotaReserved", ""), "team-a", ((GPU, "gpus"),))


def quota_of(*objects):
    api = "kueue.x-k8s.io/v1beta2"
    return merge(Quota(), read_quota_objects([{"apiVersion": api} | one for one in objects]))


QUOTA = quota_of(
    {"kind": "ResourceFlavor", "metadata": {"name": "gpus"}, "spec": {}},
    {"kind": "ClusterQueue", "metadata": {"name": "team-a"}, "spec": queue_spec(3)},
    {
        "kind": "LocalQueue",
        "metadata": {"name": "train", "namespace": "team"},
        "spec": {"clusterQueue": "team-a"},
    },
)


def said(standing, before=()):
    listed = conditions(standing.statements({"conditions": list(before)}), list(before), 1, 60.0)
    return {one["type"]: (one["status"], one["reason"]) for one in listed}, listed


def test_a_job_that_waits_has_no_quota_and_says_why():
    truths, listed = said(WAITS)
    assert truths["QuotaReserved"] == ("False", "WaitingForQuota")
    assert truths["Admitted"] == ("False", "NoReservation")
    assert find({"conditions": listed}, "QuotaReserved")["message"] == "needs 2"
    assert WAITS.admission(("main",)) is None


def test_a_job_that_runs_says_what_it_has_of_which_flavor():
    truths, _ = said(RUNS)
    assert truths["QuotaReserved"] == ("True", "QuotaReserved")
    assert truths["PodsReady"] == ("True", "Started")
    admission = RUNS.admission(("main", "launcher"))
    assert admission is not None
    main, launcher = admission["podSetAssignments"]
    assert (main["count"], main["flavors"], main["resourceUsage"]) == (2, {GPU: "gpus"}, {GPU: "4"})
    assert launcher["name"] == "launcher"


def test_a_job_that_runs_without_a_queue_has_no_quota_reserved():
    """Given no admission, QuotaReserved is not true: the real Kueue ends at the sight of such a Workload."""
    alone = WorkloadState(JOB, JobState.RUNNING, 4, Reserved(True, "QuotaReserved", "runs"))
    truths, _ = said(alone)
    assert alone.admission(("main",)) is None
    assert truths["QuotaReserved"] == ("False", "WithoutQuota")
    assert truths["Admitted"][0] == "False"


def test_one_that_was_pushed_aside_is_evicted_until_it_has_quota_again():
    away = WorkloadState(JOB, JobState.PREEMPTED, 0, Reserved(False, "WaitingForQuota", "gave way"), "team-a")
    truths, listed = said(away)
    assert truths["Evicted"] == ("True", "Preempted")
    truths, listed = said(RUNS, listed)
    assert truths["Evicted"] == ("False", "QuotaReserved")
    assert find({"conditions": listed}, "Evicted")["message"] == "Previously: gave way"


def test_a_statement_keeps_its_time_while_it_is_true_and_those_of_others_stay():
    other = {"type": "Other", "status": "True", "reason": "R", "lastTransitionTime": "then"}
    _, listed = said(WAITS, [other])
    again = conditions(WAITS.statements({}), listed, 2, 90.0)
    times = {one["type"]: one["lastTransitionTime"] for one in again}
    assert times["QuotaReserved"] == "1970-01-01T00:01:00Z"
    assert times["Other"] == "then"


def test_a_queue_shows_what_its_jobs_use_and_what_of_it_is_borrowed():
    jobs = [JobUse(JOB, 4, waits=False, flavors=((GPU, "gpus"),)), JobUse(JOB, 0, waits=True)]
    [queue] = measure(QUOTA, jobs).queues
    status = cluster_queue_status(queue)
    assert (status["pendingWorkloads"], status["admittedWorkloads"]) == (1, 1)
    [flavor] = status["flavorsUsage"]
    assert flavor == {"name": "gpus", "resources": [{"name": GPU, "total": "4", "borrowed": "1"}]}
    used = usage_by_local_queue(jobs)
    local = local_queue_status(queue.doors[0], queue, used["team", "train"], "v1beta2")
    assert local["flavorsUsage"] == [{"name": "gpus", "resources": [{"name": GPU, "total": "4"}]}]
    assert "flavorUsage" in local_queue_status(queue.doors[0], queue, Counter(), "v1beta1")


def test_a_queue_that_starts_nothing_says_so():
    [queue] = measure(QUOTA, []).queues
    assert cluster_queue_condition(queue).is_true
    assert local_queue_condition(LocalQueue("train", "team-a", "team"), queue).is_true
    assert local_queue_condition(LocalQueue("train", "team-a", "team", StopPolicy.HOLD), queue).reason == "Stopped"
    assert local_queue_condition(LocalQueue("train", "none", "team"), None).reason == "ClusterQueueDoesNotExist"
    [lost] = measure(quota_of({"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": queue_spec(1)}), []).queues
    assert cluster_queue_condition(lost).reason == "FlavorNotFound"
    assert local_queue_condition(LocalQueue("train", "q", "team"), lost).reason == "ClusterQueueIsInactive"


def test_a_job_without_gpus_says_its_replicas_and_what_they_have():
    job = Job("team/a", 0.0, size=3, min=3, max=3, gpus_per_replica=0, cpus_milli_per_gpu=500)
    flavors = (("cpu", "small"), ("pods", "small"))
    runs = WorkloadState(job, JobState.RUNNING, 3, Reserved(True, "QuotaReserved", ""), "team-a", flavors)
    found = runs.admission(("main",))
    assert found is not None
    [main] = found["podSetAssignments"]
    assert (main["count"], main["resourceUsage"]) == (3, {"cpu": "1500m", "pods": "3"})
