"""What a server learns from its jobs, and tells about new ones."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.curve import power_curve
from batuta.core.job import Job, JobState, Progress
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.trial import TrialMeasurement, TrialOutcome, TrialPlan
from batuta.core.world import World
from batuta.engine.history import SETTING, History
from tests.support.worlds import at


class Settings(dict[str, str]):
    """Texts that outlive the server, for as long as the test lasts."""

    def put(self, key: str, value: str) -> None:
        self[key] = value


class Cluster:
    """A World that tells an experience of all that happens, as the engine does."""

    def __init__(self, settings: Settings) -> None:
        self.world = World()
        self.clock_s = 0.0
        self.experience = History(settings, boost=False, clock=lambda: self.clock_s)
        self.happens(ev.NodeAdded(0.0, Node("n0", 8)))

    def happens(self, event: ev.Event) -> None:
        apply(self.world, event)
        self.experience.saw(self.world, event)
        self.experience.after_step(self.world)

    def run(self, name: str, wall_s: float, gpus: int = 1, samples_per_s: float | None = None) -> Job:
        """A job comes, runs and ends."""
        now_s = self.world.now_s
        asked = open_job(name, now_s, gpus, gpus)
        job = self.experience.advise(asked, open_up_to=None, for_good=False)
        self.happens(ev.JobSubmitted(now_s, job))
        start = Start(name, at("n0:" + "".join(map(str, range(gpus)))), Reason.ADMITTED)
        plan = Plan(self.world.version, now_s, "test", (start,), (), no_decisions())
        self.happens(ev.Planned(now_s, plan))
        self.happens(ev.JobStarted(now_s, name))
        if samples_per_s is not None:
            progress = Progress(samples_per_s=samples_per_s)
            self.happens(ev.JobProgressed(now_s + wall_s / 2, name, 10.0, progress=progress))
        end = ev.JobEnded(now_s + wall_s, name, JobState.SUCCEEDED)
        self.happens(end)
        self.experience.saw(self.world, end)  # told twice, it counts once
        return job


def open_job(name: str, submit_s: float, low: int = 1, high: int = 8) -> Job:
    curve = power_curve(high, 0.9)
    return Job(name, submit_s, size=low, min=low, max=high, application="resnet", user="ana", curve=curve)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + seconds
    while not holds() and time.monotonic() < until_s:
        time.sleep(0.01)
    return holds()


def advised(cluster: Cluster) -> Job:
    return cluster.experience.advise(open_job("new", 1.0), open_up_to=8, for_good=False)


@pytest.fixture
def settings() -> Settings:
    return Settings()


def test_nothing_is_told_before_anything_has_ended(settings: Settings) -> None:
    job = advised(Cluster(settings))
    assert job.expected is None
    assert job.work_s == Job("x", 0.0).work_s
    assert job.size_choice is not None
    assert job.size == 1


def test_jobs_that_ended_tell_how_long_the_next_one_takes(settings: Settings) -> None:
    cluster = Cluster(settings)
    for number in range(6):
        cluster.run(f"j{number}", 100.0 + number)
    assert within(20.0, lambda: advised(cluster).expected is not None)
    job = advised(cluster)
    assert job.expected is not None
    assert job.work_s == job.expected.p50_s == pytest.approx(102.0, rel=0.1)
    assert job.expected.jobs >= 5
    assert job.expected.p10_s <= job.expected.p50_s <= job.expected.p90_s


def test_what_was_told_is_measured_by_what_came(settings: Settings) -> None:
    cluster = Cluster(settings)
    for number in range(5):
        cluster.run(f"j{number}", 100.0)
    assert within(20.0, lambda: advised(cluster).expected is not None)
    assert cluster.experience.calibration().jobs == 0
    cluster.run("short", 10.0)
    cluster.run("long", 1e6)
    found = cluster.experience.calibration()
    assert (found.jobs, found.total) == (2, 2)
    assert dict(found.coverage)[0.9] == 0.5


def test_speeds_of_earlier_jobs_choose_the_size_and_shape_the_curve(settings: Settings) -> None:
    cluster = Cluster(settings)
    for gpus, rate in ((1, 10.0), (2, 18.0), (4, 20.0)):
        cluster.run(f"j{gpus}", 50.0, gpus, rate)
    job = advised(cluster)
    assert job.size == 2
    assert job.curve.at(2) == pytest.approx(1.8)
    assert job.size_choice is not None
    assert "2 GPUs give 9" in job.size_choice.sentence


def test_a_server_that_starts_again_knows_what_it_knew(settings: Settings) -> None:
    cluster = Cluster(settings)
    for number, (gpus, rate) in enumerate(((1, 10.0), (2, 18.0), (4, 20.0)) * 2):
        cluster.run(f"j{number}", 50.0, gpus, rate)
    cluster.experience.finish()
    assert SETTING in settings

    again = History(settings, boost=False)
    again.recall(cluster.world)

    def told() -> Job:
        return again.advise(open_job("new", 1.0), open_up_to=8, for_good=False)

    assert within(20.0, lambda: told().expected is not None)
    assert told().size_choice == advised(cluster).size_choice


def test_jobs_that_come_as_events_are_advised_on_their_way(settings: Settings) -> None:
    cluster, told = Cluster(settings), list[ev.Event]()
    for gpus, rate in ((1, 10.0), (2, 18.0)):
        cluster.run(f"j{gpus}", 50.0, gpus, rate)
    tell = cluster.experience.advising(told.append)
    tell(ev.JobSubmitted(200.0, open_job("new", 200.0, 2, 2), task="{}"))
    tell(ev.TimePassed(201.0))
    first, second = told
    assert isinstance(first, ev.JobSubmitted)
    assert first.job.curve.at(2) == pytest.approx(1.8)
    assert (first.job.size, first.job.size_choice, first.task) == (2, None, "{}")
    assert second == ev.TimePassed(201.0)


def test_two_jobs_of_one_id_count_as_two(settings: Settings) -> None:
    cluster = Cluster(settings)
    for _ in range(5):
        cluster.run("again", 100.0)
        cluster.happens(ev.JobForgotten(cluster.world.now_s, "again"))
    assert within(20.0, lambda: advised(cluster).expected is not None)


def test_speeds_that_cannot_be_read_are_given_up_with_a_word(settings: Settings, caplog) -> None:
    settings[SETTING] = '{"no": "list"'
    History(settings).recall(World())
    assert "not known any more" in caplog.text


def test_what_trial_runs_showed_is_known_again_after_a_crash():
    given = Cluster(Settings())
    job = replace(open_job("new", 0.0, 1, 8), application="vision", trial=TrialPlan((1, 2, 4), 60.0, 10.0))
    given.happens(ev.JobSubmitted(0.0, job))
    for gpus, rate in ((1, 100.0), (2, 195.0), (4, 205.0)):
        found = TrialMeasurement(
            f"new-t{gpus}",
            gpus,
            TrialOutcome.MEASURED,
            application="vision",
            gpu_type=given.world.nodes.nodes[0].gpu_type,
            unit="samples",
            units_per_s=rate,
        )
        given.happens(ev.TrialMeasured(1.0, "new", found))
    again = History(Settings(), boost=False)  # nothing was kept beside the journal
    again.recall(given.world)
    for experience in (given.experience, again):
        assert experience.choose(replace(job, trial=None), 8).gpus == 2


def test_how_long_a_trial_run_took_says_nothing_about_jobs():
    given = Cluster(Settings())
    now_s = given.world.now_s
    given.happens(ev.JobSubmitted(now_s, replace(open_job("j-t1", now_s, 1, 1), trial_of="j")))
    start = Start("j-t1", at("n0:0"), Reason.ADMITTED)
    plan = Plan(given.world.version, now_s, "test", (start,), (), no_decisions())
    given.happens(ev.Planned(now_s, plan))
    given.happens(ev.JobStarted(now_s, "j-t1"))
    given.happens(ev.JobEnded(now_s + 30, "j-t1", JobState.CANCELLED))
    assert given.experience._durations.count == 0
