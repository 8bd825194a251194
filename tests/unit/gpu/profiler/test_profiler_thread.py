"""A profiler that looks by itself, in a thread."""

import threading

from batuta.gpu.owners import LocalOwners
from batuta.gpu.profiler.profiler import Profiler, ProfilerThread, Timing
from batuta.gpu.profiler.sources import NodeSample
from tests.unit.gpu.profiler.scenes import gpu

WITHIN_S = 20.0


class Looks:
    """A source that counts, and fails when told to."""

    def __init__(self, wanted: int, failing: int = 0) -> None:
        self.count = 0
        self.enough = threading.Event()
        self._wanted, self._failing = wanted, failing

    def __call__(self) -> NodeSample:
        self.count += 1
        if self.count >= self._wanted:
            self.enough.set()
        if self.count <= self._failing:
            raise RuntimeError("the driver is being replaced")
        return NodeSample(1000.0 + self.count, (gpu(0, 0.5),))


def test_it_looks_again_and_again_until_it_is_told_to_end():
    looks = Looks(5)
    with ProfilerThread(Profiler(looks, LocalOwners(), node="n", timing=Timing(interval_s=0.01))) as sampling:
        assert looks.enough.wait(WITHIN_S)
        assert sampling.usage().gpus[0].utilisation == 0.5
    ended = looks.count
    assert not any(thread.name == "batuta-profiler" for thread in threading.enumerate())
    assert sampling.samples == ended


def test_a_driver_that_fails_for_a_while_does_not_end_it():
    looks = Looks(6, failing=3)
    sampling = ProfilerThread(Profiler(looks, LocalOwners(), node="n", timing=Timing(interval_s=0.01)))
    begun_s = sampling.sampled_s
    with sampling:
        assert looks.enough.wait(WITHIN_S)
    assert (sampling.failures, sampling.samples) == (3, looks.count - 3)
    assert sampling.sampled_s > begun_s


def test_a_driver_that_never_answers_has_not_been_sampled():
    looks = Looks(3, failing=1_000_000)
    sampling = ProfilerThread(Profiler(looks, LocalOwners(), node="n", timing=Timing(interval_s=0.01)))
    begun_s = sampling.sampled_s
    with sampling:
        assert looks.enough.wait(WITHIN_S)
    assert (sampling.samples, sampling.sampled_s) == (0, begun_s)
