from typing import Any

import pytest

from tests.support.unified_jobs import manifest, read, unified_job


def test_a_sound_job_is_read_as_it_is_written() -> None:
    job = unified_job(replicas={"sizes": [1, 2, 4, 8], "gpusPerReplica": 2}, topology={"level": "rack"})
    assert job.id == "team-a/resnet"
    assert job.unreadable == ()
    assert job.spec.job_type == "TorchElastic"
    assert job.spec.replica_spec.sizes == [1, 2, 4, 8]
    assert job.spec.replica_spec.gpus_per_replica == 2
    assert job.spec.topology is not None
    assert job.spec.topology.level == "rack"


def test_what_is_left_out_has_the_default_that_the_api_server_would_write() -> None:
    spec = unified_job().spec
    assert (spec.queue_name, spec.suspend, spec.backoff_limit) == ("default", False, 6)
    assert spec.managed_by == "batuta.dev/operator"
    assert spec.replica_spec.target_replicas is None


def test_a_job_without_a_largest_size_is_rigid() -> None:
    job = read(manifest(replicas={"minReplicas": 4, "maxReplicas": None}))
    assert job.unreadable == ()
    assert job.spec.replica_spec.largest == 4


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ({"jobType": 7}, ["spec.jobType: expected str, got int"]),
        ({"replicaSpec": {"minReplicas": "two"}}, ["spec.replicaSpec.minReplicas: expected int, got str"]),
        ({"replicaSpec": {"minReplicas": 0}}, ["spec.replicaSpec.minReplicas: expected int >= 1"]),
        ({"replicaSpec": {"sizes": [1, "x"]}}, ["spec.replicaSpec.sizes: expected int, got str"]),
        ({"topology": {"level": "galaxy"}}, ["spec.topology.level: invalid enum value 'galaxy'"]),
        (
            {"suspend": "no", "backoffLimit": -1},
            ["spec.suspend: expected bool, got str", "spec.backoffLimit: expected int >= 0"],
        ),
        ("nonsense", ["spec: expected object, got str"]),
        (None, ["spec: expected object, got null"]),
    ],
)
def test_everything_unreadable_is_told_at_once_and_nothing_is_raised(spec: Any, faults: list[str]) -> None:
    body = manifest()
    body["spec"] = spec if not isinstance(spec, dict) else {**body["spec"], **spec}
    assert sorted(read(body).unreadable) == sorted(faults)


def test_the_readable_rest_of_a_faulty_job_is_there() -> None:
    job = read(manifest(queueName="vision", suspend="no"))
    assert job.unreadable
    assert job.spec.queue_name == "vision"
    assert job.spec.replica_spec.largest == 8


def test_a_status_that_makes_no_sense_counts_as_none() -> None:
    body = manifest()
    body["status"] = {"replicas": "many", "state": "RUNNING"}
    job = read(body)
    assert (job.status.replicas, job.status.state) == (0, "RUNNING")
    assert job.unreadable == ()
