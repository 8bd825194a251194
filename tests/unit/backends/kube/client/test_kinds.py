"""Where objects are, and how they are read."""

import msgspec
import pytest

from batuta.backends.kube.client.api import query
from batuta.backends.kube.client.errors import AlreadyExists, Conflict, Gone, Invalid, Unavailable, error_of
from batuta.backends.kube.client.kinds import JOB, NODE, POD
from batuta.backends.kube.client.transport import Backoff, RateLimit


def test_paths_of_objects() -> None:
    assert POD.path() == "/api/v1/pods"
    assert POD.path("n", "a", "status") == "/api/v1/namespaces/n/pods/a/status"
    assert JOB.path("n") == "/apis/batch/v1/namespaces/n/jobs"
    assert NODE.path("ignored", "n1.example.com") == "/api/v1/nodes/n1.example.com"


@pytest.mark.parametrize(
    ("name", "segment"),
    [("a/b", "a%2Fb"), ("..", "%2E%2E"), (".", "%2E"), ("a?b#c", "a%3Fb%23c"), ("é", "%C3%A9")],
)
def test_a_name_stays_one_segment_of_its_path(name: str, segment: str) -> None:
    assert POD.path("n", name) == f"/api/v1/namespaces/n/pods/{segment}"


def test_a_query_leaves_out_what_is_empty() -> None:
    assert query(labelSelector="a in (b,c)", limit=5, force="") == "?labelSelector=a%20in%20%28b%2Cc%29&limit=5"
    assert query(force="") == ""


def test_a_null_is_as_good_as_nothing() -> None:
    text = b'{"metadata":{"name":"a","labels":null},"status":{"conditions":[{"lastTransitionTime":null}]}}'
    read = POD.decode(text)
    assert (read.metadata.name, read.metadata.labels) == ("a", {})
    assert read.status.conditions[0].last_transition_time == ""


def test_an_object_of_another_shape_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        POD.decode(b'{"metadata":{"name":5}}')


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, b'{"reason":"AlreadyExists"}', AlreadyExists),
        (409, b'{"reason":"Conflict"}', Conflict),
        (410, b'{"reason":"Expired"}', Gone),
        (422, b"{}", Invalid),
        (502, b"<html>bad gateway</html>", Unavailable),
    ],
)
def test_an_answer_that_is_no_success_is_an_error_of_its_class(status: int, body: bytes, kind: type[Exception]) -> None:
    error = error_of(status, body, retry_after="3")
    assert type(error) is kind
    assert (error.status, error.retry_after_s) == (status, 3.0)


def test_waits_grow_to_their_longest_and_start_again() -> None:
    back_off = Backoff(first_s=1.0, longest_s=8.0)
    waits = [back_off.next_s() for _ in range(50)]
    for wait_s, top_s in zip(waits, [1.0, 2.0, 4.0, *([8.0] * 47)], strict=True):
        assert top_s / 2.0 <= wait_s <= top_s
    assert len(set(waits)) > 40  # they differ, so that clients spread out
    back_off.reset()
    assert back_off.next_s() <= 1.0


def test_a_rate_limit_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="positive rate"):
        RateLimit(per_s=0.0)
