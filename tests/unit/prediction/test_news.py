"""When a report is worth an event, and what the event says."""

from dataclasses import asdict

import pytest

from batuta.prediction import ProgressUpdate, Sample, SpeedMeter, fit_together
from tests.unit.prediction.made_runs import PRIOR, job, steps, sure


def told(meter: SpeedMeter, samples: list[Sample]) -> list[tuple[float, ProgressUpdate]]:
    """News with their times, when each report is read at once."""
    found = []
    for sample in samples:
        meter.add([sample])
        news = meter.news(sample.time_s)
        if news is not None:
            found.append((sample.time_s, news))
    return found


def meter() -> SpeedMeter:
    new = SpeedMeter(job())
    new.began(0.0, 1)
    return new


@pytest.mark.parametrize(
    ("step_s", "total", "count", "times_s"),
    [
        # The first, then every five seconds.
        (1.0, 10**6, 12, [1.0, 6.0, 11.0]),
        # A hundredth of the whole is done every two seconds.
        (1.0, 200, 7, [1.0, 3.0, 5.0, 7.0]),
        (10.0, 10**6, 3, [10.0, 20.0, 30.0]),
        (1.0, None, 7, [1.0, 6.0]),
    ],
)
def test_news_come_first_by_time_and_by_progress(
    step_s: float, total: int | None, count: int, times_s: list[float]
) -> None:
    samples = steps(1, count, start_s=0.0, step_s=step_s, total=total)
    assert [time_s for time_s, _ in told(meter(), samples)] == times_s


def test_without_a_new_report_there_are_no_news() -> None:
    new = meter()
    assert new.news(0.0) is None
    samples = steps(1, 3, start_s=0.0, step_s=1.0)
    new.add(samples)
    assert new.news(3.0) is not None
    assert new.news(100.0) is None
    new.add(samples)
    assert new.news(200.0) is None


def test_a_clock_that_goes_back_does_not_silence_the_meter() -> None:
    new = meter()
    new.add(steps(1, 3, start_s=5000.0, step_s=1.0, total=10**6))
    assert new.news(5003.0) is not None
    new.add(steps(4, 6, start_s=1000.0, step_s=1.0, total=10**6))
    assert new.news(1003.0) is not None


def test_news_say_everything_that_is_known() -> None:
    new = meter()
    new.add(
        [
            Sample(
                10.0 + n,
                step=n,
                total_steps=1000,
                epoch=n // 100,
                total_epochs=10,
                samples=n * 8.0,
                loss=1 / n,
            )
            for n in range(1, 201)
        ]
    )
    assert asdict(sure(new.news(210.0))) == {
        "progress": {
            "fraction": 0.2,
            "step": 200,
            "total_steps": 1000,
            "epoch": 2,
            "loss": 0.005,
            "step_s": pytest.approx(1.0),
            "samples_per_s": pytest.approx(8.0),
            "epoch_s": pytest.approx(100.0),
        },
        "remaining_s": pytest.approx(800.0),
        "curve": None,
        "restart_s": pytest.approx(10.0),
    }
    new.add([Sample(211.0, step=201)])
    assert sure(new.news(300.0)).restart_s is None, "it has not changed"


def test_a_curve_is_told_when_it_has_changed_and_at_once() -> None:
    new = meter()
    new.add(steps(1, 200, start_s=0.0, step_s=1.0, total=10**6))
    assert sure(new.news(200.0)).curve is None, "one size says nothing about the others"
    new.ended(200.0)
    new.began(200.0, 4)
    new.add(steps(201, 201, start_s=200.0, step_s=0.5, total=10**6))
    assert sure(new.news(205.0)).curve is None
    new.add(steps(202, 260, start_s=200.5, step_s=0.5, total=10**6))
    news = sure(new.news(205.1))
    assert sure(news.curve).at(4) == pytest.approx(2.0)
    assert news.remaining_s == pytest.approx((10**6 - 260) * 1.0)
    new.add(steps(261, 300, start_s=230.0, step_s=0.501, total=10**6))
    assert sure(new.news(300.0)).curve is None


def test_after_a_change_of_the_range_the_curve_is_told_again() -> None:
    new = meter()
    new.add(steps(1, 100, start_s=0.0, step_s=1.0, total=10**6))
    new.began(100.0, 4)
    new.add(steps(101, 300, start_s=100.0, step_s=0.5, total=10**6))
    assert len(sure(sure(new.news(200.0)).curve).speeds) == 9
    new.changed(job(largest=16))
    new.add(steps(301, 302, start_s=200.0, step_s=0.5, total=10**6))
    curve = sure(sure(new.news(201.0)).curve)
    assert len(curve.speeds) == 17
    assert 2.0 < curve.at(16) < 4.0


def test_news_is_the_same_whether_curves_were_fitted_together_or_one_by_one() -> None:
    together, alone = ([meter() for _ in range(3)] for _ in range(2))
    for k, new in ((k, new) for meters in (together, alone) for k, new in enumerate(meters)):
        new.add(steps(1, 100, start_s=0.0, step_s=1.0, total=10**6))
        new.began(100.0, 4)
        new.add(steps(101, 300, start_s=100.0, step_s=0.4 + 0.1 * k, total=10**6))
    fit_together(together)
    for one, other in zip(together, alone, strict=True):
        found, expected = sure(sure(one.news(200.0)).curve), sure(sure(other.news(200.0)).curve)
        # Those who are fitted together stop together, so that some get a few more steps.
        assert found.speeds == pytest.approx(expected.speeds, rel=0.005)


def test_until_something_is_measured_the_prior_stands() -> None:
    new = meter()
    assert new.curve() is PRIOR
    new.add([Sample(1.0, step=10, total_steps=100)])
    news = sure(new.news(1.0))
    assert (news.curve, news.progress.step_s, news.remaining_s, news.restart_s) == (None, None, 3240.0, None)
