"""The Workload of a job: what it asks for, written once, and no more than a few at a time."""

import math

from batuta.backends.kube.client.errors import Unavailable
from batuta.backends.kube.client.transport import RateLimit
from batuta.backends.kube.kueue import kinds
from batuta.backends.kube.kueue.workload import (
    is_same_request,
    request_of_unified_job,
    workload_manifest,
    workload_name,
)
from batuta.backends.kube.kueue.workload_cache import ECHO_S, WorkloadCache
from batuta.backends.kube.objects import OwnerReference
from batuta.backends.kube.operator.workqueue import Changed, Written
from batuta.backends.kube.unified_job.to_job import to_job
from batuta.core.job import Job
from tests.support.unified_jobs import ON_CPU, unified_job
from tests.unit.backends.kube.kueue.settings import came, setting, went


def asking(**changes):
    uj = unified_job(**changes)
    job = to_job(uj, {})
    assert isinstance(job, Job)
    return request_of_unified_job(uj, job)


class Post:
    """Takes writes, and remembers them."""

    def __init__(self):
        self.sent = []

    def ask(self, key, do, now_s):
        self.sent.append(key)
        return True


def book_and_post(*rate):
    post = Post()
    book = WorkloadCache(post.ask, *rate)
    book.take(Changed(kinds.WORKLOAD, (), kinds.VERSION))
    return book, post


def as_shown(wanted):
    """The Workload as the API server shows it: with numbers for texts and with defaults."""
    spec = workload_manifest(wanted)["spec"]
    return setting(wanted.name, spec | {"active": True}, wanted.namespace)


def test_an_elastic_job_asks_for_its_largest_size_and_is_content_with_its_smallest():
    spec = workload_manifest(asking(queueName="train"))["spec"]
    assert spec["queueName"] == "train"
    [main] = spec["podSets"]
    assert (main["name"], main["minCount"], main["count"]) == ("main", 1, 8)
    [container] = main["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": 8, "memory": "32Gi", "nvidia.com/gpu": "1"}
    assert set(container) <= {"name", "image", "resources"}


def test_a_rigid_job_takes_all_or_nothing_and_a_launcher_counts_too():
    main, launcher = workload_manifest(asking(job_type="MPIJob", replicas={"maxReplicas": 1}))["spec"]["podSets"]
    assert "minCount" not in main
    assert (launcher["name"], launcher["count"]) == ("launcher", 1)
    assert "nvidia.com/gpu" not in str(launcher)


def test_a_job_made_anew_under_an_old_name_has_another_workload():
    first, second = (workload_name(OwnerReference(kind="UnifiedJob", name="a", uid=uid)) for uid in "12")
    assert first != second
    assert len(workload_name(OwnerReference(kind="UnifiedJob", name="a" * 300, uid="1"))) < 253


def test_what_the_api_server_adds_is_no_difference():
    wanted = asking()
    shown = as_shown(wanted)
    shown.spec["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
    assert is_same_request(shown.spec, wanted)
    assert not is_same_request(shown.spec, asking(queueName="other"))
    assert not is_same_request(shown.spec, asking(replicas={"maxReplicas": 4}))


def test_a_workload_is_asked_for_until_it_is_there_but_not_all_the_time():
    book, post = book_and_post()
    for now_s in (0.0, 1.0, ECHO_S - 1.0):
        assert book.bring(asking(), now_s) is None
    assert len(post.sent) == 1
    book.bring(asking(), ECHO_S + 1.0)
    assert len(post.sent) == 2
    book.take(Changed(kinds.WORKLOAD, [came(as_shown(asking()))]))
    assert book.bring(asking(), ECHO_S + 2.0) is not None
    assert len(post.sent) == 2


def test_one_that_somebody_deletes_or_that_could_not_be_written_is_asked_for_again():
    book, post = book_and_post()
    book.bring(asking(), 0.0)
    book.heard(Written(post.sent[0], Unavailable("away")))
    book.bring(asking(), 1.0)
    book.take(Changed(kinds.WORKLOAD, [came(as_shown(asking()))]))
    book.take(Changed(kinds.WORKLOAD, [went(as_shown(asking()))]))
    book.bring(asking(), 2.0)
    assert len(post.sent) == 3


def test_nothing_is_written_on_a_cluster_that_does_not_know_workloads():
    post = Post()
    assert WorkloadCache(post.ask).bring(asking(), 0.0) is None
    assert post.sent == []


def test_thousands_of_jobs_are_shown_at_a_steady_pace():
    book, post = book_and_post(RateLimit(per_s=50.0, burst=10.0))
    jobs = [asking(name=f"job-{number}") for number in range(100)]
    for job in jobs:
        book.bring(job, 0.0)
    assert len(post.sent) == 10
    assert 0.0 < book.later_s(0.0) <= 1.0
    for job in jobs:
        book.bring(job, 1.0)
    assert len(post.sent) == 20
    assert book.later_s(1.0) < math.inf


def test_a_job_without_gpus_asks_for_its_replicas_with_cpu_and_memory():
    [main] = workload_manifest(asking(replicas=ON_CPU))["spec"]["podSets"]
    assert main["count"] == 2
    assert "minCount" not in main
    [container] = main["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": 8, "memory": "32Gi"}
