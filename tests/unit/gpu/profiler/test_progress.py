"""Where a job is by its own reports, and what neighbours cost it."""

import numpy as np
import pytest

from batuta.gpu.profiler.usage import Progress, StepReport, lost_share, progress_of, slowdown


def reports(*steps: float, every_s: float = 2.0, total: float | None = 100) -> list[StepReport]:
    return [StepReport(1000 + every_s * k, step, total) for k, step in enumerate(steps)]


def test_pace_and_end_follow_from_the_reports():
    assert progress_of(reports(10, 20, 30)) == Progress(30, 0.2, 1004 + 70 * 0.2)


def test_without_a_total_there_is_no_end():
    found = progress_of(reports(10, 20, total=None))
    assert found == Progress(20, 0.2, None)


def test_after_a_restart_the_old_pace_no_longer_counts():
    slow = reports(10, 11, 12, every_s=100.0)
    resumed = [StepReport(1300 + 2.0 * k, 5 + 10 * k, 100) for k in range(4)]
    found = progress_of([*slow, *resumed])
    assert found is not None
    assert (found.step, found.step_time_s) == pytest.approx((35, 0.2))


def test_one_report_says_where_and_not_how_fast():
    assert progress_of(reports(10)) == Progress(10, None, None)
    assert progress_of([]) is None


def test_a_job_beyond_its_total_ends_now():
    found = progress_of(reports(90, 110))
    assert found is not None
    assert found.finish_s == 1002


def test_steps_that_take_half_as_long_again_beside_a_neighbour_are_a_slowdown():
    times, neighbours = np.array([1.0, 1.1, 0.9, 1.5, 1.6, 1.4]), np.array([0, 0, 0, 1, 1, 2])
    assert slowdown(times, neighbours) == pytest.approx(1.5)


def test_without_a_time_alone_nothing_is_said():
    assert slowdown(np.ones(10), np.ones(10)) is None
    assert slowdown(np.ones(10), np.zeros(10)) is None


def test_shares_of_the_gpu_tell_the_same_of_a_job_without_reports():
    assert lost_share(np.full(30, 0.9), np.full(30, 0.45)) == pytest.approx(2.0)
    assert lost_share(np.full(30, 0.4), np.full(30, 0.5)) == 1.0
    assert lost_share(np.full(5, 0.9), np.full(30, 0.45)) is None
