"""Where the GPU time goes: small stories whose every GPU-second can be counted by hand."""

import pytest

from batuta.core import event as ev
from batuta.core.cluster import Node
from batuta.core.job import DesiredState, Job, JobState, Share
from batuta.core.plan import Command, Plan, Preempt, Resize, Start, Stop, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.report.gpu_usage import DAY_S, UsageAccounting, UsageReport
from batuta.report.gpu_usage_page import render_usage
from tests.support.worlds import at, make_job
from tests.unit.report.test_page import EVIL, Page


class Story:
    """A cluster with one node of four GPUs, from second 0 on."""

    def __init__(self, to_s: float, from_s: float = 0.0, gpus: int = 4) -> None:
        self.world = World()
        self.ledger = UsageAccounting(self.world, from_s, to_s)
        self.take(ev.NodeAdded(0.0, Node("n0", gpus)))

    def take(self, event: ev.Event) -> None:
        self.ledger.take(event)

    def plan(self, now_s: float, *commands: Command) -> None:
        self.take(ev.Planned(now_s, Plan(self.world.version, now_s, "test", commands, (), no_decisions())))

    def submit(self, now_s: float, job: Job) -> None:
        self.take(ev.JobSubmitted(now_s, job))

    def start(self, now_s: float, job: str, where: str, runs_s: float | None = None) -> None:
        self.plan(now_s, Start(job, at(where), Reason.ADMITTED))
        self.take(ev.JobStarted(now_s if runs_s is None else runs_s, job))

    def end(self) -> UsageReport:
        return self.ledger.finish()


def test_a_job_that_starts_runs_and_ends() -> None:
    story = Story(to_s=100.0)
    story.submit(10.0, make_job("a", 2, queue="team"))
    story.start(20.0, "a", "n0:01", runs_s=25.0)
    story.take(ev.JobEnded(75.0, "a", JobState.SUCCEEDED))
    waste = story.end()
    spent, left = waste.queues()["team"], waste.unallocated()
    assert (spent.waiting_gpu_s, spent.restarting_gpu_s, spent.used_gpu_s) == (20.0, 10.0, 100.0)
    assert spent.lost_gpu_s == 0.0
    assert (left.capacity_gpu_s, left.idle_gpu_s, left.fragmented_gpu_s) == (400.0, 290.0, 0.0)


@pytest.mark.parametrize(
    ("interval_s", "crash", "lost_s"),
    [
        (None, False, 0.0),  # it is asked to save before it is stopped
        (None, True, 50.0),  # nobody could ask
        (20.0, False, 10.0),  # it saved 40 s after its start, and does not when asked
        (20.0, True, 10.0),
        (1e9, False, 50.0),  # it never saves
    ],
)
def test_work_after_the_last_checkpoint_is_lost(interval_s, crash, lost_s) -> None:
    story = Story(to_s=60.0)
    story.submit(0.0, make_job("a", 2, checkpoint_interval_s=interval_s))
    story.start(0.0, "a", "n0:01")
    if crash:
        story.take(ev.JobInterrupted(50.0, "a"))
    else:
        story.plan(50.0, Preempt("a", Reason.EVICTED))
    spent = story.end().job_usage()
    assert (spent.lost_gpu_s, spent.used_gpu_s) == (2 * lost_s, 2 * (50.0 - lost_s))
    assert spent.waiting_gpu_s == 2 * 10.0


@pytest.mark.parametrize(
    ("saved", "lost_s"),
    [
        ((), 50.0),  # none was seen
        (((30.0, None),), 50.0),  # it would save when asked, and did not
        (((30.0, 20.0),), 30.0),  # what came after the last one
        (((30.0, 20.0), (52.0, 51.0)), 0.0),  # it saved when it was asked
        (((52.0, 20.0),), 30.0),  # the one before that was heard of late
    ],
)
def test_a_restart_loses_what_came_after_the_last_checkpoint_that_was_seen(saved, lost_s) -> None:
    story = Story(to_s=100.0)
    story.submit(0.0, make_job("a", 1, max=4, restartable=False))
    story.start(0.0, "a", "n0:0123")
    told = [ev.JobCheckpointed(time_s, "a", saved_s) for time_s, saved_s in saved]
    for event in (event for event in told if event.time_s < 50.0):
        story.take(event)
    story.plan(50.0, Resize("a", at("n0:01"), Reason.SHRANK_UNSAVED))
    for event in (event for event in told if event.time_s > 50.0):
        story.take(event)
    story.take(ev.JobStarted(60.0, "a"))
    spent = story.end().job_usage()
    assert (spent.lost_gpu_s, spent.used_gpu_s) == (4 * lost_s, 4 * (50.0 - lost_s) + 2 * 40.0)
    assert spent.restarting_gpu_s == 2 * 10.0


