"""A job whose user left its size open gets the one that earlier jobs of the application recommend."""

import json
import time
from typing import Any

from batuta.backends.kube import names
from tests.kube.cli.fake_kubelet import FakeKubelet
from tests.kube.conftest import AddNodes
from tests.support.kube.control_plane import ControlPlane, wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.unified import Jobs, Submitted, manifest

OPEN = {names.WANTED: names.ANY_SIZE}


def submit(jobs: Jobs, name: str, replicas: Any, annotations: dict[str, str] | None = None) -> Submitted:
    body = manifest(name, "Pods", replicas=replicas, annotations=annotations, pod={"runs_for": "3600s"})
    body["metadata"]["labels"] = {"app.kubernetes.io/name": f"resnet-{jobs.namespace}"}
    return jobs.create(body)


def test_without_any_measure_it_asks_for_the_smallest_and_says_so(jobs: Jobs, add_nodes: AddNodes) -> None:
    add_nodes(1, NodeShape(gpus=4))
    job = submit(jobs, "new", (1, 4), OPEN)
    job.reaches("RUNNING")
    choice = job.status["sizeChoice"]
    assert choice["gpus"] == 1
    assert "is not known yet, so it asks for the smallest" in choice["message"]


def test_what_earlier_jobs_measured_chooses_the_size(
    jobs: Jobs, add_nodes: AddNodes, kubelet: FakeKubelet, cluster: ControlPlane
) -> None:
    """Given jobs on one and on two GPUs of which the second is nearly twice as fast, then two are chosen."""
    kubelet.serve(cluster, add_nodes(1, NodeShape(gpus=8)))
    speeds = {"one": 10.0, "two": 19.0}
    running = {name: submit(jobs, name, size) for size, name in enumerate(speeds, start=1)}
    for size, job in enumerate(running.values(), start=1):
        job.runs_with(size)
    begun_s, tries = time.monotonic(), 0

    def look() -> dict[str, Any] | None:
        """The scripts report on; is it known by now how fast they are?"""
        nonlocal tries
        ran_s = time.monotonic() - begun_s
        for name, per_s in speeds.items():
            samples = per_s * ran_s
            said = json.dumps({"step": int(100 * ran_s), "total_steps": 10**6, "samples": samples})
            kubelet.print(jobs.namespace, f"{name}-0", f"{names.REPORT_PREFIX}{said}\n")
        tries += 1
        job = submit(jobs, f"open-{tries}", (1, 2), OPEN)
        choice: dict[str, Any] = job.reaches("RUNNING", "PENDING").get("sizeChoice", {})
        if choice.get("fastestGpus"):
            return choice
        jobs.api.delete(job.path)
        return None

    choice = wait_until(look, "the speeds to be known", pause_s=0.5)
    assert choice is not None
    assert choice["gpus"] == 2
    assert f"measured by 2 earlier jobs of resnet-{jobs.namespace}" in choice["message"]
