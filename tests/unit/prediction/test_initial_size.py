"""What earlier jobs of an application measured, and the size that a new one of it asks for."""

import json

import pytest

from batuta.core import event as ev
from batuta.core.curve import power_curve
from batuta.core.job import Job, Progress
from batuta.prediction import application_history as history
from batuta.prediction.application_history import ApplicationHistory, Series, choose_size, settle
from batuta.prediction.scaling import Footprint
from tests.support.worlds import make_job, make_nodes, make_world

RESNET = Series("resnet", "gpu", "samples", 256)


def open_job(low: int = 1, high: int = 8, each: int = 1, **changes: object) -> Job:
    curve = power_curve(high, 0.9)
    return make_job("j", low, min=low, max=high, gpus_per_replica=each, application="resnet", curve=curve, **changes)


def measured(rates: dict[int, float], series: Series = RESNET) -> ApplicationHistory:
    found = ApplicationHistory()
    for gpus, rate in rates.items():
        found.add(series, Footprint(gpus), f"job-{gpus}", rate)
    return found


@pytest.mark.parametrize(
    ("rates", "chosen", "best"),
    [
        ({1: 10.0, 4: 36.8, 8: 40.0}, 4, 8),  # 8 GPUs are hardly faster than 4
        ({1: 10.0, 8: 80.0}, 8, 8),  # perfect scaling: all that it may have
        ({1: 10.0, 2: 11.0, 8: 12.0}, 1, 2),  # beyond 2 GPUs each does less than half of its share
        ({1: 10.0, 2: 19.0}, 4, 4),  # not beyond twice what was measured
        ({1: 10.0, 4: 30.0, 8: 20.0}, 4, 5),  # slower with more
    ],
)
def test_the_smallest_size_with_nearly_the_best_speed_is_chosen(rates, chosen, best) -> None:
    job = open_job()
    choice = choose_size(job, measured(rates).of(job), job.max)
    assert choice.gpus == chosen
    assert choice.speed_share >= 0.9
    assert choice.best_gpus <= 8
    assert best - 1 <= choice.best_gpus <= best + 1


def test_the_answer_comes_with_its_reason() -> None:
    job = open_job()
    choice = choose_size(job, measured({1: 10.0, 4: 37.0, 8: 40.3}).of(job), 8)
    assert choice.sentence == "4 GPUs give 92 % of the speed of 8 (measured by 3 earlier jobs of resnet)"


def test_what_nobody_knows_starts_with_the_smallest_and_says_so() -> None:
    for known in (None, measured({4: 10.0}).of(open_job())):
        choice = choose_size(open_job(low=2), known, 8)
        assert choice.gpus == 2
        assert "not known yet" in choice.sentence
        assert choice.best_gpus == 0


@pytest.mark.parametrize(
    ("changes", "most", "chosen"),
    [
        ({"low": 2, "each": 2}, 8, 8),
        ({"low": 2, "each": 2}, 5, 4),
        ({"sizes": (1, 2, 8)}, 7, 2),
        ({}, 0, 1),
    ],
)
def test_only_legal_sizes_within_reach_are_chosen(changes, most, chosen) -> None:
    job = open_job(**changes)
    assert choose_size(job, measured({1: 10.0, 8: 80.0}).of(job), most).gpus == chosen


def test_what_is_enough_and_efficient_decides(monkeypatch) -> None:
    job = open_job()
    known = measured({1: 10.0, 4: 30.0, 8: 32.0}).of(job)
    monkeypatch.setattr(history, "ENOUGH_SPEED", 0.5)
    monkeypatch.setattr(history, "LEAST_EFFICIENCY", 0.0)
    assert choose_size(job, known, 8).gpus == 2


def test_sizes_that_nobody_can_foretell_are_not_chosen(monkeypatch) -> None:
    job = open_job()
    known = measured({1: 10.0, 4: 38.0}).of(job)
    assert choose_size(job, known, 8).best_gpus == 8
    monkeypatch.setattr(history, "MOST_DOUBT", 0.0)
    assert choose_size(job, known, 8).gpus == 1


def test_a_job_that_cannot_be_resized_keeps_the_size_for_good() -> None:
    job = open_job(sizes=(1, 2, 4, 8))
    choice = choose_size(job, measured({1: 10.0, 4: 30.0, 8: 32.0}).of(job), 8)
    fixed, elastic = (settle(job, choice, for_good=good) for good in (True, False))
    assert (fixed.min, fixed.size, fixed.max, fixed.sizes) == (4, 4, 4, None)
    assert (elastic.min, elastic.size, elastic.max) == (1, 4, 8)
    assert not fixed.faults()
    assert not elastic.faults()


