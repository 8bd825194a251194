"""A job that a node held up is not placed there for a while."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.reason import Reason
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world


def test_the_nodes_are_avoided_until_the_time_has_come():
    world = make_world(make_nodes(1, 1, 1), jobs=[make_job("j")])
    apply(world, ev.JobHeldUp(NOW_S, "j", Reason.HANG, avoid=("n1", "gone"), until_s=NOW_S + 60))
    assert (world.avoided["j"].nodes, world.avoided["j"].until_s) == (0b010, NOW_S + 60)
    apply(world, ev.JobHeldUp(NOW_S + 1, "j", Reason.HANG, avoid=("n2",), until_s=NOW_S + 30))
    assert (world.avoided["j"].nodes, world.avoided["j"].until_s) == (0b110, NOW_S + 60)
    apply(world, ev.TimePassed(NOW_S + 60))
    assert "j" not in world.avoided


def test_nothing_is_noted_of_jobs_that_are_over_or_when_nobody_is_to_blame():
    world = make_world(make_nodes(1), jobs=[make_job("j")])
    apply(world, ev.JobHeldUp(NOW_S, "j", Reason.HANG))
    apply(world, ev.JobHeldUp(NOW_S, "gone", Reason.HANG, avoid=("n0",), until_s=NOW_S + 60))
    assert world.avoided == {}
