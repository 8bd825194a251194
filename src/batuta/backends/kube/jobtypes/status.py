"""The status of a run, from its pods and from its Job or MPIJob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import read_whole
from batuta.backends.kube.jobtypes.job_type import ChildKind, JobStatus, Observed, Outcome, Run
from batuta.backends.kube.jobtypes.pod_template import LAUNCHER, WORKER
from batuta.backends.kube.objects import Batch, Pod, Terminated
from batuta.backends.kube.unified_job.model import MOST_REPLICAS

OVER: Final = ("Succeeded", "Failed")
_LONGEST_MESSAGE: Final = 1024


def members(pods: Iterable[Pod], run: Run, role: str = WORKER) -> list[Pod]:
    wanted = (str(run.start), role)
    labels = ((pod, pod.metadata.labels) for pod in pods)
    return [pod for pod, own in labels if (own.get(names.START), own.get(names.ROLE)) == wanted]


def replica_by_label(pod: Pod, label: str = names.REPLICA_INDEX) -> int | None:
    if pod.metadata.labels.get(names.ROLE) == LAUNCHER:
        return None
    return read_whole(pod.metadata.labels.get(label), most=MOST_REPLICAS - 1)


def is_ready(pod: Pod) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)


def counts(pods: Sequence[Pod]) -> tuple[int, int]:
    alive = [pod for pod in pods if pod.status.phase not in OVER and not pod.metadata.deletion_timestamp]
    return len(alive), sum(map(is_ready, alive))


def status_of_members(pods: Sequence[Pod], run: Run) -> JobStatus:
    """A run whose members are equal: it has succeeded when all have, and failed when one has."""
    found, ready = counts(pods)
    if (failed := failure_of(pods)) is not None:
        return JobStatus(found, ready, *failed)
    done = sum(pod.status.phase == "Succeeded" for pod in pods)
    if run.target and done >= run.target:
        return JobStatus(found, ready, Outcome.SUCCEEDED, 0)
    return JobStatus(found, ready)


def failure_of(pods: Sequence[Pod]) -> tuple[Outcome, int | None, str] | None:
    """The first failure that is the job's own; else the first that is the cluster's; None without any.

    A pod that is being deleted ends because a client wanted it to, whatever its exit code.
    """
    failed = [pod for pod in pods if pod.status.phase == "Failed" and not pod.metadata.deletion_timestamp]
    if not failed:
        return None
    own = [pod for pod in failed if not is_disrupted(pod)]
    first = min(own or failed, key=_end)
    ended = _first_failed_container(first)
    code = ended.exit_code if ended is not None else None
    return (Outcome.FAILED if own else Outcome.DISRUPTED), code, _message(first, ended)


def is_disrupted(pod: Pod) -> bool:
    """Whether the cluster ended the pod: a preemption, an eviction, a node that went away."""
    return any(one.type == "DisruptionTarget" and one.status == "True" for one in pod.status.conditions) or (
        pod.status.reason in ("Evicted", "NodeLost", "NodeShutdown", "Terminated", "Shutdown")
    )


def _end(pod: Pod) -> tuple[str, str]:
    ended = _first_failed_container(pod)
    return (ended.finished_at if ended is not None else "~"), pod.metadata.name


def _first_failed_container(pod: Pod) -> Terminated | None:
    ended = [one.state.terminated for one in pod.status.container_statuses]
    failed = [one for one in ended if one is not None and one.exit_code != 0]
    return min(failed, key=lambda one: one.finished_at, default=None)


def termination_message(pod: Pod) -> str:
    """The end of the output of a pod whose containers failed, as its kubelet kept it."""
    ended = (one.state.terminated for one in pod.status.container_statuses)
    return "\n".join(one.message for one in ended if one is not None and one.exit_code and one.message)


def _message(pod: Pod, ended: Terminated | None) -> str:
    said = (ended.message or ended.reason if ended is not None else "") or pod.status.message
    said = said.strip().rpartition("\n")[2]  # of a log's end, the last line says why
    head = f"pod {pod.metadata.name}"
    if ended is not None:
        head += f" ended with exit code {ended.exit_code}"
    elif pod.status.reason:
        head += f": {pod.status.reason}"
    return (f"{head}: {said}" if said else head)[:_LONGEST_MESSAGE]


def status_of_batch(observed: Observed, kind: ChildKind, run: Run, to_blame: Sequence[Pod]) -> JobStatus:
    """Over when the Job or MPIJob says so; the failure of a pod in `to_blame` explains it."""
    found, ready = counts(members(observed.pods, run))
    start = str(run.start)
    batches = [one for its, one in observed.objects if its == kind and one.metadata.labels.get(names.START) == start]
    ends = [ending(one) for one in batches]
    end = next((one for one in ends if one is not None), None)
    if end is None:
        return JobStatus(found, ready)
    outcome, message = end
    if outcome is Outcome.SUCCEEDED:
        return JobStatus(found, ready, outcome, 0)
    blamed, code, why = failure_of(to_blame) or (Outcome.FAILED, None, "")
    return JobStatus(found, ready, blamed, code, why or message)


def ending(batch: Batch) -> tuple[Outcome, str] | None:
    """How it ended, by its conditions; None while it has not."""
    for one in batch.status.get("conditions") or ():
        if one.get("status") != "True":
            continue
        if one.get("type") in ("Complete", "Succeeded"):
            return Outcome.SUCCEEDED, ""
        if one.get("type") == "Failed":
            return Outcome.FAILED, f"{one.get('reason', '')}: {one.get('message', '')}".strip(": ")
    return None


def is_suspended(batch: Batch) -> bool:
    return bool(batch.spec.get("suspend"))
