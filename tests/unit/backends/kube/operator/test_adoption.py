"""How much of a run can go on that another operator had begun."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.jobtypes.registry import BUILT_IN
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.operator.adoption import Adopted, go_on
from batuta.backends.kube.operator.crew import Crew
from batuta.core.cluster import Span, placement_of
from tests.support.unified_jobs import manifest, read

UID = "11111111-2222"
PLACES = tuple(Span("n0", (gpu,)) for gpu in range(8))


def pod(index: int, *, bound: bool, start: int = 0, uid: str = UID) -> Pod:
    labels = {names.START: str(start), names.ROLE: "worker", names.REPLICA_INDEX: str(index)}
    owner = {"kind": names.KIND, "uid": uid, "controller": True}
    meta = {"name": f"resnet-{index}", "namespace": "team-a", "labels": labels, "ownerReferences": [owner]}
    spec = {}
    if bound:
        meta["annotations"] = {names.GPUS: str(index)}
        spec = {"nodeName": "n0"}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod)


def adopt(
    bound: int, unbound: int = 0, planned: int = 0, first: int = 0, job_type: str = "TorchElastic", **how: Any
) -> Adopted | None:
    """A job of which some members have a place, and some have not yet."""
    body = manifest(job_type=job_type, **how)
    body["metadata"] |= {"uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["status"] = {"run": {"start": 0, "firstReplicas": first, "maxReplicas": 8}} if first else {}
    crew = Crew(UID)
    for index in range(bound + unbound):
        crew.see(pod(index, bound=index < bound))
    plan = placement_of(("n0", gpu) for gpu in range(planned)) if planned else None
    return go_on(read(body), BUILT_IN[job_type], crew, plan)


@pytest.mark.parametrize("job_type", ["TorchElastic", "Pods"])
def test_members_that_all_have_a_place_go_on_without_a_journal(job_type):
    assert adopt(bound=4, first=4, job_type=job_type) == Adopted(Run(4, 0, 4, 8), PLACES[:4], PLACES[:4])


def test_a_gang_of_which_a_part_was_bound_is_finished_as_planned():
    found = adopt(bound=2, unbound=2, planned=4, first=4)
    assert found == Adopted(Run(4, 0, 4, 8), PLACES[:4], ())


def test_a_gang_of_which_a_part_was_bound_starts_anew_when_nobody_knows_the_plan():
    assert adopt(bound=2, unbound=2, first=4) is None


def test_a_growth_that_nobody_knows_of_leaves_the_members_that_ran():
    found = adopt(bound=2, unbound=6, first=2)
    assert found == Adopted(Run(2, 0, 2, 8), PLACES[:2], PLACES[:2])


def test_a_growth_of_which_a_part_was_bound_has_a_legal_size():
    found = adopt(bound=3, unbound=1, first=2, replicas={"sizes": [1, 2, 4, 8]})
    assert found is not None
    assert found.run.target == 2


def test_members_that_are_elsewhere_than_planned_count_and_not_the_plan():
    found = adopt(bound=4, planned=2, first=4)
    assert found is not None
    assert found.places == PLACES[:4]


def test_a_run_that_was_not_written_down_yet_is_what_its_pods_say():
    found = adopt(bound=4)
    assert found is not None
    assert found.run == Run(4, 0, 4, 8)


def test_pods_of_an_earlier_job_of_the_same_name_are_not_its_own():
    crew = Crew(UID)
    crew.see(pod(0, bound=True, uid="another"))
    assert not crew.pods
