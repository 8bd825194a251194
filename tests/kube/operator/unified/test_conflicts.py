"""Others edit a job and its children while it is resized: nothing is lost, and nobody fights."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from batuta.backends.kube import names
from tests.support.kube.api import ApiError, Json
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.operator_process import USER
from tests.support.kube.unified import Jobs, Submitted

EDITS = 30
CALM_REQUESTS = 50
"""A resize takes some ten requests of the operator, a restart twice that, and an edit by others none."""


def edit(job: Submitted, change: Callable[[Json], None], subresource: str = "") -> None:
    """Reads, changes and replaces the object, again if somebody else was faster, as careful clients do."""
    while True:
        found = job.get()
        change(found)
        try:
            job.jobs.api.replace(f"{job.path}{subresource}", found)
            return
        except ApiError as error:
            if error.status != 409:
                raise


def add_label(label: str, found: Json) -> None:
    found["metadata"].setdefault("labels", {})[label] = "yes"


def say_progress(percent: int, found: Json) -> None:
    found["status"]["trainerStatus"] = {"progressPercentage": percent}


def test_edits_of_a_job_while_it_is_resized_are_all_there_in_the_end(jobs, add_nodes, cluster):
    """Given a client that edits labels and progress all the time, all is kept and all sizes are reached."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("torch", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    before = job.runs_with(2)
    mark = cluster.requests.mark()

    def edit_all() -> None:
        for number in range(EDITS):
            edit(job, partial(add_label, f"edit-{number}"))
            edit(job, partial(say_progress, number), "/status")

    with ThreadPoolExecutor(1) as another:
        editing = another.submit(edit_all)
        for size in (3, 4):
            job.patch({"spec": {"replicaSpec": {"targetReplicas": size}}})
            assert before.items() <= job.runs_with(size).items()
        editing.result()
    found = job.get()
    assert found["metadata"]["labels"].keys() >= {f"edit-{number}" for number in range(EDITS)}
    assert found["spec"]["replicaSpec"]["targetReplicas"] == 4
    assert found["status"]["trainerStatus"] == {"progressPercentage": EDITS - 1}
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    asked = cluster.requests.count(mark, USER)
    assert asked.total() < CALM_REQUESTS, asked


def scale(jobs: Jobs) -> None:
    """Somebody thinks that one pod is enough, and tells the Job instead of its owner."""
    jobs.api.patch(path_of(jobs), {"spec": {"parallelism": 1}})


def suspend(jobs: Jobs) -> None:
    jobs.api.patch(path_of(jobs), {"spec": {"suspend": True}})


def delete(jobs: Jobs) -> None:
    jobs.api.delete(path_of(jobs), propagationPolicy="Background")


def unlabel(jobs: Jobs) -> None:
    """Takes away by what one of its pods is known: of one that the resize has not replaced just then."""

    def unlabels_one() -> bool:
        for name in sorted(jobs.pods("batch")):
            try:
                jobs.api.patch(f"{jobs.pods_path}/{name}", {"metadata": {"labels": {names.START: None}}})
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return True
        return False

    wait_until(unlabels_one, "a pod to take the label from")


def path_of(jobs: Jobs) -> str:
    return f"/apis/batch/v1/namespaces/{jobs.namespace}/jobs/batch"


@pytest.mark.parametrize("meddle", [scale, suspend, delete, unlabel], ids=lambda how: how.__name__)
def test_a_job_whose_child_others_change_during_a_resize_has_its_size_in_the_end(jobs, add_nodes, cluster, meddle):
    """Given a batch Job that somebody scales, suspends, deletes or edits just then, the resize is done."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("batch", "Job", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    job.runs_with(2)
    mark = cluster.requests.mark()
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 3}}})
    meddle(jobs)
    job.runs_with(3)
    assert len(set(job.places().values())) == 3
    assert jobs.api.get(path_of(jobs))["spec"]["parallelism"] == 3
    status = job.status
    assert (status["failures"], status["state"]) == (0, "RUNNING")
    asked = cluster.requests.count(mark, USER)
    assert asked.total() < CALM_REQUESTS, asked


def test_a_member_that_others_edit_stays_and_the_next_resize_finds_it(jobs, add_nodes, cluster):
    """Given labels, annotations and owners that others add to pods, these are kept, and members stay."""
    add_nodes(1, NodeShape(gpus=4))
    job = jobs.submit("torch", replicas=(1, 4), replica_spec={"targetReplicas": 2})
    before = job.runs_with(2)
    mark = cluster.requests.mark()
    job.patch({"spec": {"replicaSpec": {"targetReplicas": 4}}})
    for name in before:
        theirs = {"labels": {"example.com/team": "a"}, "annotations": {names.GPUS: None}}
        jobs.api.patch(f"{jobs.pods_path}/{name}", {"metadata": theirs})
    assert before.items() <= job.runs_with(4).items()
    assert all(job.pods()[name]["metadata"]["labels"]["example.com/team"] == "a" for name in before)
    assert (job.starts(), job.status["restarts"]) == ({"0"}, 0)
    wait_until(lambda: job.get()["spec"]["replicaSpec"]["targetReplicas"] == 4, "its target")
    asked = cluster.requests.count(mark, USER)
    assert asked.total() < CALM_REQUESTS, asked
