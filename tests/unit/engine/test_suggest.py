"""What would start a job that waits: each suggestion is tried out, the smallest change is named."""

import pytest

from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import NO_RESTART_S, DesiredState, Spread, Topology
from batuta.core.quota import ClusterQueue, StopPolicy
from batuta.engine.profile import profile_for
from batuta.engine.suggest import Remedy, suggest
from tests.support.quotas import gpus, quota_of
from tests.support.worlds import NOW_S, make_job, make_nodes, make_world


def suggestions(world, job, policy="fifo", **options):
    found = suggest(world, NOW_S, job, lambda: profile_for(policy), **options)
    return {one.remedy: one for one in found}


def full(*waiting, nodes=(4, 4)):
    """Two nodes of which a has one; b has half of the other until 100 s, c the rest until 1,000 s."""
    jobs = [
        make_job("a", 4, work_s=1e6),
        make_job("b", 2, work_s=2 * (NOW_S + 100)),
        make_job("c", 2, work_s=2 * (NOW_S + 1000)),
        *waiting,
    ]
    return make_world(make_nodes(*nodes), {"a": "n0:0123", "b": "n1:01", "c": "n1:23"}, jobs)


def test_a_job_that_has_gpus_or_would_start_anyway_needs_no_suggestion():
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2), make_job("w", 2)])
    assert suggestions(world, "a") == suggestions(world, "w") == suggestions(world, "nobody") == {}


def test_nothing_changes_by_asking():
    world = full(make_job("w", 2, submit_s=5))
    before = world.version, list(world.jobs.jobs), world.layout.total_free
    suggestions(world, "w")
    assert (world.version, list(world.jobs.jobs), world.layout.total_free) == before


def test_the_largest_smaller_size_that_starts():
    world = make_world(make_nodes(4, 4), {"a": "n0:01"}, [make_job("a", 2), make_job("w", 8, submit_s=5)])
    found = suggestions(world, "w")[Remedy.FEWER_GPUS]
    assert (found.gpus, found.stops) == (6, ())
    assert str(found) == "if it asked for 6 GPUs instead of 8"


def test_smaller_sizes_are_whole_replicas():
    job = make_job("w", 8, submit_s=5, gpus_per_replica=4)
    world = make_world(make_nodes(4, 4), {"a": "n0:01"}, [make_job("a", 2), job])
    assert suggestions(world, "w")[Remedy.FEWER_GPUS].gpus == 4


def test_a_policy_that_gives_the_size_asked_for_may_start_the_job_with_less_than_that():
    job = make_job("w", 8, min=2, max=8, sizes=(2, 4, 8), submit_s=5)
    world = make_world(make_nodes(4, 4), {"a": "n0:01"}, [make_job("a", 2), job])
    found = suggestions(world, "w", "tiresias")[Remedy.FEWER_GPUS]
    assert found.gpus == 4


def test_the_next_job_whose_end_makes_enough_room():
    assert suggestions(full(make_job("w", 2, submit_s=5)), "w")[Remedy.JOB_ENDS].within_s == pytest.approx(100)
    larger = suggestions(full(make_job("w", 4, submit_s=5)), "w")[Remedy.JOB_ENDS]
    assert dict(larger.facts) == {"job": "a"}


def test_as_many_jobs_as_it_takes():
    found = suggestions(full(make_job("w", 6, submit_s=5)), "w")
    assert Remedy.JOB_ENDS not in found
    assert str(found[Remedy.JOBS_END]) == "when 3 of the jobs that run have ended, a as the last of them"


def test_another_gpu_type():
    nodes = [Node("n0", 2, gpu_type="A100"), Node("n1", 2, gpu_type="T4")]
    job = make_job("w", 2, submit_s=5, gpu_types=(("A100", 1.0),))
    world = make_world(nodes, {"a": "n0:01"}, [make_job("a", 2, gpu_types=(("A100", 1.0),)), job])
    assert str(suggestions(world, "w")[Remedy.ANOTHER_TYPE]) == "if it accepted GPUs of type T4"


def test_without_the_wish_for_one_node():
    job = make_job("w", 2, submit_s=5, topology=Topology(Spread.NODE, required=True))
    others = [make_job(name, 3, restart_s=NO_RESTART_S) for name in "ab"]
    world = make_world(make_nodes(4, 4), {"a": "n0:012", "b": "n1:012"}, [*others, job])
    assert suggestions(world, "w")[Remedy.WITHOUT_TOPOLOGY].gpus == 2


def test_without_the_wish_for_labels():
    job = make_job("w", 2, submit_s=5, node_labels=(("disk", "fast"),))
    found = suggestions(make_world(make_nodes(4), jobs=[job]), "w")
    assert found[Remedy.WITHOUT_NODE_WISHES].gpus == 2


def test_a_node_that_is_out_of_service():
    world = make_world(make_nodes(4, 4), {}, [make_job("w", 8)], cordoned=["n1"])
    assert str(suggestions(world, "w")[Remedy.NODE_BACK]) == "if node n1 was in service"
    world = make_world(make_nodes(4, 4), {}, [make_job("w", 8)], lost=["n0"], cordoned=["n0"])
    assert suggestions(world, "w")[Remedy.NODE_BACK].gpus == 8


def test_as_many_nodes_as_it_takes():
    world = make_world(make_nodes(4, 4), {}, [make_job("w", 20)])
    assert str(suggestions(world, "w")[Remedy.MORE_NODES]) == "with 3 more nodes like n0"


def test_a_parked_job_is_to_be_started_again():
    world = make_world(make_nodes(4), {}, [make_job("w", 2)])
    apply(world, ev.JobWished(NOW_S, "w", DesiredState.PARK))
    assert list(suggestions(world, "w")) == [Remedy.STARTED_AGAIN]


# ------------------------------------------------------------------------------------------------------ quota


def queue(name, nominal, **settings):
    return ClusterQueue(name, groups=gpus(nominal), **settings)


def under_quota(*queues, job):
    world = make_world(make_nodes(8), {}, [job])
    apply(world, ev.QuotaSet(0.0, quota_of(*queues)))
    return world


def test_the_quota_that_is_missing():
    world = under_quota(queue("q", 3), job=make_job("w", 8, queue="q"))
    found = suggestions(world, "w")[Remedy.MORE_QUOTA]
    assert (dict(found.facts)["amount"], found.gpus) == (5, 8)


def test_a_queue_that_has_enough():
    world = under_quota(queue("q", 3), queue("rich", 8), job=make_job("w", 8, queue="q"))
    assert str(suggestions(world, "w")[Remedy.ANOTHER_QUEUE]) == "in queue rich instead of q"


def test_a_queue_that_is_held():
    world = under_quota(queue("q", 8, stop=StopPolicy.HOLD), job=make_job("w", 8, queue="q"))
    assert suggestions(world, "w")[Remedy.QUEUE_RELEASED].gpus == 8


def test_who_would_lose_gpus_for_it_is_said():
    jobs = [make_job("a", 4, max=4, min=1, submit_s=1), make_job("w", 4, queue="q", submit_s=5)]
    world = make_world(make_nodes(4), {"a": "n0:0123"}, jobs)
    found = suggestions(world, "w", "elastic-fifo")
    assert found[Remedy.FEWER_GPUS].gpus == 3
    assert found[Remedy.FEWER_GPUS].shrinks == ("a",)


def test_with_no_trials_left_there_is_no_more_suggestion():
    world = full(make_job("w", 2, submit_s=5))
    assert suggestions(world, "w", most_trials=1) == {}
