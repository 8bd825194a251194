"""What a job is doing, told from synthetic measurements."""

import numpy as np
import pytest

from batuta.gpu.profiler.behaviour import (
    Activity,
    Bottleneck,
    Stage,
    activity_of,
    behaviour,
    bottleneck_of,
    iteration_period_s,
    stage_of,
)
from tests.unit.gpu.profiler.signals import signals, steps


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


LEVEL = np.full(120, 8000.0)


class TestActivity:
    def test_iterations_are_training(self):
        busy = steps(rng(), 10.0)
        assert activity_of(busy, iteration_period_s(busy)) is Activity.TRAINING

    def test_a_gpu_that_never_rests_is_training_though_its_iterations_are_too_short_to_see(self):
        busy = np.clip(rng().normal(0.95, 0.02, 120), 0, 1)
        assert activity_of(busy, None) is Activity.TRAINING

    def test_who_reports_steps_trains(self):
        assert activity_of(np.zeros(3), None, reports_steps=True) is Activity.TRAINING

    def test_requests_at_random_times_are_inference(self):
        chance = rng()
        requests = (chance.random(300) < 0.3) * chance.random(300)
        assert activity_of(requests, iteration_period_s(requests)) is Activity.INFERENCE

    def test_who_holds_a_gpu_and_does_nothing_is_idle_even_if_steps_were_reported(self):
        assert activity_of(np.zeros(120), None) is Activity.IDLE
        assert activity_of(np.full(120, 0.01), None, reports_steps=True) is Activity.IDLE

    def test_a_few_samples_say_nothing(self):
        assert activity_of(np.ones(5), None) is Activity.UNKNOWN


class TestStage:
    def test_memory_that_grows_before_any_work_is_loading(self):
        assert stage_of(signals(utilisation=np.zeros(60), memory_mib=np.linspace(0, 9000, 60))) is Stage.LOADING

    def test_work_while_memory_still_grows_is_warm_up(self):
        found = signals(utilisation=np.full(60, 0.5), memory_mib=np.linspace(4000, 9000, 60))
        assert stage_of(found) is Stage.WARM_UP

    def test_work_on_a_plateau_is_steady(self):
        assert stage_of(signals(utilisation=np.full(120, 0.9), memory_mib=LEVEL)) is Stage.STEADY

    def test_a_pause_in_which_much_is_written_is_a_checkpoint(self):
        busy = np.concatenate([np.full(110, 0.9), np.zeros(10)])
        written = np.concatenate([np.zeros(105), np.full(15, 300.0)])
        found = signals(utilisation=busy, memory_mib=LEVEL, written_mib_s=written)
        assert stage_of(found) is Stage.CHECKPOINT

    def test_a_pause_in_which_nothing_is_written_is_none(self):
        busy = np.concatenate([np.full(110, 0.9), np.zeros(10)])
        assert stage_of(signals(utilisation=busy, memory_mib=LEVEL, written_mib_s=0.0)) is Stage.STEADY


class TestBottleneck:
    def test_a_gpu_that_is_full_is_the_bottleneck(self):
        assert bottleneck_of(signals(utilisation=np.full(60, 0.97), busiest_cores=1.0)) is Bottleneck.GPU

    def test_kernels_that_wait_for_other_gpus_are_communication(self):
        waiting = signals(utilisation=np.full(60, 0.99), sm_activity=0.2, gpus=4.0)
        assert bottleneck_of(waiting) is Bottleneck.COMMUNICATION
        alone = signals(utilisation=np.full(60, 0.99), sm_activity=0.2, gpus=1.0)
        assert bottleneck_of(alone) is Bottleneck.GPU

    def test_traffic_while_the_gpus_rest_is_communication(self):
        busy = np.array([0.9] * 5 + [0.1] * 3)
        busy = np.tile(busy, 10)
        traffic = np.where(busy > 0.5, 50.0, 5000.0)
        found = signals(utilisation=busy, nvlink_mib_s=traffic, gpus=4.0)
        assert bottleneck_of(found) is Bottleneck.COMMUNICATION
        one_gpu = signals(utilisation=busy, nvlink_mib_s=traffic, gpus=1.0)
        assert bottleneck_of(one_gpu) is Bottleneck.UNKNOWN

    def test_a_process_that_fills_a_core_while_the_gpu_waits_is_the_cpu(self):
        found = signals(utilisation=np.full(60, 0.3), busiest_cores=0.99, read_mib_s=0.0)
        assert bottleneck_of(found) is Bottleneck.CPU

    def test_reading_much_while_the_gpu_waits_is_input(self):
        found = signals(utilisation=np.full(60, 0.3), busiest_cores=0.99, read_mib_s=400.0)
        assert bottleneck_of(found) is Bottleneck.INPUT

    def test_where_nothing_is_full_nothing_is_said(self):
        found = signals(utilisation=np.full(60, 0.3), busiest_cores=0.2, read_mib_s=0.1)
        assert bottleneck_of(found) is Bottleneck.UNKNOWN


def test_a_bottleneck_is_named_in_the_steady_stage_only():
    loading = signals(utilisation=np.full(60, 0.97), memory_mib=np.linspace(10, 9000, 60))
    assert behaviour(loading, None).bottleneck is Bottleneck.UNKNOWN
    steady = signals(utilisation=np.full(120, 0.97), memory_mib=LEVEL)
    assert behaviour(steady, None).bottleneck is Bottleneck.GPU


@pytest.mark.parametrize("seed", range(5))
def test_noise_on_the_links_is_no_communication(seed: int):
    chance = np.random.default_rng(seed)
    found = signals(utilisation=chance.random(300), nvlink_mib_s=chance.random(300) * 5000, gpus=4.0)
    assert bottleneck_of(found) is Bottleneck.UNKNOWN