@pytest.mark.parametrize("saved", [False, True])
def test_a_crash_goes_back_to_the_last_checkpoint_that_was_seen(saved) -> None:
    story = Story(to_s=60.0)
    story.submit(0.0, make_job("a", 2, max=4, restartable=False))
    story.start(0.0, "a", "n0:01")
    if saved:
        story.take(ev.JobCheckpointed(41.0, "a", 40.0))
    story.take(ev.JobInterrupted(50.0, "a"))
    spent = story.end().job_usage()
    assert (spent.lost_gpu_s, spent.used_gpu_s) == ((20.0, 80.0) if saved else (100.0, 0.0))


def test_of_a_job_that_is_declared_restartable_nothing_is_lost_by_a_plan() -> None:
    story = Story(to_s=100.0)
    story.submit(0.0, make_job("a", 1, max=4))
    story.start(0.0, "a", "n0:0123")
    story.plan(50.0, Resize("a", at("n0:01"), Reason.SHRANK))
    story.take(ev.JobStarted(60.0, "a"))
    assert story.end().job_usage().lost_gpu_s == 0.0


def test_whom_somebody_ends_loses_nothing() -> None:
    story = Story(to_s=60.0)
    story.submit(0.0, make_job("a", 2, checkpoint_interval_s=1e9))
    story.start(0.0, "a", "n0:01")
    story.plan(50.0, Stop("a", Reason.CANCELLING))
    story.take(ev.JobEnded(55.0, "a", JobState.CANCELLED))
    spent = story.end().job_usage()
    assert (spent.lost_gpu_s, spent.used_gpu_s, spent.waiting_gpu_s) == (0.0, 100.0, 0.0)


def test_a_resize_costs_its_restart_at_the_new_size() -> None:
    story = Story(to_s=100.0)
    story.submit(0.0, make_job("a", 2, min=1, max=4))
    story.start(0.0, "a", "n0:0")
    story.plan(40.0, Resize("a", at("n0:0123"), Reason.FULL_SIZE))
    story.take(ev.JobStarted(50.0, "a"))
    spent = story.end().job_usage()
    assert spent.used_gpu_s == 40.0 + 4 * 50.0
    assert spent.restarting_gpu_s == 4 * 10.0
    assert spent.waiting_gpu_s == 40.0  # one GPU of the two that it asked for


@pytest.mark.parametrize(
    ("waiting", "fragmented"),
    [
        (None, 0.0),
        (make_job("b", 1), 0.0),  # it could have them
        (make_job("b", 4), 20.0),  # too few for its smallest size
        (make_job("b", 4, min=2, max=4), 0.0),
        (make_job("b", 2, gpu_types=(("other", 1.0),)), 0.0),  # it does not want such GPUs
    ],
)
def test_free_gpus_that_are_of_no_use_to_who_waits_are_fragments(waiting, fragmented) -> None:
    story = Story(to_s=10.0)
    story.submit(0.0, make_job("a", 2))
    story.start(0.0, "a", "n0:01")
    if waiting is not None:
        story.submit(0.0, waiting)
    left = story.end().unallocated()
    assert (left.fragmented_gpu_s, left.idle_gpu_s) == (fragmented, 20.0 - fragmented)


def test_a_replica_needs_all_its_gpus_on_one_node() -> None:
    story = Story(to_s=10.0)
    story.take(ev.NodeAdded(0.0, Node("n1", 3)))
    story.submit(0.0, make_job("a", 1))
    story.start(0.0, "a", "n0:0")
    story.submit(0.0, make_job("b", 4, min=2, max=4, gpus_per_replica=2))
    # One GPU of three on each node is over.
    assert story.end().unallocated().fragmented_gpu_s == 20.0


def test_who_is_parked_waits_for_nothing() -> None:
    story = Story(to_s=10.0)
    story.submit(0.0, make_job("a", 2))
    story.take(ev.JobWished(4.0, "a", DesiredState.PARK))
    assert story.end().job_usage().waiting_gpu_s == 8.0


def test_gpus_that_are_ill_cordoned_or_gone() -> None:
    story = Story(to_s=40.0)
    story.take(ev.GpuFailed(10.0, "n0", 0))
    story.take(ev.NodeCordoned(20.0, "n0"))
    story.take(ev.NodeLost(30.0, "n0"))
    left = story.end().unallocated()
    assert left.capacity_gpu_s == 4 * 30.0  # a node that is gone is no capacity
    assert left.unavailable_gpu_s == 1 * 10.0 + 4 * 10.0
    assert left.idle_gpu_s == 40.0 + 30.0


