"""How long one UnifiedJob takes on an idle cluster: to be bound, to grow, to shrink."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import show
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.operator_process import OperatorProcess
from tests.support.kube.unified import Jobs, Submitted, manifest

BAR_MS = 300.0
_SMALL, _LARGE = 2, 4
_LOOK_S = 0.002
_WITHIN_S = 30.0


def measure(cluster: ControlPlane, count: int) -> None:
    """Prints medians, from the request that asks for it: what the decision itself takes is included."""
    created: list[float] = []
    grown: list[float] = []
    shrunk: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="batuta-latency-") as folder,
        OperatorProcess(cluster, Path(folder)),
    ):
        jobs = Jobs(cluster, cluster.new_namespace())
        for number in range(count):
            body = manifest(f"job-{number}", "ElasticHorovod", (1, _LARGE), replica_spec=_target(_SMALL))
            created.append(_timed(partial(jobs.create, body), Submitted(jobs, f"job-{number}"), _SMALL))
            job = Submitted(jobs, f"job-{number}")
            job.runs_with(_SMALL)
            for size, found in ((_LARGE, grown), (_SMALL, shrunk)):
                wish = {"spec": {"replicaSpec": _target(size)}}
                found.append(_timed(partial(job.patch, wish), job, size))
                job.runs_with(size)
            cluster.api.delete(job.path)
    taken = {
        f"created → {_SMALL} pods bound": created,
        f"{_SMALL} to {_LARGE} replicas → new pods bound": grown,
        f"{_LARGE} to {_SMALL} replicas → pods deleted": shrunk,
    }
    rows = [
        (name, statistics.median(found), max(found), "!" if statistics.median(found) > BAR_MS else "")
        for name, found in taken.items()
    ]
    show(
        f"One UnifiedJob on an idle cluster, {count} of each (bar: a median of {BAR_MS:.0f} ms)",
        ("from the request", "median ms", "slowest ms", ""),
        rows,
    )


def _target(replicas: int) -> dict[str, int]:
    return {"targetReplicas": replicas}


def _timed(do: Callable[[], object], job: Submitted, size: int) -> float:
    """Milliseconds from a request until the job has so many workers, and each has a node."""
    begun_s = time.monotonic()
    do()
    while True:
        workers = job.workers().values()
        if len(workers) == size and all("nodeName" in pod["spec"] for pod in workers):
            return 1000 * (time.monotonic() - begun_s)
        if time.monotonic() > begun_s + _WITHIN_S:
            raise TimeoutError(f"{job.name} has not {size} workers with a node after {_WITHIN_S:.0f} s")
        time.sleep(_LOOK_S)
