"""What holds for any reports, however odd."""

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batuta.core.curve import SpeedCurve
from batuta.prediction import Footprint, ProgressUpdate, Run, Sample, SpeedMeter, replay
from batuta.prediction.scaling import FitCache, SpeedMeasurements
from batuta.prediction.throughput import MOST_WINDOWS, SizeRecord, Window
from tests.unit.prediction.made_runs import PRIOR, job

counts = st.none() | st.integers(-2, 300) | st.sampled_from([10**17, 10**19])
numbers = st.none() | st.floats(-1, 1e4) | st.sampled_from([float("inf"), float("nan"), 1e-320, 1e300])
odd_samples = st.builds(
    Sample,
    time_s=st.floats(-1e3, 1e3) | st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e12]),
    step=counts,
    total_steps=counts,
    epoch=numbers,
    total_epochs=numbers,
    samples=numbers,
    loss=numbers,
    rank=st.sampled_from([None, 0, 1]),
    noise_scale=numbers,
)


@st.composite
def orderly(draw: Callable) -> list[Sample]:
    """A run of one rank whose time and steps grow."""
    now_s, step, found = 5.0, 0, []
    for wait_s, ahead in draw(st.lists(st.tuples(st.floats(0.01, 20), st.integers(1, 9)), max_size=60)):
        now_s, step = now_s + wait_s, step + ahead
        found.append(Sample(now_s, step, 400, loss=draw(st.none() | st.floats(0, 9)), rank=0))
    return found


actions = st.lists(
    st.tuples(st.sampled_from(["began", "ended"]), st.floats(-100, 1000), st.integers(1, 9))
    | st.lists(odd_samples, max_size=10),
    max_size=12,
)


def act(meter: SpeedMeter, actions: list) -> None:
    for action in actions:
        match action:
            case ("began", time_s, gpus):
                meter.began(time_s, gpus, nodes=1 + gpus // 5)
            case ("ended", time_s, _):
                meter.ended(time_s)
            case samples:
                meter.add(samples)


def known(meter: SpeedMeter) -> str:
    """All that a meter tells, to the last bit."""
    facts = (meter.units, meter.fraction, meter.remaining_s(), meter.speed(), meter.curve())
    return repr((*facts, meter.transitions.restart_s, meter.news(1e6)))


def check_sane(curve: SpeedCurve) -> None:
    assert curve.speeds[1] == 1.0 or curve == PRIOR
    assert all(0 < speed <= n for n, speed in enumerate(curve.speeds) if n)


@given(actions)
def test_whatever_is_reported_the_numbers_stay_within_their_bounds(given_: list) -> None:
    meter = SpeedMeter(job())
    act(meter, given_)
    check_sane(meter.curve())
    assert meter.fraction is None or 0 <= meter.fraction <= 1
    assert (meter.remaining_s() or 0) >= 0
    assert (meter.remaining_s() or 0) < float("inf")
    speed = meter.speed()
    assert speed is None or speed.units_per_s >= 0
    news = meter.news(0.0)
    assert news is None or isinstance(news, ProgressUpdate)


@given(actions, st.data())
def test_in_pieces_is_the_same_as_at_once(given_: list, data: st.DataObject) -> None:
    whole, pieces = SpeedMeter(job()), SpeedMeter(job())
    act(whole, given_)
    for action in given_:
        if isinstance(action, tuple):
            act(pieces, [action])
            continue
        cuts = sorted(data.draw(st.sets(st.integers(0, len(action)))) | {0, len(action)})
        act(pieces, [action[a:b] for a, b in pairwise(cuts)])
    assert known(pieces) == known(whole)


@given(orderly(), st.data())
def test_duplicates_do_not_matter(samples: list[Sample], data: st.DataObject) -> None:
    once, often = SpeedMeter(job()), SpeedMeter(job())
    once.began(0.0, 2)
    often.began(0.0, 2)
    once.add(samples)
    for i, sample in enumerate(samples):
        often.add([sample])
        often.add(samples[data.draw(st.integers(0, i)) : i + 1])
    often.add(samples)
    assert known(often) == known(once)


@given(orderly(), st.integers(2, 4))
def test_more_ranks_do_not_matter(samples: list[Sample], ranks: int) -> None:
    one, all_ = SpeedMeter(job()), SpeedMeter(job())
    one.began(0.0, 2)
    all_.began(0.0, 2)
    one.add(samples)
    all_.add([sample._replace(rank=rank) for sample in samples for rank in range(ranks)])
    assert known(all_) == known(one)


@given(orderly(), st.lists(st.tuples(st.floats(0, 300), st.integers(1, 8)), max_size=4))
def test_a_replay_is_the_same_every_time(samples: list[Sample], begins: list[tuple[float, int]]) -> None:
    runs = [Run(began_s, gpus) for began_s, gpus in begins]
    first, second = SpeedMeter(job()), SpeedMeter(job())
    replay(first, runs, samples)
    replay(second, runs, samples)
    assert known(second) == known(first)
    units = first.units
    assert units == (samples[-1].step if samples else None)


footprints = st.builds(
    Footprint, st.integers(1, 20), st.integers(1, 2), st.integers(1, 2), st.sampled_from([0.5, 1.0, 3.0])
)


@given(st.dictionaries(footprints, st.floats(1e-12, 1e12), min_size=1, max_size=6), st.integers(1, 16))
def test_a_fitted_curve_is_sane(rates: dict[Footprint, float], largest: int) -> None:
    found = FitCache().scaling(SpeedMeasurements(PRIOR, largest, rates))
    assert found is not None
    assert len(found.curve.speeds) == largest + 1
    check_sane(found.curve)
    assert 0 < found.units_per_s < float("inf")


@given(st.dictionaries(st.integers(1, 20), st.floats(0.1, 1e3), min_size=1, max_size=6))
def test_a_curve_keeps_between_what_was_measured(measured: dict[int, float]) -> None:
    rates = {Footprint(n): rate for n, rate in measured.items()}
    found = FitCache().scaling(SpeedMeasurements(PRIOR, 20, rates))
    assert found is not None
    speeds = found.curve.speeds
    for a, b in pairwise(sorted(measured)):
        ends = sorted((speeds[a], speeds[b]))
        assert all(ends[0] * 0.999999 <= speed <= ends[1] * 1.000001 for speed in speeds[a:b])


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(2, 100), st.booleans()), min_size=1, max_size=400))
def test_a_record_is_bounded_and_its_rate_lies_within_what_it_saw(windows: list) -> None:
    record = SizeRecord()
    for units, seconds, is_early in windows:
        record.add(Window(seconds, units, is_early=is_early))
    rates = [units / seconds for units, seconds, _ in windows]
    assert min(rates) * 0.999999 <= record.rate() <= max(rates) * 1.000001
    assert len(record._early) + len(record._settled) <= 2 * MOST_WINDOWS