def test_a_card_that_jobs_share_is_one_card() -> None:
    story = Story(to_s=10.0, gpus=1)
    for name, queue in (("a", "x"), ("b", "y")):
        story.submit(0.0, make_job(name, queue=queue, share=Share(100, 40)))
    story.start(0.0, "a", "n0:0")
    story.start(4.0, "b", "n0:0")
    queues = story.end().queues()
    assert queues["x"].used_gpu_s == 4.0 + 3.0
    assert queues["y"].used_gpu_s == 3.0


def test_each_day_has_an_account_of_its_own() -> None:
    story = Story(from_s=DAY_S / 2, to_s=2 * DAY_S + 100.0)
    story.submit(0.0, make_job("a", 2))
    story.start(0.0, "a", "n0:01")
    story.take(ev.JobEnded(2 * DAY_S + 50.0, "a", JobState.SUCCEEDED))
    days = story.end().days
    assert [day.day for day in days] == ["1970-01-01", "1970-01-02", "1970-01-03"]
    assert [day.job_usage.used_gpu_s for day in days] == [DAY_S, 2 * DAY_S, 100.0]
    assert [day.unallocated.capacity_gpu_s for day in days] == [2 * DAY_S, 4 * DAY_S, 400.0]


# ------------------------------------------------------------------------------------------------------ page


def some_waste(queue: str = "team") -> UsageReport:
    story = Story(to_s=3 * DAY_S)
    story.submit(0.0, make_job("a", 2, queue=queue))
    story.start(0.0, "a", "n0:01", runs_s=3600.0)
    return story.end()


def test_the_page_says_what_the_account_says() -> None:
    page = Page(render_usage(some_waste().plain()))
    text = " ".join(page.text)
    assert "49 % of 288 GPU-hours were used" in text
    assert "By queue and day" in text
    assert {"0", "25", "50", "75", "100"} <= set(page.text), "the scale of 96 GPU-hours a day"
    assert "progress after the last checkpoint, thrown away" in text
    assert page.tags.count("rect") == 3 * 2 + 1  # used and idle on three days, restarts on the first
    assert "script" not in page.tags
    assert not [value for _, name, value in page.attributes if name in ("src", "href")]


def test_one_day_is_not_told_twice() -> None:
    story = Story(to_s=DAY_S)
    story.submit(0.0, make_job("a", 2, queue="team"))
    story.start(0.0, "a", "n0:01")
    text = " ".join(Page(render_usage(story.end().plain())).text)
    assert "By queue" in text
    assert "By queue and day" not in text


def test_a_page_of_nothing_is_a_page() -> None:
    nothing = UsageAccounting(World(), 0.0, 10.0).finish(("the journal is empty",))
    text = " ".join(Page(render_usage(nothing.plain())).text)
    assert "There were no GPUs" in text
    assert "the journal is empty" in text


def test_names_of_queues_mean_themselves() -> None:
    page = Page(render_usage(some_waste(EVIL).plain()))
    assert "script" not in page.tags
    assert any(EVIL in text for text in page.text)


def test_what_is_held_is_used_as_far_as_the_gpus_are_busy() -> None:
    """Given reports of use, when the account is closed, then used is what Utilisation shows, over time."""
    story = Story(to_s=100.0)
    story.take(ev.GpusUsed(0.0, "n0", (0.0, 0.0, 0.0, 0.0)))
    story.submit(0.0, make_job("a", 4, user="ana"))
    story.start(0.0, "a", "n0:0123")
    story.take(ev.GpusUsed(20.0, "n0", (1.0, 1.0, 0.5, 0.5)))
    story.take(ev.GpusUsed(60.0, "n0", (None, None, None, None)))
    story.take(ev.JobEnded(80.0, "a", JobState.SUCCEEDED))
    spent = story.end().users()["ana"]
    # 20 s idle, 40 s at three quarters, 20 s of which nobody knows: those count as used.
    assert (spent.used_gpu_s, spent.unused_gpu_s) == (120.0 + 80.0, 80.0 + 40.0)
    assert spent.held_gpu_s == 320.0


def test_users_and_queues_add_up_to_the_same() -> None:
    story = Story(to_s=100.0)
    story.submit(0.0, make_job("a", 1, user="ana", queue="x"))
    story.submit(0.0, make_job("b", 2, user="ben", queue="x"))
    story.submit(0.0, make_job("c", 1, user="ana", queue="y"))
    story.start(0.0, "a", "n0:0")
    story.start(0.0, "b", "n0:12")
    story.start(0.0, "c", "n0:3")
    waste = story.end()
    assert {user: own.used_gpu_s for user, own in waste.users().items()} == {"ana": 200.0, "ben": 200.0}
    assert {queue: own.used_gpu_s for queue, own in waste.queues().items()} == {"x": 300.0, "y": 100.0}
    plain = waste.plain()
    assert [own["user"] for own in plain["users"]] == ["ana", "ben"]
    assert plain["days"][0]["users"] == plain["users"]
    assert ">ben<" in render_usage(plain)
