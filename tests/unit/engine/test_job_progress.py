"""What a job's reports mean to the World, from whatever place they come."""

import pytest

from batuta.core.curve import SpeedCurve
from batuta.core.job import Job
from batuta.engine.jobs.progress import ReportMeter, sample_of
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
    last = meter.news(100.0, at_last=True)
    assert last is not None
    assert last.progress is not None
    assert (last.time_s, last.progress.fraction, last.remaining_s) == (100.0, 1.0, 0.0)
    assert meter.news(100.0, at_last=True) is None


def test_what_is_said_at_the_end_of_one_run_does_not_silence_the_next():
    meter = ReportMeter(JOB)
    meter.began(0.0, gpus=2, nodes=1)
    meter.add([sample_of(ProgressReport(step=500, total_steps=1000), 50.0)])
    assert meter.news(50.0, at_last=True) is not None
    meter.ended(50.0)
    meter.began(60.0, gpus=4, nodes=1)
    meter.add([sample_of(ProgressReport(step=600, total_steps=1000), 80.0)])
    told = meter.news(80.0)
    assert told is not None
    assert told.progress is not None
    assert told.progress.step == 600


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


def curve_told(noise_scale: float | None) -> SpeedCurve:
    """Of a job whose steps are 64 samples on each GPU and take as long on four GPUs as on one."""
    meter, time_s, samples, told = ReportMeter(JOB), 0.0, 0, JOB.curve
    for gpus in (1, 4):
        meter.began(time_s, gpus=gpus, nodes=1)
        for _ in range(120):
            time_s, samples = time_s + 1.0, samples + 64 * gpus
            report = ProgressReport(step=int(time_s), samples=samples, noise_scale=noise_scale)
            meter.add([sample_of(report, time_s)])
            event = meter.news(time_s)
            if event is not None and event.curve is not None:
                told = event.curve
    return told


def test_a_reported_noise_scale_makes_the_curve_one_of_goodput():
    assert curve_told(None).at(4) == pytest.approx(4.0, rel=0.05)
    assert curve_told(64.0).at(4) == pytest.approx(4.0 * 128 / (64 + 256), rel=0.05)
    assert curve_told(1e9).at(4) == pytest.approx(4.0, rel=0.05), "all that noise can use every sample"


@pytest.mark.parametrize("nonsense", [0.0, -5.0, float("nan"), float("inf"), 1e30])
def test_a_noise_scale_that_is_none_is_not_believed(nonsense: float):
    assert curve_told(nonsense) == curve_told(None)
