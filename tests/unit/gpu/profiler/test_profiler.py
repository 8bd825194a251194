"""The profiler on GPUs and processes that a test makes up."""

import numpy as np
import pytest

from batuta.gpu.owners import LocalOwners, Owner, ProcessWork
from batuta.gpu.profiler.behaviour import Activity, Bottleneck, Stage
from batuta.gpu.profiler.profiler import Profiler, Timing
from batuta.gpu.profiler.sources import NodeSample
from batuta.gpu.profiler.usage import JobUsage, StepReport
from tests.unit.gpu.profiler.scenes import A, B, Node, gpu, process
from tests.unit.gpu.profiler.signals import steps


def only_job(profiler: Profiler) -> JobUsage:
    (job,) = profiler.usage().jobs
    return job


def mean(job: JobUsage) -> float:
    assert job.utilisation is not None
    return job.utilisation.mean


class TestShares:
    def test_one_process_has_all_of_its_gpu(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 0.6, process(1)))
        assert mean(only_job(profiler)) == pytest.approx(0.6)

    def test_two_jobs_on_a_gpu_have_what_the_driver_says(self):
        node = Node({1: A, 2: B})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 0.9, process(1, 0.6, 100), process(2, 0.3, 200)))
        first, second = profiler.usage().jobs
        assert (mean(first), mean(second)) == pytest.approx((0.6, 0.3))
        assert (first.memory_mib, second.memory_mib) == (100, 200)

    def test_a_driver_that_does_not_say_leaves_equal_parts(self):
        node = Node({1: A, 2: B})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 0.8, process(1), process(2)))
        assert [mean(job) for job in profiler.usage().jobs] == pytest.approx([0.4, 0.4])

    def test_what_a_process_of_the_host_uses_is_no_jobs(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 0.9, process(1, 0.2), process(99, 0.7)))
        assert mean(only_job(profiler)) == pytest.approx(0.2)

    def test_pods_of_one_job_are_one_job(self):
        other = Owner("a", "a-1", "team")
        node = Node({1: A, 2: other})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 1.0, process(1)), gpu(1, 0.5, process(2)))
        job = only_job(profiler)
        assert [pod.owner for pod in job.pods] == [A, other]
        assert mean(job) == pytest.approx(0.75)
        assert (job.memory_mib, job.gpus) == (1000, (0, 1))

    def test_a_job_over_gpus_is_averaged_by_gpus_and_not_by_pods(self):
        other = Owner("a", "a-1", "team")
        node = Node({1: A, 2: other})
        profiler = node.profiler()
        node.run(profiler, 3, *(gpu(k, 1.0, process(1)) for k in range(3)), gpu(3, 0.0, process(2)))
        assert mean(only_job(profiler)) == pytest.approx(0.75)

    def test_a_gpu_whose_processes_cannot_be_seen_is_that_of_the_pod_which_was_given_it(self):
        node = Node(given={"GPU-0": A})
        profiler = node.profiler()
        node.run(profiler, 3, gpu(0, 0.7), gpu(1, 0.4))
        job = only_job(profiler)
        assert (job.job, job.gpus) == ("a", (0,))
        assert mean(job) == pytest.approx(0.7)


class TestEnds:
    def test_a_job_whose_process_has_ended_is_told_of_no_more(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 5, gpu(0, 0.9, process(1)))
        node.run(profiler, 5, gpu(0, 0.0))
        assert profiler.usage().jobs == ()

    def test_what_it_reported_ends_with_it(self):
        node = Node({1: A})
        profiler = node.profiler()
        profiler.report_step("a", StepReport(1000, 10), "team")
        node.run(profiler, 5, gpu(0, 0.9, process(1)))
        assert only_job(profiler).progress is not None
        node.run(profiler, 5, gpu(0, 0.0))
        node.run(profiler, 5, gpu(0, 0.9, process(1)))
        assert only_job(profiler).progress is None

    def test_a_look_that_missed_it_does_not_end_a_job(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 5, gpu(0, 0.9, process(1)))
        node.run(profiler, 2, gpu(0, 0.9))
        assert only_job(profiler).job == "a"

    def test_another_process_with_the_same_pid_is_not_taken_for_the_first(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 2, gpu(0, 0.9, process(1)))
        node.owned, node.work = {1: B}, {1: ProcessWork(1, 2, 0.0)}
        node.run(profiler, 5, gpu(0, 0.9, process(1)))
        assert only_job(profiler).job == "b"


