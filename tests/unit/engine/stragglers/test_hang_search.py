"""The node that makes a job hang is found by where the job hangs again, and where it does not."""

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import JobState
from batuta.engine.stragglers.controller import HangSearch
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world

NODES = frozenset(f"n{k}" for k in range(8))


def running_on(*nodes: str):
    return make_world(make_nodes(*[1] * 8), {"j": " ".join(f"{node}:0" for node in nodes)}, [make_job("j", len(nodes))])


def test_after_a_hang_half_of_the_nodes_are_done_without():
    lead = HangSearch().hung("j", NODES, 10.0)
    assert not lead.guilty
    assert len(lead.avoid) == 4
    assert lead.avoid < NODES


def test_hangs_that_have_one_node_in_common_are_its_fault():
    search = HangSearch()
    search.hung("j", frozenset("abcd"), 10.0)
    lead = search.hung("j", frozenset("axyz"), 10.0)
    assert (lead.guilty, lead.avoid) == (frozenset("a"), frozenset("a"))


def test_a_run_that_goes_on_long_enough_clears_its_nodes_once():
    world, search = running_on("n0", "n1", "n2"), HangSearch()
    began_s = float(world.jobs.last_start_s[0])
    search.hung("j", frozenset(("n0", "n1", "n2", "n3")), 100.0)
    assert search.survivors(world, began_s + 199.0) == {}
    lead = search.survivors(world, began_s + 201.0)["j"]
    assert lead.guilty == {"n3"}
    assert search.survivors(world, began_s + 1000.0) == {}


def test_what_contradicts_itself_is_forgotten():
    world, search = running_on("n0", "n1"), HangSearch()
    search.hung("j", frozenset(("n0", "n1")), 10.0)
    lead = search.survivors(world, NOW_S + 100.0)["j"]
    assert not lead.guilty
    lead = search.hung("j", frozenset(("n4", "n5")), 10.0)
    assert len(lead.avoid) == 1, "as if it were the first"


def test_jobs_that_are_over_are_forgotten():
    world, search = running_on("n0"), HangSearch()
    search.hung("j", frozenset(("n0", "n1")), 10.0)
    apply(world, ev.JobEnded(NOW_S, "j", JobState.SUCCEEDED))
    assert search.survivors(world, NOW_S + 100.0) == {}
    assert not search.searched
