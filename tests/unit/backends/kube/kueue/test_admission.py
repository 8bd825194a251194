"""What Kueue has admitted is what the job may have: its size, its nodes."""

from typing import Any

import pytest

from batuta.backends.kube.kueue.workload import (
    AdmittedResources,
    pending_reason,
    read_admission,
    toleration,
    within,
)
from batuta.core.job import Job
from tests.unit.backends.kube.kueue.settings import setting

H100 = {"nodeLabels": {"gpu": "h100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def job(**more):
    return Job("team/a", 0.0, **{"size": 2, "min": 2, "max": 16, "gpus_per_replica": 2} | more)


def workload(*conditions, active=True, admission=True):
    listed = [{"type": kind, "status": status, "reason": "R", "message": "M"} for kind, status in conditions]
    status: dict[str, Any] = {"conditions": listed}
    if admission:
        main = {"name": "main", "count": 3, "flavors": {"cpu": "small", "nvidia.com/gpu": "h100"}}
        status["admission"] = {"clusterQueue": "q", "podSetAssignments": [{"name": "launcher"}, main]}
    return setting("w", {"active": active}, "team", status=status)


def test_an_admitted_workload_says_how_many_in_which_flavors():
    found = read_admission(workload(("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "False")))
    assert found == AdmittedResources(3, ("h100", "small"))


@pytest.mark.parametrize(
    "waiting",
    [
        workload(),
        workload(("QuotaReserved", "True")),
        workload(("Admitted", "True"), ("Evicted", "True")),
        workload(("Admitted", "True"), ("Finished", "True")),
        workload(("Admitted", "True"), active=False),
        workload(("Admitted", "True"), admission=False),
    ],
    ids=["new", "reserved", "evicted", "finished", "inactive", "without an admission"],
)
def test_whatever_else_is_not_admitted(waiting):
    assert read_admission(waiting) is None


def test_a_job_has_no_more_than_was_admitted_and_only_on_the_nodes_of_its_flavors():
    found = within(job(tolerations=("mine",)), AdmittedResources(3, ("h100",)), [H100])
    assert found is not None
    assert (found.min, found.size, found.max) == (2, 2, 6)
    assert found.node_labels == (("gpu", "h100"),)
    assert found.tolerations == ("mine", "gpu")
    assert found.faults() == []


def test_sizes_that_are_too_large_are_left_out():
    found = within(job(sizes=(2, 4, 8, 16), size=8), AdmittedResources(3), [])
    assert found is not None
    assert (found.sizes, found.max, found.size) == ((2, 4), 4, 4)
    assert found.faults() == []


def test_less_than_the_smallest_size_is_nothing():
    assert within(job(min=8, size=8), AdmittedResources(3), []) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"key": "a", "operator": "Exists", "effect": "NoSchedule"}, "a:NoSchedule"),
        ({"key": "a", "value": "b"}, "a=b"),
        ({"operator": "Exists"}, "*"),
    ],
)
def test_tolerations_are_written_as_the_world_does(written, meant):
    assert toleration(written) == meant


def test_why_a_job_waits_is_said_in_the_words_of_kueue():
    assert pending_reason(None)[0] == "WaitingForKueue"
    assert pending_reason(workload())[0] == "WaitingForKueue"
    assert pending_reason(workload(("QuotaReserved", "False"))) == ("R", "Kueue: M")
    assert pending_reason(workload(("QuotaReserved", "True"), ("Evicted", "True"))) == ("R", "Kueue: M")


@pytest.mark.parametrize(("given", "is_enough"), [(2, False), (3, True)])
def test_a_job_without_gpus_is_admitted_in_replicas(given, is_enough):
    found = within(job(size=3, min=3, max=3, gpus_per_replica=0), AdmittedResources(given), [])
    assert (found is not None) is is_enough
