"""What quota remembers from cycle to cycle makes it faster, and changes no answer."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.core import event as ev
from batuta.core.admission import Admitted
from batuta.core.job import DesiredState
from batuta.quota.admission import QuotaAdmission
from tests.support.examples import examples
from tests.support.quota_stories import Cluster
from tests.support.random_quota import changed, quotas

PATIENCE_S = 30.0
STEPS = 10


def happen(cluster: Cluster, data: st.DataObject, number: int) -> None:
    """Something small, as between two cycles."""
    names = cluster.world.jobs.ids
    kinds = ["nothing", "submit", "submit", "time", "lose", "return", "quota"]
    match data.draw(st.sampled_from(kinds + ["end", "end", "park", "run"] * bool(names))):
        case "submit":
            queue = data.draw(st.sampled_from([one.name for one in cluster.world.quota.cluster_queues]))
            low = data.draw(st.integers(1, 4))
            wishes = {
                "priority": data.draw(st.integers(0, 1)),
                "work_s": data.draw(st.sampled_from((5.0, 500.0))),
            }
            cluster.submit(f"later{number}", queue, low, min=low, max=low * 2, **wishes)
        case "time":
            cluster.passes(data.draw(st.sampled_from((1.0, PATIENCE_S))))
        case "lose":
            cluster.loses("n0")
        case "return":
            cluster.happens(ev.NodeReturned(cluster.now_s, "n0"))
        case "quota":
            cluster.quota_is(data.draw(changed(cluster.world.quota)))
        case "end":
            cluster.ends(data.draw(st.sampled_from(names)))
        case "park" | "run" as wish:
            name = data.draw(st.sampled_from(names))
            cluster.happens(
                ev.JobWished(cluster.now_s, name, DesiredState.PARK if wish == "park" else DesiredState.RUN)
            )


def as_values(admitted: Admitted) -> tuple[Any, ...]:
    """Everything that is said, so that it can be compared."""

    def listed(column: Any) -> Any:
        return None if column is None else np.asarray(column).tolist()

    budgets = [
        (listed(rows), gpus, [(listed(each), most) for each, most in beside]) for rows, gpus, beside in admitted.budgets
    ]
    return (
        listed(admitted.cap),
        admitted.refused,
        listed(admitted.gpu_type),
        budgets,
        admitted.wishes,
        list(admitted.flavors.items()),
        admitted.losers,
        admitted.contested,
    )


@settings(max_examples=examples(40))
@given(st.data())
def test_one_that_remembers_says_what_one_would_say_that_looks_for_the_first_time(
    data: st.DataObject,
) -> None:
    cluster = Cluster(data.draw(quotas(cpu=False)), (8, 4, 4), patience_s=PATIENCE_S)
    queues = [one.name for one in cluster.world.quota.cluster_queues]
    for number in range(12):
        cluster.submit(f"j{number}", queues[number % len(queues)], 1 + number % 4, min=1 + number % 4, max=8)
    for number in range(STEPS):
        now_s = cluster.now_s
        remembered = cluster.rules.admission.admit(cluster.world, now_s)
        anew = QuotaAdmission(PATIENCE_S).admit(cluster.world, now_s)
        assert as_values(remembered) == as_values(anew)
        if data.draw(st.booleans()):
            cluster.cycle(checked=False)
        happen(cluster, data, number)
