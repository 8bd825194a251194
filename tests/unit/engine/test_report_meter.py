"""What a job's reports mean to the World, from whatever place they come."""

import pytest

from batuta.core.job import Job
from batuta.engine.report_meter import ReportMeter, sample_of
from batuta.spec.progress import ProgressReport

JOB = Job("train", submit_s=0.0, size=2, min=1, max=4, work_s=1000.0)


def test_the_world_is_told_now_and_then_and_in_the_end_of_everything():
    """Given a step of a thousand each tenth of a second, few are worth an event; the last always is."""
    meter = ReportMeter(JOB)
    meter.began(0.0, gpus=2, nodes=1)
    told = []
    for step in range(1, 1000):
        now_s = step / 10
        meter.add([sample_of(ProgressReport(step=step, total_steps=1000), now_s)])
        told += [meter.news(now_s)]
    events = [event for event in told if event is not None]
    assert 90 <= len(events) <= 140
    meter.add([sample_of(ProgressReport(step=1000, total_steps=1000), 100.0)])
    assert meter.news(100.0) is None
    last = meter.last_news(100.0)
    assert last is not None
    assert last.progress is not None
    assert (last.time_s, last.progress.fraction, last.remaining_s) == (100.0, 1.0, 0.0)
    assert meter.last_news(100.0) is None


def test_a_job_without_a_total_has_what_the_world_thinks_and_never_nothing():
    meter = ReportMeter(JOB)
    meter.began(0.0, gpus=1, nodes=1)
    meter.add([sample_of(ProgressReport(step=7), 10.0)])
    event = meter.news(10.0)
    assert event is not None
    assert event.remaining_s == pytest.approx(990.0)
    meter.add([sample_of(ProgressReport(step=8), 5000.0)])
    event = meter.news(5000.0)
    assert event is not None
    assert event.remaining_s == 1.0
