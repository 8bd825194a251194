"""The status of a job is written at once when there is news, and only now and then for its progress."""

import pytest

from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import ReconcileContext
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.unified_job_status import StatusWriter
from batuta.backends.kube.operator.workqueue import WriteFn, WriteQueue, Written
from batuta.backends.kube.progress.log_lines import LogSource
from batuta.backends.kube.progress.log_reader import LogSubscriptions
from batuta.core.job import JobState, Progress
from batuta.core.reason import Reason
from tests.support.unified_jobs import unified_job


class Job:
    """One that is looked at each second, and whose writes all work."""

    def __init__(self, others: int = 0) -> None:
        posted: list[tuple[str, WriteFn]] = []
        listening = LogSubscriptions(lambda changes: None)
        for number in range(others):
            listening.to(f"a/{number}", LogSource(f"a/{number}", "a", "p", "u", "main"))
        writes = WriteQueue(posted.extend)
        site = ReconcileContext(
            Cluster(),
            writes,
            ObjectCache().owners(),
            lambda event: None,
            lambda party: None,
            listening=listening,
        )
        self.run = UnifiedJobReconciler(site, ObjectCache(), unified_job())
        self._site, self._posted, self._writer = site, posted, StatusWriter(site)

    def look(self, now_s: float) -> int:
        """How often its status is written now."""
        self._writer.write(self.run, now_s)
        self._site.writes.send()
        keys = [key for key, _ in self._posted]
        self._posted.clear()
        for key in keys:
            self._site.writes.heard(Written(key, None), now_s)
        return keys.count(f"{self.run.id}//status")


@pytest.mark.parametrize(("others", "least", "most"), [(0, 10, 13), (400, 2, 4)])
def test_progress_alone_is_written_now_and_then_and_less_often_among_many(others, least, most):
    """Given a report each second for a minute, the status is written every five, or every twenty, seconds."""
    job = Job(others)
    job.run.outlook.changes(JobState.RUNNING, Reason.FULL_SIZE, "runs")
    writes = job.look(0.0)
    for second in range(1, 61):
        job.run.outlook.progresses(Progress(fraction=second / 100), 100.0 - second, float(second))
        writes += job.look(float(second))
    assert least <= writes <= most


def test_news_is_written_at_once():
    job = Job(others=400)
    job.run.outlook.changes(JobState.RUNNING, Reason.FULL_SIZE, "runs")
    assert job.look(0.0) == 1
    job.run.outlook.progresses(Progress(fraction=0.5), 100.0, 1.0)
    assert job.look(1.0) == 0
    job.run.outlook.changes(JobState.PREEMPTED, Reason.FULL_SIZE, "waits")
    assert job.look(1.1) == 1
