"""Who belongs to a job, from the pods that are there."""

from batuta.backends.kube import objects
from batuta.backends.kube.jobtypes.pods import INDEX_LABEL, INDEXED_JOB
from batuta.backends.kube.operator.run_state import PodSet


def pod(name: str, index: int, made: str) -> objects.Pod:
    meta = objects.Meta(
        name=name, namespace="default", uid=name, labels={INDEX_LABEL: str(index)}, creation_timestamp=made
    )
    return objects.Pod(metadata=meta)


def test_of_two_pods_for_one_replica_the_newer_counts():
    """Given a child that somebody deleted, its pods and those of the next one are there at once."""
    crew = PodSet("uid")
    for one in (
        pod("b-1-new", 1, "2026-01-01T00:00:09Z"),
        pod("a-0-old", 0, "2026-01-01T00:00:01Z"),
        pod("b-1-old", 1, "2026-01-01T00:00:01Z"),
        pod("a-0-new", 0, "2026-01-01T00:00:09Z"),
    ):
        crew.see(one)
    found = crew.workers(INDEXED_JOB)
    assert {index: one.metadata.name for index, one in found.items()} == {0: "a-0-new", 1: "b-1-new"}
    assert list(found) == [0, 1]
