"""How much of a run can go on that another operator had begun."""

from typing import Any

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes import BUILT_IN
from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.objects import Pod
from batuta.backends.kube.operator.context import placement_from
from batuta.backends.kube.operator.run_state import AdoptedRun, PodSet, resume_run
from batuta.core.cluster import Placement, Span, placement_of
from tests.support.unified_jobs import ON_CPU, manifest, read

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
) -> AdoptedRun | None:
    """A job of which some members have a place, and some have not yet."""
    body = manifest(job_type=job_type, **how)
    body["metadata"] |= {"uid": UID, "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["status"] = {"run": {"start": 0, "firstReplicas": first, "maxReplicas": 8}} if first else {}
    crew = PodSet(UID)
    for index in range(bound + unbound):
        crew.see(pod(index, bound=index < bound))
    plan = placement_of(("n0", gpu) for gpu in range(planned)) if planned else None
    return resume_run(read(body), BUILT_IN[job_type], crew, plan)


@pytest.mark.parametrize("job_type", ["TorchElastic", "Pods"])
def test_members_that_all_have_a_place_go_on_without_a_journal(job_type):
    assert adopt(bound=4, first=4, job_type=job_type) == AdoptedRun(Run(4, 0, 4, 8), PLACES[:4], PLACES[:4])


def test_a_gang_of_which_a_part_was_bound_is_finished_as_planned():
    found = adopt(bound=2, unbound=2, planned=4, first=4)
    assert found == AdoptedRun(Run(4, 0, 4, 8), PLACES[:4], ())


def test_a_gang_of_which_a_part_was_bound_starts_anew_when_nobody_knows_the_plan():
    assert adopt(bound=2, unbound=2, first=4) is None


def test_a_growth_that_nobody_knows_of_leaves_the_members_that_ran():
    found = adopt(bound=2, unbound=6, first=2)
    assert found == AdoptedRun(Run(2, 0, 2, 8), PLACES[:2], PLACES[:2])


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
    crew = PodSet(UID)
    crew.see(pod(0, bound=True, uid="another"))
    assert not crew.pods


def test_members_without_gpus_that_all_have_a_node_go_on():
    """Given pods of a CPU-only job, on which no GPUs are written down, their nodes are their places."""
    places = (Span("n0", ()), Span("n0", ()))
    for plan in (None, Placement(places)):
        found = adopt_on_cpu(bound=2, plan=plan)
        assert found == AdoptedRun(Run(2, 0, 2, 2), places, places)
        assert placement_from(found.places) == Placement(places)


def test_a_gang_without_gpus_of_which_a_part_was_bound_is_finished_as_planned():
    places = (Span("n0", ()), Span("n1", ()))
    assert adopt_on_cpu(bound=1, plan=Placement(places)) == AdoptedRun(Run(2, 0, 2, 2), places, ())
    assert adopt_on_cpu(bound=1, plan=None) is None


def adopt_on_cpu(bound: int, plan: Placement | None) -> AdoptedRun | None:
    """A CPU-only job of two replicas, of which some have a place."""
    body = manifest(job_type="Pods", replicas=ON_CPU)
    body["status"] = {"run": {"start": 0, "firstReplicas": 2, "maxReplicas": 2}}
    crew = PodSet(UID)
    for index in range(2):
        one = pod(index, bound=index < bound)
        one.metadata.annotations.clear()
        crew.see(one)
    return resume_run(read(body), BUILT_IN["Pods"], crew, plan)
