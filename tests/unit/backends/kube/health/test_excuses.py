"""A job that has failed is excused for what hit it, once, and nobody waits long for what may not come."""

import pytest

from batuta.backends.kube.health.controller import EXCUSE_WITHIN_S, HealthController
from batuta.backends.kube.health.state import Hit
from tests.unit.backends.kube.health.test_suspects import make_desk

JOB = "team-a/j"
NOW_S = 1000.0


@pytest.fixture
def desk() -> HealthController:
    return make_desk()


def test_what_may_still_be_told_is_waited_for_a_little_while(desk: HealthController):
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S) is None
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S + EXCUSE_WITHIN_S - 0.1) is None
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S + EXCUSE_WITHIN_S) == ""


def test_what_hit_it_excuses_it_once(desk: HealthController):
    desk.memory.hits[JOB] = Hit(NOW_S + 1, "Xid 79: off the bus")
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S + 1) == "Xid 79: off the bus"
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S + EXCUSE_WITHIN_S) == ""


def test_what_hit_an_earlier_run_is_no_excuse(desk: HealthController):
    desk.memory.hits[JOB] = Hit(899.0, "Xid 31: MMU page fault")
    assert desk.excuse(JOB, 900.0, NOW_S, NOW_S + EXCUSE_WITHIN_S) == ""


def test_it_does_not_begin_again_before_its_node_is_shut(desk: HealthController):
    # given that jobs of three namespaces have taken a node out, which is not stored yet, let alone to be seen
    for number in range(3):
        desk.suspect("n1", f"team-{number}/j", "straggler: rank 1")
    desk.drive(NOW_S)
    assert desk.memory.hits.keys() == {"team-2/j"}
    # then the last of them waits, but not for ever
    assert desk.excuse("team-2/j", 900.0, NOW_S, NOW_S + 1) is None
    reason = desk.excuse("team-2/j", 900.0, NOW_S, NOW_S + EXCUSE_WITHIN_S)
    assert reason == "jobs run slower here than elsewhere, in jobs of 3 namespaces"
