"""One job's progress and speed: given these reports, what is known."""

import math

import pytest

from batuta.core.curve import power_curve
from batuta.prediction import Sample, SpeedMeter
from tests.unit.prediction.made_runs import PRIOR, job, meter_of, steps, sure

EVEN = steps(1, 100, start_s=10.0, step_s=0.5)
"""A hundred steps of half a second after a start of ten seconds."""


def at(times_s: list[float], counts: list[int], rank: int | None = 0) -> list[Sample]:
    return [
        Sample(t, step=n, total_steps=1000, rank=rank, samples=32.0 * n) for t, n in zip(times_s, counts, strict=True)
    ]


SET_BACK = EVEN[:50] + [s._replace(time_s=s.time_s - 3600) for s in EVEN[50:]]
SET_FORWARD = EVEN[:50] + [s._replace(time_s=s.time_s + 3600) for s in EVEN[50:]]


@pytest.mark.parametrize(
    ("given", "fraction", "step_s"),
    [
        ("nothing", None, None),
        ("one report", 0.001, None),
        ("even", 0.1, 0.5),
        ("every report twice", 0.1, 0.5),
        ("all again", 0.1, 0.5),
        ("four ranks", 0.1, 0.5),
        ("ranks with clocks an hour apart", 0.1, 0.5),
        ("pairs swapped", 0.1, 0.5),
        ("a late line now and then", 0.1, 0.5),
        ("clock set back", 0.1, 0.5),
        ("clock set forward", 0.1, 0.5),
        ("times that are no numbers", 0.1, 0.5),
        ("counts that are no counts", 0.1, 0.5),
        ("the rank that led falls silent", 0.4, 0.5),
        ("total said once", 0.1, 0.5),
        ("fell back by itself", 0.07, 0.5),
        ("more steps than in all", 1.0, 0.5),
    ],
)
def test_what_reports_say(given: str, fraction: float | None, step_s: float | None) -> None:
    late = [s._replace(step=20, time_s=s.time_s + 0.1) for s in EVEN[30::20]]
    meter = meter_of(
        {
            "nothing": [],
            "one report": EVEN[:1],
            "even": EVEN,
            "every report twice": [s for s in EVEN for _ in range(2)],
            "all again": EVEN + EVEN,
            "four ranks": [s._replace(rank=r, time_s=s.time_s + r / 50) for s in EVEN for r in (2, 0, 3, 1)],
            "ranks with clocks an hour apart": [
                s._replace(rank=r, time_s=s.time_s + 3600 * r) for s in EVEN for r in (0, 1)
            ],
            "pairs swapped": [EVEN[i ^ 1] for i in range(100)],
            "a late line now and then": sorted(EVEN + late, key=lambda s: s.time_s),
            "clock set back": [s._replace(time_s=s.time_s + 7200) for s in SET_BACK],
            "clock set forward": SET_FORWARD,
            "times that are no numbers": [
                x for s in EVEN for x in (s, s._replace(time_s=math.nan), s._replace(time_s=math.inf))
            ],
            "counts that are no counts": [x for s in EVEN for x in (s, s._replace(step=-5), s._replace(step=10**30))],
            "the rank that led falls silent": EVEN
            + at([60 + i * 0.5 for i in range(1, 301)], list(range(101, 401)), 1),
            "total said once": [EVEN[0], *(s._replace(total_steps=None) for s in EVEN[1:])],
            "fell back by itself": EVEN + steps(51, 70, start_s=80.0, step_s=0.5),
            "more steps than in all": [s._replace(total_steps=80) for s in EVEN],
        }[given]
    )
    assert meter.fraction == (None if fraction is None else pytest.approx(fraction))
    speed = meter.speed()
    assert (speed and speed.step_s) == (None if step_s is None else pytest.approx(step_s, rel=0.01))
    assert (speed and speed.samples_per_s) == (None if step_s is None else pytest.approx(64.0, rel=0.01))


