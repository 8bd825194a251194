"""A UnifiedJob as people see it in `queue` and `status`."""

from typing import Any

import msgspec

from batuta.apitypes.resources import Cpu, Share
from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import read_time
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.client.kube.reading import trouble_of
from batuta.client.kube.views import UNSEEN, job_view
from tests.support.kube.unified import manifest

NOON = "2026-01-01T12:00:00Z"
NOON_S = read_time(NOON) or 0.0


def job(status: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **how: Any) -> UnifiedJob:
    body = manifest("train", annotations=annotations, **how)
    body["metadata"] |= {"namespace": "team-a", "creationTimestamp": NOON}
    return msgspec.convert(body | {"status": status or {}}, UnifiedJob)


def test_a_job_that_nobody_has_looked_at_waits_and_says_so():
    seen = job_view(job(replicas=(2, 4)), NOON_S + 60)
    assert (seen.id, seen.label, seen.state) == ("team-a/train", "team-a/train", "PENDING")
    assert seen.reason is not None
    assert seen.reason.sentence == UNSEEN
    assert (seen.waited_s, seen.duration_s) == (60.0, None)
    assert (seen.gpus.wanted, seen.gpus.min, seen.gpus.max) == (2, 2, 4)


def test_sizes_are_told_in_gpus_and_a_pin_is_the_only_size():
    pinned = job(annotations={names.TARGET: "4"}, replicas=(1, 8), gpus=2, replica_spec={"targetReplicas": 3})
    gpus = job_view(pinned, NOON_S).gpus
    assert (gpus.wanted, gpus.min, gpus.max, gpus.per_node) == (6, 6, 6, 2)
    chosen = job(annotations={names.TARGET: "3"}, replicas=(1, 8), gpus=2, replica_spec={"targetReplicas": 3})
    gpus = job_view(chosen, NOON_S).gpus
    assert (gpus.wanted, gpus.min, gpus.max) == (2, 2, 16)


def test_a_job_without_gpus_tells_its_replicas_and_what_each_asks_for():
    seen = job_view(job({"placement": {"c": 2}}, replicas=3, gpus=0), NOON_S)
    assert seen.cpu == Cpu(replicas=3, now=2, cpus=1.0)
    assert (seen.gpus.wanted, seen.gpus.max, seen.gpus.per_node) == (0, 0, 0)
    assert job_view(job(), NOON_S).cpu is None


def test_a_job_that_is_over_tells_how_long_it_took_and_why_it_ended():
    status = {
        "state": "FAILED",
        "message": "exit code 3",
        "startTime": "2026-01-01T12:01:00Z",
        "completionTime": "2026-01-01T12:03:00Z",
    }
    seen = job_view(job(status), NOON_S + 9999)
    assert (seen.waited_s, seen.duration_s, seen.ended_s) == (60.0, 120.0, NOON_S + 180)
    assert (seen.detail, seen.reason) == ("exit code 3", None)


def test_progress_and_what_is_left_come_from_the_trainers_status():
    metrics = [{"name": "loss", "value": "0.5"}, {"name": "step", "value": "7"}, {"name": "x", "value": "?"}]
    trainer = {"progressPercentage": 42, "estimatedRemainingSeconds": 90, "metrics": metrics}
    seen = job_view(job({"state": "RUNNING", "trainerStatus": trainer}), NOON_S)
    assert seen.progress is not None
    assert (seen.progress.fraction, seen.progress.loss, seen.progress.step) == (0.42, 0.5, 7)
    assert seen.eta_s == 90.0


def test_wishes_of_the_user_are_told():
    assert job_view(job(), NOON_S).wish == "run"
    assert job_view(job(suspend=True), NOON_S).wish == "park"
    assert job_view(job(replica_spec={"targetReplicas": 0}), NOON_S).wish == "park"
    assert job_view(job(annotations={names.CANCEL: "true"}), NOON_S).wish == "cancel"


def test_a_share_of_a_gpu_is_told():
    seen = job_view(job(sharing={"gpuMemory": "8Gi", "gpuCompute": 50}), NOON_S)
    assert seen.gpus.share == Share(8192, 50)


def test_jobs_that_lie_there_unseen_are_trouble_after_a_while():
    assert trouble_of([job()], NOON_S + 5) is None
    assert trouble_of([job({"state": "PENDING"})], NOON_S + 500) is None
    assert "team-a/train" in str(trouble_of([job()], NOON_S + 500))


def test_ports_are_told_where_they_are_reached_within_the_cluster():
    with_ports = job()
    container = with_ports.spec.replica_spec.template["spec"]["containers"][0]
    container["ports"] = [{"containerPort": port} for port in (9001, 8080, 9000)]
    assert job_view(with_ports, NOON_S).endpoints == (
        "train-0.train.team-a.svc:8080",
        "train-0.train.team-a.svc:9000-9001",
    )
