"""Fits of step times for 10,000 jobs after one new point each. Bar: under two CPU seconds."""

from __future__ import annotations

import numpy as np

from batuta.core.curve import power_curve
from batuta.prediction.scaling import FitCache, Footprint, SpeedMeasurements, fit_all
from batuta.prediction.step_time import PARAMETERS, Point, StepModel, log_times, refit, shapes_of
from benchmarks.measure import cpu_s, show

JOBS, POINTS, BAR_S = 10_000, 5, 2.0


def live_jobs(random: np.random.Generator) -> list[SpeedMeasurements]:
    """What a server would have to fit if all jobs had news at once."""
    prior, sizes = power_curve(32, 0.9), (Footprint(1), Footprint(4), Footprint(8, nodes=2))
    exponents, noise = random.uniform(0.7, 0.95, JOBS), np.exp(0.02 * random.normal(size=(JOBS, len(sizes))))
    return [
        SpeedMeasurements(
            prior, 32, {size: float(size.gpus ** exponents[k] * noise[k, i]) for i, size in enumerate(sizes)}
        )
        for k in range(JOBS)
    ]


def main() -> None:
    random = np.random.default_rng(0)
    points = [Point(n > 4, n, float(b)) for n, b in ((1, 32), (2, 32), (4, 16), (8, 32), (16, 16), (32, 64))]
    usual = np.array([-3.0, -6.0, -2.5, -6.0, -3.5, -7.0, -1.0])
    true = usual + 0.3 * random.normal(size=(JOBS, 1, PARAMETERS))
    log_pass, log_step = log_times(true, shapes_of(points))
    noise = np.exp(0.02 * random.normal(size=log_step.shape))
    pass_s, step_s = np.exp(log_pass), np.exp(log_step) * noise
    models = [StepModel() for _ in range(JOBS)]

    def learn(first: int, last: int) -> None:
        for model, own_pass, own_step in zip(models, pass_s.tolist(), step_s.tolist(), strict=True):
            for k in range(first, last):
                model.add(points[k], own_pass[k], own_step[k])
        refit(models)

    cold_s = cpu_s(lambda: learn(0, POINTS))
    warm_s = cpu_s(lambda: learn(POINTS, POINTS + 1))
    off = [
        abs(np.log(model.times_s(shapes_of(points[:3]))[1]) - log_step[k, :3]).max()
        for k, model in enumerate(models[:200])
    ]
    live_s = cpu_s(lambda: fit_all((FitCache(), one) for one in live_jobs(random)))
    mark = "" if warm_s < BAR_S else " !"
    rows = [
        (f"first fit, {POINTS} points each", f"{cold_s:.2f}", f"{JOBS / cold_s:,.0f}"),
        ("one new point each", f"{warm_s:.2f}{mark}", f"{JOBS / warm_s:,.0f}"),
        ("live: beliefs and 3 points each", f"{live_s:.2f}", f"{JOBS / live_s:,.0f}"),
    ]
    notes = [f"median error at measured points: {np.median(off):.1%}"]
    show(f"{JOBS:,} jobs", ("what", "CPU (s)", "fits/s"), rows, notes)


if __name__ == "__main__":
    main()
