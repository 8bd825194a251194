"""What a job reports reaches the engine once, and a new server learns it from the files."""

import json
from pathlib import Path

from batuta.backends.local.job_files import JobFiles
from batuta.backends.local.progress import ProgressFeed
from batuta.core.event import JobProgressed
from batuta.prediction import Run
from batuta.spec.task import parse_task
from batuta.spec.task_job import task_to_job
from tests.support.worlds import at

TASK = parse_task("name: a\nrun: train\nresources: {accelerators: 'A100:1'}\n")
JOB = task_to_job(TASK, "1", 0.0)
BEGAN_S, STEPS = 1_000.0, 1_000


def report(files: JobFiles, step: int, **more: float) -> None:
    files.folder.mkdir(parents=True, exist_ok=True)
    with open(files.progress, "a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, "total_steps": STEPS, **more}) + "\n")


def resumed(files: JobFiles, now_s: float) -> ProgressFeed:
    """As a new server takes up a run that goes on."""
    feed = ProgressFeed(files, TASK, JOB)
    feed.remember([Run(BEGAN_S, 1, 1)], now_s)
    feed.began(BEGAN_S, 0, at("n:0"))
    return feed


def follow(feed: ProgressFeed, files: JobFiles, first: int, last: int) -> list[JobProgressed]:
    """One step a second, without times, as a shell script reports it."""
    told = []
    for step in range(first, last):
        report(files, step)
        told.append(feed.poll(BEGAN_S + step))
    return [event for event in told if event is not None]


def test_reports_without_a_time_say_nothing_about_speed_to_a_new_server(tmp_path: Path):
    files = JobFiles(tmp_path, "1")
    for step in range(400):
        report(files, step)
    feed = resumed(files, BEGAN_S + 400.0)
    news = feed.poll(BEGAN_S + 400.0)
    assert news is not None
    assert news.progress is not None
    assert (news.progress.step, news.progress.fraction) == (399, 0.399)
    assert (news.progress.step_s, news.restart_s, news.curve) == (None, None, None)
    events = follow(feed, files, 401, 500)
    last = events[-1].progress
    assert last is not None
    assert last.step_s is not None
    assert 0.9 < last.step_s < 1.1
    assert {event.restart_s for event in events} == {None}


def test_reports_with_a_time_are_measured_again_by_a_new_server(tmp_path: Path):
    files = JobFiles(tmp_path, "1")
    for step in range(400):
        report(files, step, time=BEGAN_S + 5.0 + step)
    news = resumed(files, BEGAN_S + 405.0).poll(BEGAN_S + 405.0)
    assert news is not None
    assert news.progress is not None
    assert news.progress.step_s is not None
    assert 0.9 < news.progress.step_s < 1.1
    assert news.restart_s is not None
    assert news.restart_s < 10.0