class TestGpus:
    def test_a_gpu_is_as_busy_as_it_was_on_average_lately(self):
        node = Node()
        profiler = node.profiler(Timing(recent_s=10))
        node.run(profiler, 20, gpu(0, 1.0))
        node.run(profiler, 5, gpu(0, 0.0))
        (found,) = profiler.usage().gpus
        assert (found.utilisation, found.utilisation_peak) == pytest.approx((0.5, 1.0))

    def test_a_gpu_that_has_fallen_off_the_bus_is_not_known_by_what_it_did_before(self):
        node = Node()
        profiler = node.profiler()
        node.run(profiler, 5, gpu(0, 1.0))
        node.run(profiler, 1, gpu(0, None))
        (found,) = profiler.usage().gpus
        assert found.utilisation is None

    def test_before_the_first_look_there_is_nothing(self):
        usage = Profiler(lambda: NodeSample(0.0, ()), LocalOwners(), node="n").usage()
        assert (usage.gpus, usage.jobs, usage.time_s) == ((), (), 0.0)


class TestBehaviour:
    def test_a_training_job_in_its_steady_stage(self):
        node = Node({1: A})
        profiler = node.profiler()
        for busy in steps(np.random.default_rng(1), 10.0, length_s=200, busy=0.95):
            node.run(profiler, 1, gpu(0, float(busy), process(1)))
        job = only_job(profiler)
        assert job.period_s == pytest.approx(10.0, rel=0.05)
        found = job.behaviour
        assert (found.activity, found.stage, found.bottleneck) == (
            Activity.TRAINING,
            Stage.STEADY,
            Bottleneck.GPU,
        )
        assert job.memory_plateau_mib == 500

    def test_the_drivers_own_samples_show_iterations_shorter_than_a_look(self):
        node = Node({1: A})
        profiler = node.profiler()
        fine = steps(np.random.default_rng(1), 1.5, length_s=90, interval_s=0.1)
        for second in range(90):
            values = fine[second * 10 : second * 10 + 10]
            recent = tuple((second + 0.1 * k, float(value)) for k, value in enumerate(values))
            node.run(profiler, 1, gpu(0, float(values.mean()), process(1), recent=recent))
        assert only_job(profiler).period_s == pytest.approx(1.5, rel=0.05)

    def test_the_drivers_samples_are_of_no_use_where_two_share_the_gpu(self):
        node = Node({1: A, 2: B})
        profiler = node.profiler()
        fine = steps(np.random.default_rng(1), 1.5, length_s=90, interval_s=0.1)
        for second in range(90):
            values = fine[second * 10 : second * 10 + 10]
            recent = tuple((second + 0.1 * k, float(value)) for k, value in enumerate(values))
            busy = float(values.mean())
            node.run(profiler, 1, gpu(0, busy, process(1, busy / 2), process(2, busy / 2), recent=recent))
        assert [job.period_s for job in profiler.usage().jobs] == [None, None]

    def test_a_process_that_fills_its_core_while_the_gpu_waits(self):
        node = Node({1: A})
        profiler = node.profiler()
        for second in range(60):
            node.work = {1: ProcessWork(1, 1, cpu_s=second * 0.98, read_bytes=0, written_bytes=0)}
            node.run(profiler, 1, gpu(0, 0.3, process(1)))
        assert only_job(profiler).behaviour.bottleneck is Bottleneck.CPU

    def test_what_a_job_reports_is_its_progress(self):
        node = Node({1: A})
        profiler = node.profiler()
        node.run(profiler, 30, gpu(0, 0.9, process(1)))
        for k in range(5):
            profiler.report_step("a", StepReport(1000 + 2 * k, 100 * k, 1000), "team")
        progress = only_job(profiler).progress
        assert progress is not None
        assert (progress.step, progress.step_time_s) == pytest.approx((400, 0.02))
        assert progress.finish_s == pytest.approx(1008 + 600 * 0.02)

    def test_a_neighbour_on_the_same_card_is_seen_as_a_slowdown(self):
        node = Node({1: A, 2: B})
        profiler = node.profiler()
        node.run(profiler, 40, gpu(0, 0.9, process(1, 0.9)))
        node.run(profiler, 40, gpu(0, 0.9, process(1, 0.45), process(2, 0.45)))
        slowdowns = {job.job: job.slowdown for job in profiler.usage().jobs}
        assert slowdowns["a"] == pytest.approx(2.0, rel=0.01)
        assert slowdowns["b"] is None  # it never was alone

    def test_a_neighbour_that_only_holds_memory_is_none(self):
        node = Node({1: A, 2: B})
        profiler = node.profiler()
        node.run(profiler, 40, gpu(0, 0.9, process(1, 0.9)))
        node.run(profiler, 40, gpu(0, 0.9, process(1, 0.9), process(2, 0.0)))
        assert {job.job: job.slowdown for job in profiler.usage().jobs}["a"] is None
