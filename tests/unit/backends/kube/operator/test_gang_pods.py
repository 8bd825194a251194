"""How many pods of a gang are still to run, from the pods that are there."""

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.cluster import pod_key
from batuta.backends.kube.operator.gangs import JOB_SET_NAME, GangId, GangPods, Owners
from tests.unit.backends.kube.binder import things

SET = objects.Batch(
    spec={"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2}}}]},
)
OWNERS = Owners({}, {"default/gang": SET}, {}, {})


def gang_of(kind: str, *phases: str) -> GangPods:
    """Four start together; these have come."""
    found = GangPods(GangId("default", kind, "gang"), OWNERS, lambda node: True)
    for number, phase in enumerate(phases):
        own = {names.GANG_SIZE: "4"}
        pod = things.pod(f"pod-{number}", annotations=own, labels={JOB_SET_NAME: "gang"}, phase=phase)
        found.by_key[pod_key(pod)] = pod
    return found


@pytest.mark.parametrize(
    ("phases", "members", "lasting"),
    [
        (("Running",) * 4, 4, 4),
        (("Succeeded", "Running", "Running", "Running"), 4, 3),
        # The second to end leaves two, though the World knows of three by then.
        (("Succeeded", "Failed", "Running", "Running"), 3, 2),
        # One on top of the four takes the place of the one that has ended.
        (("Succeeded", "Running", "Running", "Running", "Running"), 4, 4),
    ],
)
def test_who_has_ended_is_counted_once(phases, members, lasting):
    assert gang_of("gang", *phases).lasting(members) == lasting


def test_who_has_failed_is_made_again_by_a_job_set():
    phases = ("Succeeded", "Failed", "Running", "Running", "Pending")
    assert gang_of("jobset", *phases).lasting(4) == 3


@pytest.mark.parametrize(
    ("phases", "size"),
    [
        (("Pending", "Pending"), 4),
        (("Pending",) * 4, 4),
        # All have come, and one is done: it needs no other.
        (("Succeeded", "Pending", "Pending", "Pending"), 3),
        # One is done, and one has not come.
        (("Succeeded", "Pending", "Pending"), 4),
    ],
)
def test_a_gang_waits_for_all_that_have_not_come(phases, size):
    gang = gang_of("gang", *phases)
    assert gang.size(gang.staying()[0]) == size
