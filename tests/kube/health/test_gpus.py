"""One GPU falls ill, or a program does: only what is ill goes out of service."""

import json
from functools import partial

from batuta.backends.kube import names
from tests.support.kube.control_plane import wait_until
from tests.support.kube.health import Ward, pool
from tests.support.kube.unified import Jobs, Submitted


def ill_gpus(ward: Ward, node: str) -> dict[str, str]:
    return json.loads(ward.annotations(node).get(names.ILL_GPUS, "{}"))


def has_begun_again(job: Submitted) -> bool:
    return "1" in job.starts()


def test_xid_31_restarts_the_job_and_shuts_nothing(jobs: Jobs, ward: Ward, add_nodes):
    """Given an error of a program, its job begins again, once; node and GPU stay in service."""
    (node,) = add_nodes(1, pool(jobs.namespace, gpus=2))
    job = jobs.submit("train", replicas=1)
    job.runs_with(1)
    other = jobs.submit("other", replicas=1)
    before = other.runs_with(1)
    gpu = next(int(gpus) for _, gpus in job.places().values())

    (note,) = ward.note(node, 31, gpu=gpu)
    wait_until(lambda: job.starts() == {"1"}, "the job to begin again", 20)
    job.runs_with(1)
    ward.acknowledges(node, note)
    assert (ward.taint(node), ill_gpus(ward, node)) == (None, {})
    assert other.running() == before
    assert job.starts() == {"1"}
    wait_until(lambda: "Xid 31" in job.events().get("RestartedByHealth", [""])[0], "the event")


def test_the_same_error_in_three_jobs_is_the_gpu_s_fault(jobs: Jobs, ward: Ward, add_nodes):
    """Given Xid 31 in three different jobs on one GPU, then that GPU goes, and a job uses the other one."""
    (node,) = add_nodes(1, pool(jobs.namespace, gpus=2))
    for name in ("a", "b", "c"):
        job = jobs.submit(name, replicas=1)
        job.runs_with(1)
        owner = f"{jobs.namespace}/{name}/{next(iter(job.running()))}"
        # An agent knows whose process it was, whatever the scheduler thinks which GPU it has.
        ward.note(node, 31, gpu=0, owners=(owner,))
        if name != "c":
            wait_until(partial(has_begun_again, job), f"{name} to begin again", 20)
            job.patch({"metadata": {"annotations": {names.CANCEL: "true"}}})
            job.reaches("CANCELLED")
    wait_until(lambda: "0" in ill_gpus(ward, node), "the GPU to be taken out", 20)
    assert "in 3 different jobs" in ill_gpus(ward, node)["0"]
    assert ward.taint(node) is None
    wait_until(lambda: [gpus for _, gpus in job.places().values()] == ["1"], "the job to have the other GPU", 20)


def test_a_gpu_alone_is_taken_out_and_comes_back(jobs: Jobs, ward: Ward, add_nodes):
    """Given Xid 48 on a GPU, its job moves to another of the node; tested and well, the GPU is used again."""
    (node,) = add_nodes(1, pool(jobs.namespace, gpus=2))
    job = jobs.submit("train", replicas=1)
    job.runs_with(1)
    gpu = next(gpus for _, gpus in job.places().values())

    ward.note(node, 48, gpu=int(gpu))
    wait_until(lambda: gpu not in {gpus for _, gpus in job.places().values()} and job.running(), "a move", 20)
    assert ward.taint(node) is None
    waiting = jobs.submit("waiting", replicas=1)
    ward.annotate(node, mended=f"gpu-{gpu}")
    pod = ward.burn_in(node)
    assert not waiting.running()
    (container,) = pod["spec"]["containers"]
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": gpu} in container["env"]
    assert not container["resources"]
    ward.ends(pod, "Succeeded")
    waiting.runs_with(1)
    assert [gpus for _, gpus in waiting.places().values()] == [gpu]
