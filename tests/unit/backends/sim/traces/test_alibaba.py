"""Alibaba: pods with whole GPUs or a part of one."""

import pytest

from batuta.backends.sim.traces.reader import read_workload
from batuta.core.job import Share

HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def pod(name="p", gpus="1", milli="1000", spec="", created="100", deleted="400", scheduled="150"):
    return f"{name},12001,4096,{gpus},{milli},{spec},LS,Running,{created},{deleted},{scheduled}\n"


def test_a_pod_runs_from_its_start_to_its_deletion(write):
    (own,) = read_workload(write("pods.csv", HEADER + pod())).jobs
    assert (own.job.id, own.job.submit_s, own.work_s) == ("p", 0.0, 250.0)


def test_a_pod_that_was_never_scheduled_runs_from_creation_to_deletion_and_is_counted(write):
    workload = read_workload(write("pods.csv", HEADER + pod(scheduled="")))
    assert workload.jobs[0].work_s == 300.0
    assert workload.notes == ("1 pods were never scheduled: they run from creation to deletion",)


def test_a_part_of_a_gpu_is_a_share_of_its_compute_rounded_up(write):
    workload = read_workload(write("pods.csv", HEADER + pod("a", milli="460") + pod("b", milli="461")))
    assert [own.job.share for own in workload.jobs] == [Share(compute_percent=46), Share(compute_percent=47)]


def test_a_whole_gpu_is_no_share(write):
    assert read_workload(write("pods.csv", HEADER + pod())).jobs[0].job.share is None


def test_cpu_and_memory_are_per_gpu_rounded_up(write):
    (own,) = read_workload(write("pods.csv", HEADER + pod(gpus="8"))).jobs
    assert (own.job.size, own.job.cpus_milli_per_gpu, own.job.memory_mib_per_gpu) == (8, 1501, 512)


def test_a_gpu_spec_lists_the_accepted_types(write):
    (own,) = read_workload(write("pods.csv", HEADER + pod(spec="V100M16|V100M32"))).jobs
    assert own.job.gpu_types == (("V100M16", 1.0), ("V100M32", 1.0))


def test_pods_without_a_gpu_are_left_out_and_counted(write):
    workload = read_workload(write("pods.csv", HEADER + pod("a", gpus="0", milli="0") + pod("b")))
    assert [own.job.id for own in workload.jobs] == ["b"]
    assert workload.notes == ("1 pods without a GPU are left out",)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (pod(gpus="2", milli="500"), "gpu_milli must be 1000 for a pod with 2 GPUs, found 500"),
        (pod(milli="0"), "gpu_milli"),
        (pod(milli="1001"), "gpu_milli"),
        (pod(deleted="120"), "deletion_time 120 lies before the start at 150"),
        (pod(gpus="-1"), "num_gpu"),
    ],
)
def test_an_impossible_pod_is_named(write, problems_of, row, said):
    (problem,) = problems_of(lambda: read_workload(write("pods.csv", HEADER + row)))
    assert problem.line == 2
    assert said in problem.message


@pytest.mark.parametrize("name", ["default", "gpushare60"])
def test_the_published_pods_are_read(shared_data, name):
    workload = read_workload(shared_data / "alibaba-v2023" / f"openb_pod_list_{name}.csv")
    assert len(workload.jobs) == 7064
    assert "1088 pods without a GPU are left out" in workload.notes
    assert not [own for own in workload.jobs if own.job.faults()]
