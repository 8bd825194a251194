"""What is done about a job that is held up depends on what it has to gain, and on where else it could be."""

import queue
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.job import DesiredState
from batuta.core.plan import Start
from batuta.core.reason import Reason
from batuta.engine.requests import EngineStopped, RequestFn
from batuta.engine.stragglers.controller import AVOID_S, TELL_AGAIN_S, StragglerController
from batuta.engine.stragglers.rank_watch import HeldUp
from batuta.prediction.hang import HangReport
from batuta.prediction.straggler import StragglerReport
from tests.support.worlds import NOW_S, at, carry_out, make_job, make_nodes, make_world

SLOW = StragglerReport((1,), 4, 0.4, 0.2, 12)
GANG = frozenset(("n0", "n1", "n2", "n3"))
EVERYWHERE = "n0:0 n1:0 n2:0 n3:0"


class Given:
    """A job on four nodes of some more, a desk, and a clock that is moved by hand."""

    def __init__(self, nodes: int = 5, **job: object) -> None:
        self.now_s = NOW_S
        changes = {"restart_s": 30.0, **job}
        self.world = make_world(make_nodes(*[1] * nodes), {"j": EVERYWHERE}, [make_job("j", 4, **changes)])
        self.suspects: queue.Queue[tuple[str, str, str]] = queue.Queue()
        self.said: list[ev.Event] = []
        self.desk = StragglerController(self._ask, self._suspect, lambda: self.now_s)

    def _ask(self, make: RequestFn) -> Future[Sequence[ev.Event]]:
        for event in make(self.world):
            apply(self.world, event)
            self.said.append(event)
        return Future()

    def _suspect(self, node: str, job: str, why: str) -> None:
        self.suspects.put((node, job, why))

    def finds(self, found: StragglerReport | HangReport, *nodes: str, may_move: bool = True) -> list[ev.Event]:
        self.said.clear()
        self.desk.found(HeldUp("j", found, nodes, GANG, may_move))
        return list(self.said)


def told(events: list[ev.Event]) -> ev.JobHeldUp:
    (found,) = (event for event in events if isinstance(event, ev.JobHeldUp))
    return found


def has_to_go(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.JobWished) and event.wish is DesiredState.EVICT for event in events)


def test_a_job_leaves_the_node_of_a_straggler_when_that_pays_and_there_is_another():
    given = Given()
    events = given.finds(SLOW, "n1")
    event = told(events)
    assert (event.reason, event.ranks, event.nodes) == (Reason.STRAGGLER, (1,), ("n1",))
    assert (event.avoid, event.until_s) == (("n1",), NOW_S + AVOID_S)
    assert has_to_go(events)
    node, job, why = given.suspects.get(timeout=10)
    assert (node, job) == ("n1", "j")
    assert why.startswith("straggler: job j is held up by a straggler: rank 1 of 4 needs 2.0 times as long")


@pytest.mark.parametrize(
    ("setting", "found", "nodes", "more"),
    [
        ({"nodes": 4}, SLOW, ("n1",), {}),
        ({"work_s": 60.0}, SLOW, ("n1",), {}),
        ({"restart_s": 1e5}, SLOW, ("n1",), {}),
        ({"checkpoint_interval_s": float("inf")}, SLOW, ("n1",), {}),
        ({}, SLOW, ("n1",), {"may_move": False}),
        ({}, StragglerReport((1, 2), 4, 0.4, 0.2, 12), (), {}),
    ],
    ids=["no other place", "nearly done", "dear to restart", "never saves", "told only", "nobody to blame"],
)
def test_else_it_is_only_told(setting, found, nodes, more):
    given = Given(**setting)
    events = given.finds(found, *nodes, **more)
    assert told(events).avoid == ()
    assert told(events).reason is (Reason.STRAGGLER if found.is_clear else Reason.UNEVEN_RANKS)
    assert not has_to_go(events)


def test_what_has_not_changed_is_told_again_only_after_a_while():
    given = Given(nodes=4)
    assert given.finds(SLOW, "n1")
    assert not given.finds(SLOW, "n1")
    assert given.finds(SLOW, "n2")
    given.now_s += TELL_AGAIN_S
    assert given.finds(SLOW, "n2")


def test_a_rank_that_is_slow_elsewhere_too_has_more_work_and_no_node_is_blamed_again():
    given = Given(nodes=8)
    assert has_to_go(given.finds(SLOW, "n1"))
    nodes = start_elsewhere(given)
    given.said.clear()
    given.desk.found(HeldUp("j", SLOW, (nodes[1],), frozenset(nodes)))
    assert (told(given.said).nodes, told(given.said).avoid) == ((), ())
    assert not has_to_go(given.said)
    other = StragglerReport((3,), 4, 0.4, 0.2, 12)
    given.desk.found(HeldUp("j", other, (nodes[3],), frozenset(nodes)))
    assert has_to_go(given.said), "another rank is another matter"


