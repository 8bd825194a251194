"""What is seen of many jobs at once is what one comes to who looks at one claim after the other."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core.admission import Admitted
from batuta.core.quota import ClusterQueue, Preemption, Quota, Reclaim, Strategy, Within
from batuta.quota.admission import QuotaAdmission
from batuta.quota.own_quota import NOBODY
from batuta.quota.standstill import Standstill, Stuck
from tests.properties.test_quota_memory import as_values, happen
from tests.support.examples import examples
from tests.support.quota_stories import Cluster
from tests.support.quotas import gpus, quota_of
from tests.support.random_quota import quotas

PATIENCE_S = 30.0


@contextmanager
def one_after_the_other() -> Iterator[None]:
    """Nothing is seen at once: every line is filled, and every claim is looked at, by itself."""
    with ExitStack() as stack:
        stack.enter_context(patch("batuta.quota.plain_quota._is_plain", lambda root, queues: False))
        stack.enter_context(patch.object(Standstill, "find", lambda self, tree_of: Stuck()))
        stack.enter_context(
            patch("batuta.quota.serving.fill", lambda queues, lines, *columns: [NOBODY] * len(lines))
        )
        yield


@st.composite
def plain_quotas(draw: Any) -> Quota:
    """Queues that lend all they have, in one cohort or in none: here nearly everything is seen at once."""
    strategies = [Strategy.BEST_EFFORT_FIFO] * 3 + [Strategy.STRICT_FIFO]
    queues = [
        ClusterQueue(
            name,
            draw(st.sampled_from(("team", "team", ""))),
            gpus(draw(st.integers(1, 5)), draw(st.sampled_from((None, None, 1)))),
            draw(st.sampled_from(strategies)),
            Preemption(draw(st.sampled_from(list(Within))), draw(st.sampled_from(list(Reclaim)))),
        )
        for name in "abc"
    ]
    return quota_of(*queues)


def said(cluster: Cluster, without: frozenset[int]) -> Admitted:
    return QuotaAdmission(PATIENCE_S).admit(cluster.world, cluster.now_s, without)


def come(cluster: Cluster, data: st.DataObject, name: str) -> None:
    """Some jobs are submitted, and wait until those who were there before have lost their patience."""
    queues = [one.name for one in cluster.world.quota.cluster_queues]
    for number in range(data.draw(st.integers(2, 8))):
        low = data.draw(st.integers(1, 4))
        wishes = {
            "priority": data.draw(st.integers(0, 1)),
            "work_s": data.draw(st.sampled_from((5.0, 50.0, 500.0))),
            "cpus_milli_per_gpu": data.draw(st.sampled_from((0, 0, 1000))),
        }
        queue = data.draw(st.sampled_from(queues))
        cluster.submit(f"{name}{number}", queue, low, min=low, max=low * 2, **wishes)
    cluster.passes(data.draw(st.sampled_from((1.0, PATIENCE_S))))


@settings(max_examples=examples(50))
@given(st.data())
def test_many_at_once_are_told_what_each_would_be_told_alone(data: st.DataObject) -> None:
    quota = data.draw(st.one_of(plain_quotas(), plain_quotas(), plain_quotas(), quotas()))
    cluster = Cluster(quota, (8, 4, 4), patience_s=PATIENCE_S)
    for name in "xyz":
        come(cluster, data, name)
        rows = range(cluster.world.jobs.n)
        without = data.draw(st.one_of(st.just(frozenset[int]()), st.frozensets(st.sampled_from(rows))))
        at_once = said(cluster, without)
        with one_after_the_other():
            alone = said(cluster, without)
        assert as_values(at_once) == as_values(alone)
        cluster.cycle(checked=False)
        happen(cluster, data, ord(name))