# --------------------------------------------------------------------------------------------------- history


def test_reports_of_running_jobs_are_kept_by_application_type_and_batch() -> None:
    jobs = [make_job("a", 2, application="resnet"), make_job("b", 4, application="resnet"), make_job("c", 1)]
    world = make_world(make_nodes(4, 4, gpu_type="A100"), {"a": "n0:01", "b": "n0:23 n1:01"}, jobs)
    found = ApplicationHistory()
    for job, samples_per_s in (("a", 200.0), ("b", 360.0), ("c", 100.0)):
        progress = Progress(samples_per_s=samples_per_s, step_s=1.28)
        found.saw(world, ev.JobProgressed(world.now_s, job, 100.0, progress=progress))
    known = found.of(make_job("d", 8, application="resnet", gpu_types=(("A100", 1.0),)))
    # The batches differ, so the two cannot be compared; c waits, and has no name.
    assert known is None
    again = ev.JobProgressed(world.now_s, "b", 90.0, progress=Progress(samples_per_s=360.0, step_s=256 / 360))
    found.saw(world, again)
    known = found.of(make_job("d", 8, application="resnet"))
    assert known is not None
    assert known.rates == {Footprint(2): 200.0, Footprint(4, 2): 360.0}
    assert (known.jobs, known.largest) == (2, 4)
    assert found.of(make_job("d", 8, application="resnet", gpu_types=(("H100", 1.0),))) is None
    assert found.of(make_job("d", 8, application="bert")) is None


def test_jobs_with_the_same_batch_on_each_gpu_are_compared_too() -> None:
    found = ApplicationHistory()
    for gpus, rate in ((1, 100.0), (2, 195.0), (4, 380.0)):
        found.add(Series("resnet", "gpu", "samples", 32 * gpus), Footprint(gpus), f"job-{gpus}", rate)
    known = found.of(open_job())
    assert known is not None
    assert known.rates == {Footprint(1): 100.0, Footprint(2): 195.0, Footprint(4): 380.0}
    assert known.step_units == {1: 32.0, 2: 64.0, 4: 128.0}
    curve = known.curve(power_curve(8, 0.9), 8)
    assert curve.at(4) == pytest.approx(3.8)
    assert 6.0 < curve.at(8) < 8.0


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (Progress(samples_per_s=64.0), ("samples", 0, 64.0)),
        (Progress(epoch_s=4.0, step_s=0.1), ("epochs", 0, 0.25)),
        (Progress(step_s=0.5), ("steps", 0, 2.0)),
        (Progress(fraction=0.3), None),
        (Progress(samples_per_s=float("nan"), step_s=-1.0, epoch_s=float("inf")), None),
    ],
)
def test_speeds_are_counted_in_the_best_unit_there_is(progress, expected) -> None:
    assert history.measured(progress) == expected


def test_several_jobs_of_a_size_count_by_their_median_and_the_last_report_of_each() -> None:
    found = measured({1: 10.0, 2: 18.0})
    for job, rate in (("x", 30.0), ("y", 20.0), ("x", 22.0)):
        found.add(RESNET, Footprint(2), job, rate)
    known = found.of(open_job())
    assert known is not None
    assert known.rates[Footprint(2)] == 20.0


def test_the_history_is_bounded() -> None:
    found = ApplicationHistory()
    for number in range(history.MOST_SERIES + 5):
        found.add(Series(f"app-{number}", "gpu", "steps"), Footprint(1), "j", 1.0)
    for number in range(history.MOST_JOBS + 5):
        found.add(RESNET, Footprint(1), f"j{number}", float(number + 1))
    dump = found.dump()
    assert len(dump) == history.MOST_SERIES
    assert len(dump[-1][-1][0][-1]) == history.MOST_JOBS


def test_what_is_kept_comes_back_the_same() -> None:
    found, again = measured({1: 10.0, 4: 30.0}), ApplicationHistory()
    again.load(json.loads(json.dumps(found.dump())))
    assert again.dump() == found.dump()
    assert again.of(open_job()) == found.of(open_job())


@pytest.mark.parametrize("rubbish", [[1], [["a", "b"]], {"a": 1}, [["a", "b", "c", 0, [[1, 1, 1, 1.0, [["j", -1]]]]]]])
def test_rubbish_is_refused(rubbish) -> None:
    with pytest.raises(ValueError, match=r"speeds|rate|values|unpack"):
        ApplicationHistory().load(rubbish)
