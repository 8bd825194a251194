"""Which job a pod belongs to, and by which names its node knows it."""

import pytest

from batuta.backends.kube.agent import has_ended, identity_of
from batuta.backends.kube.objects import Meta, OwnerReference, Pod, PodStatus


def pod(**meta: object) -> Pod:
    return Pod(metadata=Meta(name="p-0", namespace="team", uid="u", **meta))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "owner", "job"),
    [
        ({"batuta.dev/job-name": "train"}, "other", "train"),
        ({"batuta.dev/gang-name": "gang"}, "", "gang"),
        ({"jobset.sigs.k8s.io/jobset-name": "set"}, "set-workers-0", "set"),
        ({}, "batch", "batch"),
        ({}, "", "p-0"),
        ({"batuta.dev/job-name": ""}, "", "p-0"),
    ],
)
def test_a_pod_belongs_to_its_job_else_its_controller_else_itself(labels: dict[str, str], owner: str, job: str):
    owners = [OwnerReference(kind="Job", name=owner, controller=True)] if owner else []
    found = identity_of(pod(labels=labels, owner_references=owners))
    assert found == (frozenset({"u"}), job, "p-0", "team")


def test_an_owner_that_does_not_control_it_does_not_count():
    assert identity_of(pod(owner_references=[OwnerReference(name="friend")])).job == "p-0"


def test_a_static_pod_is_known_by_its_kubelets_hash_too():
    assert identity_of(pod(annotations={"kubernetes.io/config.hash": "h"})).uids == {"u", "h"}


@pytest.mark.parametrize(("phase", "ended"), [("Running", False), ("Pending", False), ("Failed", True)])
def test_a_pod_that_is_over_has_no_processes(phase: str, ended: bool):
    assert has_ended(Pod(status=PodStatus(phase=phase))) is ended
