"""What ranks report is compared, and what is found names the nodes that they are on."""

import math
from typing import Any

import pytest

from batuta.cli.server import Stragglers
from batuta.engine.stragglers.rank_watch import RankRules, RankWatch, StragglerAction
from batuta.prediction.hang import HangReport, HangRules
from batuta.prediction.straggler import StragglerReport
from batuta.spec.progress import ProgressReport
from batuta.spec.task_resources import STRAGGLER_WORDS, RankSettings

PLACES = ("a", "b", "c", "d")
RULES = RankRules(hang=HangRules(after_s=60.0))


def watching(rules: RankRules = RULES, places: tuple[str, ...] = PLACES) -> RankWatch:
    watch = RankWatch("7", rules)
    watch.began(places, PLACES, run=3)
    return watch


def steps(watch: RankWatch, count: int, slow_rank: int = -1, **more: Any) -> None:
    """Four ranks report every second."""
    for step in range(1, count + 1):
        for rank in range(4):
            own_s = (0.4 if rank == slow_rank else 0.2,)
            watch.hear(ProgressReport(rank=rank, replica=rank, step=step, own_s=own_s, **more), float(step))


def test_a_slow_rank_is_told_with_its_node():
    watch = watching()
    steps(watch, 20, slow_rank=2)
    (told,) = watch.look(20.0)
    assert isinstance(told.found, StragglerReport)
    assert (told.job, told.nodes, told.gang, told.may_move) == ("7", ("c",), frozenset(PLACES), True)
    assert watch.look(20.5) == [], "each finding is told once"


def test_several_ranks_of_a_replica_are_on_its_node():
    watch = watching(places=("a", "b"))
    for step in range(1, 20):
        for rank in range(8):
            own_s = (0.4 if rank in (5, 6) else 0.2,)
            watch.hear(ProgressReport(rank=rank, replica=rank // 4, step=step, own_s=own_s), float(step))
    (told,) = watch.look(20.0)
    assert told.nodes == ("b",)


def test_rank_0_may_speak_for_all():
    watch = watching()
    for step in range(2, 60, 2):
        own_s = (0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4, 0.4)
        watch.hear(ProgressReport(rank=0, replica=0, step=step, own_s=own_s, own_steps=2), float(step))
    told = watch.look(60.0)
    assert told[0].nodes == ("d",)
    assert isinstance(told[0].found, StragglerReport)
    assert told[0].found.usual_s == pytest.approx(0.1)


def test_nobody_is_blamed_where_nobody_knows_which_rank_is_where():
    watch = watching(places=())
    steps(watch, 20, slow_rank=2)
    (told,) = watch.look(20.0)
    assert told.nodes == ()


def test_reports_of_a_run_that_is_over_do_not_count():
    watch = watching()
    steps(watch, 40, slow_rank=2, restart=2)
    assert watch.look(4000.0) == []


def test_a_new_run_is_compared_anew():
    watch = watching()
    steps(watch, 10, slow_rank=2)
    watch.began(PLACES, PLACES, run=4)
    steps(watch, 10, slow_rank=2)
    assert watch.look(20.0) == []


@pytest.mark.parametrize(("action", "told"), [("report", [False]), ("off", [])])
def test_a_job_may_be_left_where_it_is_or_not_be_looked_at(action, told):
    watch = watching(RULES.for_job(RankSettings(stragglers=action)))
    steps(watch, 20, slow_rank=2)
    assert [one.may_move for one in watch.look(20.0)] == told


def hangs(watch: RankWatch, until_s: int) -> list[tuple[int, HangReport]]:
    found = [(now_s, one.found) for now_s in range(20, until_s) for one in watch.look(float(now_s))]
    return [(now_s, one) for now_s, one in found if isinstance(one, HangReport)]


def test_a_hang_is_told_once_with_the_rank_that_does_not_wait():
    watch = watching()
    steps(watch, 20)
    for rank in (0, 1, 2):
        watch.hear(ProgressReport(rank=rank, replica=rank, is_waiting=True), 25.0)
    ((now_s, silence),) = hangs(watch, 200)
    assert now_s == 80
    assert silence.ranks == (3,)
    assert watch.is_hung
    watch.began(PLACES, PLACES, run=4)
    assert not watch.is_hung


def test_a_job_that_has_done_all_its_steps_may_take_its_time():
    watch = watching()
    steps(watch, 20, total_steps=20)
    assert hangs(watch, 5000) == []


def test_never_is_what_a_job_may_want():
    watch = watching(RULES.for_job(RankSettings(hang_after_s=math.inf)))
    steps(watch, 20)
    assert hangs(watch, 5000) == []


def test_all_who_speak_of_it_have_the_same_words():
    words = [action.value for action in StragglerAction]
    assert words == list(STRAGGLER_WORDS) == [word.value for word in Stragglers]


def test_what_a_job_wants_stands_before_what_the_server_has():
    rules = RankRules(StragglerAction.REPORT, hang=HangRules(after_s=5.0))
    assert rules.for_job(RankSettings()) == rules
    own = rules.for_job(RankSettings(60.0, "move"))
    assert (own.hang.after_s, own.action) == (60.0, StragglerAction.MOVE)
