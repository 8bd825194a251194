"""A summary counts what a workload asks for."""

import pytest

from batuta.backends.sim.workload import GoodputRequest, SimJob, Workload, summarise_workload
from batuta.core.curve import linear_curve
from batuta.core.job import Job, Share
from batuta.spec.cluster import read_cluster


def sim_job(name, submit_s=0.0, size=1, seconds=3600.0, **facts):
    facts = {"min": size, "max": size, "curve": linear_curve(size)} | facts
    job = Job(id=name, submit_s=submit_s, size=size, **facts)
    return SimJob(job, seconds * size, job.curve)


WORKLOAD = Workload(
    "w",
    "test",
    (
        sim_job("a", size=4, user="u", min=1, max=8, curve=linear_curve(8)),
        sim_job("b", submit_s=100.0, share=Share(compute_percent=50), user="v", application="x"),
        sim_job("c", submit_s=7200.0, size=2, seconds=7200.0, gpu_types=(("T4", 1.0),)),
    ),
    ("a note",),
)


def test_sizes_times_and_gpu_hours_add_up():
    summary = summarise_workload(WORKLOAD)
    assert summary.jobs_by_gpus == {1: 1, 2: 1, 4: 1}
    assert (summary.elastic_jobs, summary.shared_jobs, summary.users, summary.applications) == (1, 1, 2, 1)
    assert (summary.span_s, summary.gpu_hours) == (7200.0, 4 + 0.5 + 4)
    assert summary.duration_s is not None
    assert (summary.duration_s["p50"], summary.duration_s["max"]) == (3600.0, 7200.0)
    assert (summary.load, summary.impossible_jobs, summary.notes) == (None, None, ("a note",))


@pytest.mark.parametrize(
    ("cluster", "load", "impossible"),
    [("1x4:T4", 8.5 / 8, 0), ("1x1:T4", 8.5 / 2, 1), ("2x4:A100", 8.5 / 16, 1)],
)
def test_the_load_is_what_the_cluster_is_asked_for_while_jobs_arrive(cluster, load, impossible):
    summary = summarise_workload(WORKLOAD, read_cluster(cluster))
    assert summary.load == pytest.approx(load)
    assert summary.impossible_jobs == impossible


def test_run_times_are_unknown_where_profiles_decide():
    own = sim_job("a")
    job = SimJob(own.job, own.work_s, own.curve, GoodputRequest("bert", 1, 12))
    summary = summarise_workload(Workload("w", "pollux", (job,)), read_cluster("1x4"))
    assert (summary.duration_s, summary.gpu_hours, summary.load) == (None, None, None)


def test_jobs_that_all_come_at_once_have_no_load():
    assert summarise_workload(Workload("w", "test", (sim_job("a"),)), read_cluster("1x4")).load is None