@pytest.mark.parametrize(
    ("made", "fraction", "step_s", "samples_per_s", "epoch_s"),
    [
        # Steps of a total are the measure, and with the total of epochs they give the length of one.
        (lambda n: Sample(n * 1.0, n, 400, n // 50, 8, n * 32.0), 0.5, 1.0, 32.0, 50.0),
        # Without a total of steps, epochs are; steps and samples follow from what goes with one.
        (lambda n: Sample(n * 1.0, n, None, n // 50, 8, n * 32.0), 0.5, 1.0, 32.0, 50.0),
        (lambda n: Sample(n * 1.0, None, None, n / 50, 8), 0.5, None, None, 50.0),
        # Without any total there is speed, but no fraction.
        (lambda n: Sample(n * 1.0, n, None, n // 50, None, n * 32.0), None, 1.0, 32.0, 50.0),
        (lambda n: Sample(n * 1.0, samples=n * 32.0), None, None, 32.0, None),
        (lambda n: Sample(n * 1.0, n), None, 1.0, None, None),
        # Totals of nothing are none.
        (lambda n: Sample(n * 1.0, n, 0), None, 1.0, None, None),
        (lambda n: Sample(n * 1.0, loss=0.5), None, None, None, None),
    ],
)
def test_units(
    made, fraction: float | None, step_s: float | None, samples_per_s: float | None, epoch_s: float | None
) -> None:
    meter = meter_of([made(n) for n in range(1, 201)])
    speed = meter.speed()
    assert meter.fraction == fraction
    assert (speed and speed.step_s) == (step_s and pytest.approx(step_s, rel=0.02))
    assert (speed and speed.samples_per_s) == (samples_per_s and pytest.approx(samples_per_s, rel=0.02))
    assert (speed and speed.epoch_s) == (epoch_s and pytest.approx(epoch_s, rel=0.02))


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_a_better_unit_takes_over_and_what_was_measured_in_the_other_is_forgotten(piece: int) -> None:
    epochs = [Sample(n * 1.0, epoch=n / 10, total_epochs=1000, rank=0) for n in range(1, 3980)]
    assert sure(meter_of(epochs).speed()).units_per_s == pytest.approx(0.1)
    samples = epochs + steps(500, 520, start_s=3980.0, step_s=0.5)
    meter = meter_of([])
    for start in range(0, len(samples), piece):
        meter.add(samples[start : start + piece])
    assert sure(meter.speed()).units_per_s == pytest.approx(2.0)
    assert meter.fraction == pytest.approx(0.52)


def test_the_warm_up_counts_only_until_there_is_something_better() -> None:
    slow = steps(1, 10, start_s=20.0, step_s=2.0)
    meter = meter_of(slow)
    assert sure(meter.speed()).step_s == pytest.approx(2.0)
    meter.add(steps(11, 200, start_s=40.0, step_s=0.5))
    assert sure(meter.speed()).step_s == pytest.approx(0.5)


def test_pauses_are_part_of_the_speed_of_a_long_run() -> None:
    """A step a second, and after each hundred an evaluation of twenty seconds."""
    samples = [Sample(n + 20.0 * (n // 100), step=n, total_steps=10**5) for n in range(1, 10_001)]
    assert sure(meter_of(samples).speed()).step_s == pytest.approx(1.2, rel=0.05)


def test_remaining_work_is_in_seconds_on_one_gpu() -> None:
    meter = meter_of(steps(1, 500, start_s=0.0, step_s=0.5), gpus=4)
    # 500 steps at two a second take 250 s here; the World divides by its speed for 4 GPUs.
    assert sure(meter.remaining_s()) / PRIOR.at(4) == pytest.approx(250.0)


def test_remaining_work_counts_the_type_of_gpu_and_the_spread() -> None:
    curve = power_curve(8, 0.9)
    spread = type(curve)(curve.speeds, across_nodes=0.8, across_racks=0.5)
    meter = SpeedMeter(job(curve=spread))
    meter.began(0.0, 4, nodes=2, racks=2, gpu_speed=3.0)
    meter.add(steps(1, 500, start_s=0.0, step_s=0.5))
    assert sure(meter.remaining_s()) / (spread.at(4) * 0.8 * 0.5 * 3.0) == pytest.approx(250.0)


@pytest.mark.parametrize(
    ("reports", "remaining_s"),
    [
        ([], None),
        # The prior says one hour in all.
        ([Sample(1.0, step=250, total_steps=1000)], 2700.0),
        ([Sample(1.0, step=1000, total_steps=1000)], 0.0),
        ([Sample(1.0, step=250)], None),
        ([Sample(n * 1.0, samples=n) for n in range(1, 100)], None),
    ],
)
def test_remaining_work_before_there_is_a_speed(reports: list[Sample], remaining_s: float | None) -> None:
    assert meter_of(reports).remaining_s() == remaining_s


def test_after_a_resume_without_checkpoint_the_job_is_less_far() -> None:
    meter = meter_of(steps(1, 200, start_s=0.0, step_s=0.5))
    meter.ended(101.0)
    assert meter.fraction == pytest.approx(0.2)
    meter.began(110.0, 1)
    assert meter.fraction == pytest.approx(0.2)
    meter.add(steps(101, 120, start_s=120.0, step_s=0.5))
    assert meter.fraction == pytest.approx(0.12)
    assert meter.transitions.restart_s == pytest.approx((0.0 + 10.0) / 2)


def test_a_first_report_at_the_end_of_an_epoch_is_not_a_slow_start() -> None:
    meter = SpeedMeter(job())
    meter.began(0.0, 1)
    meter.add([Sample(20.0 + 600 * n, epoch=n, total_epochs=10) for n in (1, 2, 3)])
    assert meter.transitions.restart_s == pytest.approx(20.0)
    assert sure(meter.speed()).epoch_s == pytest.approx(600.0)


def test_reports_of_the_last_run_that_are_read_late_do_not_count_for_the_next() -> None:
    meter = meter_of(steps(1, 100, start_s=0.0, step_s=0.5))
    meter.began(60.0, 4)
    meter.add(steps(101, 104, start_s=50.0, step_s=0.5))
    assert meter.units == 104
    assert meter.speed() is None
    meter.add(steps(105, 400, start_s=70.0, step_s=0.25))
    assert sure(meter.speed()).step_s == pytest.approx(0.25)


def test_a_total_that_changes_with_the_size_is_the_same_work_in_other_steps() -> None:
    meter = meter_of(steps(1, 200, start_s=0.0, step_s=1.0, total=1000))
    meter.ended(210.0)
    meter.began(220.0, 2)
    # Batches twice as large, 500 steps in all, each as long as before: twice as fast.
    meter.add(steps(101, 300, start_s=230.0, step_s=1.0, total=500))
    assert meter.curve().at(2) == pytest.approx(2.0)
    assert meter.fraction == pytest.approx(0.6)


def test_a_total_that_changes_at_the_same_size_is_more_work() -> None:
    meter = meter_of(steps(1, 200, start_s=0.0, step_s=1.0, total=1000))
    meter.add(steps(201, 400, start_s=200.0, step_s=1.0, total=2000))
    assert meter.fraction == pytest.approx(0.2)
    assert meter.remaining_s() == pytest.approx(1600.0)


def test_the_same_beginning_twice_is_one() -> None:
    meter = meter_of(EVEN[:50])
    meter.began(0.0, 1)
    meter.add(EVEN[50:])
    assert sure(meter.speed()).step_s == pytest.approx(0.5)
    assert meter.transitions.restart_s == pytest.approx(10.0)


def test_reports_without_any_run_only_move_the_progress() -> None:
    meter = SpeedMeter(job())
    meter.add(EVEN)
    assert meter.fraction == pytest.approx(0.1)
    assert meter.speed() is None
    assert meter.curve() is PRIOR
