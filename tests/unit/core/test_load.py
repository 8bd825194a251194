"""What is expected of a job is what jobs of its name used."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import Share
from batuta.core.trial import TrialMeasurement, TrialOutcome
from batuta.core.utilisation import MOST_NAMES, expected_load, learn_name
from batuta.core.world import World
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world


def test_reports_teach_what_a_job_uses():
    world = make_world(make_nodes(2), {"j": "n0:01"}, [make_job("j", 2, application="resnet")])
    for number, busy in enumerate((0.8, 0.8, 0.4)):
        apply(world, ev.GpusUsed(NOW_S + 30.0 * number, "n0", (busy, 0.1)))
    next_one = make_job("k", application="resnet")
    assert expected_load(world, next_one) == pytest.approx(0.8 - 0.3 * 0.4)
    assert expected_load(world, make_job("k", application="bert")) == 0.0


@pytest.mark.parametrize(
    ("outcome", "busy", "load"),
    [
        (TrialOutcome.MEASURED, 0.6, 0.6),
        (TrialOutcome.MEASURED, None, 0.0),
        (TrialOutcome.FAILED, 0.6, 0.0),
    ],
)
def test_a_trial_run_teaches_it_before_the_job_has_run(outcome: TrialOutcome, busy: float | None, load: float):
    world = World()
    apply(
        world,
        ev.TrialMeasured(
            NOW_S,
            "j",
            TrialMeasurement("j-t2", 2, outcome, application="resnet", utilisation=busy),
        ),
    )
    assert expected_load(world, make_job("j", application="resnet", share=Share())) == load


@pytest.mark.parametrize(
    ("share", "load"),
    [
        (Share(compute_percent=50), 0.5),
        (Share(compute_percent=90), 0.8),
        (Share(compute_percent=50, soft=True), 0.8),
        (Share(memory_mib=100), 0.8),
    ],
)
def test_nobody_uses_more_than_a_hard_share(share: Share, load: float):
    world = World()
    learn_name(world, "resnet", 0.8)
    assert expected_load(world, make_job("k", application="resnet", share=share)) == load


def test_names_that_nobody_uses_are_forgotten():
    world = World()
    for number in range(MOST_NAMES + 10):
        learn_name(world, "often", 0.5)
        learn_name(world, f"once-{number}", 0.5)
    assert len(world.loads) == MOST_NAMES
    assert "often" in world.loads
    assert "once-0" not in world.loads