def test_a_place_that_becomes_free_later_is_taken_then():
    given = Given()
    apply(given.world, ev.NodeCordoned(NOW_S, "n4"))
    assert not has_to_go(given.finds(SLOW, "n1"))
    apply(given.world, ev.NodeUncordoned(NOW_S, "n4"))
    assert has_to_go(given.finds(SLOW, "n1"))


def test_a_job_that_hangs_is_restarted_without_the_node_that_is_to_blame():
    given = Given()
    events = given.finds(HangReport(1800.0, 1.0, (3,), 4), "n3")
    event = told(events)
    assert (event.reason, event.ranks, event.nodes, event.avoid) == (Reason.HANG, (3,), ("n3",), ("n3",))
    assert has_to_go(events)
    assert given.suspects.get(timeout=10)[2].startswith("hang: job j hangs")


def test_or_with_it_where_it_cannot_do_without():
    events = Given(nodes=4).finds(HangReport(1800.0, 1.0, (3,), 4), "n3")
    assert (told(events).nodes, told(events).avoid) == (("n3",), ())
    assert has_to_go(events)


def test_smaller_rather_than_with_it():
    given = Given(nodes=4, min=2)
    assert told(given.finds(HangReport(1800.0, 1.0, (3,), 4), "n3")).avoid == ("n3",)


def test_when_nobody_can_be_blamed_half_of_the_nodes_are_done_without_if_there_are_others():
    assert len(told(Given(nodes=8).finds(HangReport(1800.0, 1.0, (), 4))).avoid) == 2
    few = told(Given(nodes=5).finds(HangReport(1800.0, 1.0, (), 4)))
    assert (few.nodes, few.avoid) == ((), ())


def test_a_job_that_goes_on_after_that_tells_who_was_to_blame():
    given = Given(nodes=6, min=3)
    given.finds(HangReport(1800.0, 1.0, (), 4))
    again = given.world
    apply(again, ev.JobFound(NOW_S, "j", at("n0:0 n1:0 n2:0")))
    given.said.clear()
    given.now_s = NOW_S + 10_000.0
    given.desk.after_step(again)
    event = told(given.said)
    assert (event.nodes, event.avoid) == (("n3",), ("n3",))
    assert not has_to_go(given.said)
    assert given.suspects.get(timeout=10)[0] == "n3"


@pytest.mark.parametrize("guilty", sorted(GANG))
def test_a_job_gets_away_from_a_node_that_nobody_can_see_to_be_ill(guilty):
    """Given sixteen nodes, one of which makes the job hang: it goes on after three restarts at most."""
    given, nodes, restarts = Given(nodes=16), sorted(GANG), 0
    while guilty in nodes:
        restarts += 1
        given.said.clear()
        given.now_s += 3000.0
        given.desk.found(HeldUp("j", HangReport(1800.0, 1.0, (), 4), (), frozenset(nodes)))
        assert has_to_go(given.said)
        assert set(told(given.said).nodes) <= {guilty}, "nobody else is blamed"
        nodes = start_elsewhere(given)
    assert restarts <= 3
    given.said.clear()
    given.now_s += 50_000.0
    given.desk.after_step(given.world)
    assert all(set(event.nodes) <= {guilty} for event in given.said if isinstance(event, ev.JobHeldUp))


def start_elsewhere(given: Given) -> list[str]:
    """What the engine does then: the job leaves, and gets the first nodes that it does not avoid."""
    apply(given.world, ev.JobInterrupted(given.now_s, "j"))
    avoided = given.world.avoided["j"].nodes
    nodes = [f"n{k}" for k in range(16) if not avoided >> k & 1][:4]
    placement = at(" ".join(f"{node}:0" for node in nodes))
    carry_out(given.world, [Start("j", placement, Reason.ADMITTED)], given.now_s)
    apply(given.world, ev.JobStarted(given.now_s, "j"))
    return nodes


def test_nothing_is_done_about_a_job_that_is_elsewhere_by_now_or_over():
    given = Given()
    given.desk.found(HeldUp("j", SLOW, ("n1",), frozenset(("n0", "n4"))))
    given.desk.found(HeldUp("gone", SLOW, ("n1",), GANG))
    apply(given.world, ev.JobWished(NOW_S, "j", DesiredState.PARK))
    given.finds(SLOW, "n1")
    assert given.said == []


def test_an_engine_that_has_stopped_is_not_asked_any_more():
    def stopped(make: RequestFn) -> Future[Sequence[ev.Event]]:
        raise EngineStopped

    StragglerController(stopped, lambda *args: None).found(HeldUp("j", SLOW, ("n1",), GANG))
