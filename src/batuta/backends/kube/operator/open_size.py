"""The size of a job whose user left it open: chosen once, when the job comes, and kept in its status."""

from __future__ import annotations

from typing import Any

from batuta.backends.kube import names
from batuta.backends.kube.operator.run import Site
from batuta.backends.kube.unified_job.model import SizeChoiceStatus, UnifiedJob
from batuta.backends.kube.unified_job.to_job import pinned_replicas
from batuta.core.expected import SizeChoice
from batuta.core.job import Job
from batuta.prediction.initial_size import legal_sizes, settle
from batuta.spec.task_job import NEVER_S


class OpenSize:
    """Settles the size of one job. The same answer at every look, also by the next operator."""

    def __init__(self, site: Site, known: Job | None) -> None:
        """`known`: the job as the World knows it from before."""
        self._site = site
        self.choice: SizeChoice | None = None if known is None else known.size_choice
        """What was chosen; None while nothing was, and for a job that says its size."""

    def settle(self, uj: UnifiedJob, job: Job) -> Job:
        """The job with the size that was chosen for it; as it is where its user says one."""
        if uj.metadata.annotations.get(names.WANTED) != names.ANY_SIZE or job.share is not None:
            self.choice = None
            return job
        if pinned_replicas(uj) is not None:
            return job
        if self.choice is None:
            self.choice = _read(uj.status.size_choice, job)
        if self.choice is None or not _is_legal(self.choice, job):
            self.choice = self._site.choose(job)
        if self.choice is None:
            return job  # it is tried out first
        # A job that cannot save what it has done is not resized.
        return settle(job, self.choice, for_good=job.checkpoint_interval_s == NEVER_S)


def size_choice_status(choice: SizeChoice) -> dict[str, Any]:
    """What people read of it, and the next operator."""
    return {
        "gpus": choice.gpus,
        "fastestGpus": choice.best_gpus,
        "speedPercentage": round(100 * choice.speed_share),
        "measuredJobs": choice.jobs,
        "message": choice.sentence,
    }


def _read(written: SizeChoiceStatus | None, job: Job) -> SizeChoice | None:
    if written is None:
        return None
    return SizeChoice(
        written.gpus,
        written.fastest_gpus,
        written.speed_percentage / 100,
        job.application,
        written.measured_jobs,
    )


def _is_legal(choice: SizeChoice, job: Job) -> bool:
    """Whether its user has not changed the range meanwhile, and nobody wrote nonsense into the status."""
    return choice.gpus in legal_sizes(job)
