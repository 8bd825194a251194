"""Reports drawn from a known curve, with noise, restarts and slow beginnings: the curve comes out again."""

import numpy as np
import pytest

from batuta.core.curve import SpeedCurve, amdahl_curve, power_curve
from batuta.prediction import Run, Sample, SpeedMeter, replay
from tests.unit.prediction.made_runs import job, noisy_steps, sure

WARMUP_S = 30.0
SIZES = (4, 1, 8, 2, 4, 8, 1)


def history(truth: SpeedCurve, seed: int, run_s: float = 300.0, step_s: float = 0.8) -> tuple[list[Run], list[Sample]]:
    """Runs of `run_s` at several sizes; each starts with 30 s of nothing and 30 s of slow steps."""
    rng = np.random.default_rng(seed)
    runs: list[Run] = []
    samples: list[Sample] = []
    now_s = 1000.0
    for gpus in SIZES:
        end_s = now_s + run_s
        # It falls back by ten steps: there was a checkpoint, but not the newest state.
        first = max(1, (samples[-1].step or 0) - 9) if samples else 1
        samples += noisy_steps(
            rng,
            first,
            start_s=now_s + 30.0,
            until_s=end_s,
            step_s=step_s / truth.at(gpus),
            warmup_s=WARMUP_S,
        )
        runs.append(Run(now_s, gpus, asked_s=end_s, checkpointed_s=end_s + 4, stopped_s=end_s + 6))
        now_s = end_s + 20.0
    return runs, samples


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "truth", [amdahl_curve(8, 0.1), amdahl_curve(8, 0.5), power_curve(8, 0.7), power_curve(8, 1.0)]
)
def test_a_known_curve_is_recovered(truth: SpeedCurve, seed: int) -> None:
    runs, samples = history(truth, seed)
    meter = SpeedMeter(job())
    replay(meter, runs, samples)
    curve = meter.curve()
    for gpus in sorted(set(SIZES)):
        assert curve.at(gpus) == pytest.approx(truth.at(gpus), rel=0.05)
    # Steps have one half of their length more, once in fifty.
    steps_left = 10**6 - sure(samples[-1].step)
    assert meter.remaining_s() == pytest.approx(steps_left * 0.8 * 1.01, rel=0.05)


def test_the_cost_of_a_restart_is_recovered() -> None:
    runs, samples = history(amdahl_curve(8, 0.1), 1)
    meter = SpeedMeter(job())
    replay(meter, runs, samples)
    assert meter.transitions.restart_s == pytest.approx(30.0 + 6.0, rel=0.05)


def test_a_restarted_server_knows_what_the_old_one_knew() -> None:
    runs, samples = history(amdahl_curve(8, 0.1), 2)
    live, again = SpeedMeter(job()), SpeedMeter(job())
    at = 0
    for run in runs:
        live.began(run.began_s, run.gpus)
        while at < len(samples) and samples[at].time_s <= sure(run.stopped_s):
            live.add([samples[at]])
            live.news(samples[at].time_s)
            at += 1
        live.transitions.asked(sure(run.asked_s))
        live.ended(sure(run.stopped_s))
    replay(again, runs, samples)
    assert again.curve() == live.curve()
    assert again.speed() == live.speed()
    assert again.remaining_s() == pytest.approx(live.remaining_s(), rel=0.03)
    assert again.transitions.restart_s == live.transitions.restart_s
    assert (again.fraction, again.units) == (live.fraction, live.units)


@pytest.mark.parametrize("is_last_told_afterwards", [False, True])
def test_a_run_that_still_goes_on_is_adopted_with_what_it_has_reported(is_last_told_afterwards: bool) -> None:
    runs, samples = history(amdahl_curve(8, 0.1), 3)
    *past, last = runs
    expected, meter = SpeedMeter(job()), SpeedMeter(job())
    replay(expected, [*past, Run(last.began_s, last.gpus)], samples)
    if is_last_told_afterwards:
        replay(meter, past, samples)
        assert meter.units == samples[-1].step
    else:
        replay(meter, [*past, Run(last.began_s, last.gpus)], samples)
    meter.began(last.began_s, last.gpus)
    assert (meter.speed(), meter.curve()) == (expected.speed(), expected.curve())
    assert meter.transitions.restart_s == expected.transitions.restart_s
    assert (meter.units, meter.remaining_s()) == (expected.units, expected.remaining_s())
