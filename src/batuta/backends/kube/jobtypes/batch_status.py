"""What a Job or MPIJob says of the run that it carries out."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.kube import names
from batuta.backends.kube.jobtypes.child import ChildKind
from batuta.backends.kube.jobtypes.job_type import JobStatus, Observed, Outcome, Run
from batuta.backends.kube.jobtypes.pod_status import counts, failure_of, members
from batuta.backends.kube.objects import Batch, Pod


def status_of_batch(observed: Observed, kind: ChildKind, run: Run, to_blame: Sequence[Pod]) -> JobStatus:
    """Over when the Job or MPIJob says so; the failure of a pod in `to_blame` explains it."""
    found, ready = counts(members(observed.pods, run))
    start = str(run.start)
    ends = [ending(one) for one in observed.of_kind(kind) if one.metadata.labels.get(names.START) == start]
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
        if one.get("status") == "True" and one.get("type") in ("Complete", "Succeeded"):
            return Outcome.SUCCEEDED, ""
        if one.get("status") == "True" and one.get("type") == "Failed":
            return Outcome.FAILED, f"{one.get('reason', '')}: {one.get('message', '')}".strip(": ")
    return None


def is_suspended(batch: Batch) -> bool:
    """Whether it has been told to have no pods."""
    return bool(batch.spec.get("suspend"))
