"""What a queue wants done about idle jobs stands in two annotations; all else is Kueue's own."""

import textwrap

import pytest

from batuta.core.quota import NO_WISH, IdleAction, IdleWish, Quota
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.export import quota_objects
from batuta.spec.kueue.files import read_quota_objects, read_quota_texts
from batuta.spec.problem import InputError

QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata:
  name: team
  annotations: {of_queue}
spec: {{namespaceSelector: {{}}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata:
  name: door
  namespace: a
  annotations: {of_door}
spec: {{clusterQueue: team}}
"""


def read(of_queue: str = "{}", of_door: str = "{}") -> Quota:
    text = textwrap.dedent(QUEUES.format(of_queue=of_queue, of_door=of_door))
    return merge(Quota(), read_quota_texts([("quota.yaml", text)]))


@pytest.mark.parametrize(
    ("of_queue", "of_door", "wanted"),
    [
        ("{}", "{}", NO_WISH),
        ("{other.example/key: x}", "{}", NO_WISH),
        ("{batuta.dev/idle-action: park}", "{}", IdleWish(IdleAction.PARK)),
        ("{batuta.dev/idle-after: 90m}", "{}", IdleWish(None, 5400.0)),
        (
            "{batuta.dev/idle-action: park, batuta.dev/idle-after: 1h}",
            "{batuta.dev/idle-action: report}",
            IdleWish(IdleAction.REPORT, 3600.0),
        ),
    ],
)
def test_the_wish_for_jobs_of_a_queue(of_queue: str, of_door: str, wanted: IdleWish):
    quota = read(of_queue, of_door)
    assert quota.idle_wish("a", "door") == wanted
    assert quota.idle_wish("a", "elsewhere") == NO_WISH
    # and it is still there when the objects were written down and read again
    again = merge(Quota(), read_quota_objects(quota_objects(quota)))
    assert again == quota


def test_what_makes_no_sense_is_refused_with_its_place():
    with pytest.raises(InputError) as refused:
        read("{batuta.dev/idle-action: kill}", "{batuta.dev/idle-after: soon}")
    first, second = refused.value.problems
    assert (first.line, first.message) == (6, "batuta.dev/idle-action cannot be 'kill'")
    assert first.fix == "one of report, shrink, park"
    assert "batuta.dev/idle-after 'soon' is not a duration" in second.message
    assert second.line == 14
