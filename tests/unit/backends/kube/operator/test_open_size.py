"""A job whose user left its size open is given one once, and it says why."""

from typing import Any

from batuta.backends.kube import names
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.operator.cache import ObjectCache
from batuta.backends.kube.operator.context import KnownJob, ReconcileContext
from batuta.backends.kube.operator.unified_job_reconciler import UnifiedJobReconciler
from batuta.backends.kube.operator.unified_job_status import status_of
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.backends.kube.unified_job.model import UnifiedJob
from batuta.core import event as ev
from batuta.core.job import Job, SizeChoice
from tests.support.unified_jobs import ON_CPU, manifest, read, unified_job

OPEN = {names.WANTED: names.ANY_SIZE}
FOUR = SizeChoice(4, 8, 0.92, "resnet", 3)
SENTENCE = "4 GPUs give 92 % of the speed of 8 (measured by 3 earlier jobs of resnet)"


class Operator:
    """One that knows how fast jobs are, and hears of one of them."""

    def __init__(self, job: UnifiedJob, choice: SizeChoice = FOUR, known: Job | None = None) -> None:
        self.told: list[ev.Event] = []
        self.asked = 0
        self._choice = choice
        site = ReconcileContext(
            Cluster(),
            WriteQueue(lambda asked: None),
            ObjectCache().owners(),
            self.told.append,
            lambda party: None,
            choose=self._choose,
        )
        self.run = UnifiedJobReconciler(site, ObjectCache(), job, None if known is None else KnownJob(known))
        self.run.drive(1.0)

    def _choose(self, job: Job) -> SizeChoice:
        self.asked += 1
        return self._choice

    @property
    def job(self) -> Job:
        """As the World was told of it last."""
        found = [one.job for one in self.told if isinstance(one, ev.JobSubmitted | ev.JobChanged)]
        return found[-1]

    @property
    def status(self) -> dict[str, Any]:
        return status_of(self.run, 2.0)


def sizes_of(job: Job) -> tuple[int, int, int]:
    return job.size, job.min, job.max


def test_the_job_asks_for_what_was_chosen_and_its_status_says_why():
    operator = Operator(unified_job(annotations=OPEN))
    assert sizes_of(operator.job) == (4, 1, 8)
    assert operator.job.size_choice == FOUR
    assert operator.status["sizeChoice"] == {
        "gpus": 4,
        "fastestGpus": 8,
        "speedPercentage": 92,
        "measuredJobs": 3,
        "message": SENTENCE,
    }


def test_a_job_that_cannot_save_its_work_keeps_what_was_chosen():
    operator = Operator(unified_job(annotations={**OPEN, names.CHECKPOINT: "none"}))
    assert sizes_of(operator.job) == (4, 4, 4)


def test_a_job_that_says_its_size_is_not_chosen_for():
    operator = Operator(unified_job(annotations={names.WANTED: "2"}))
    assert sizes_of(operator.job) == (2, 1, 8)
    assert operator.asked == 0
    assert "sizeChoice" not in operator.status


def test_it_is_chosen_once_however_often_the_object_changes():
    operator = Operator(unified_job(annotations=OPEN))
    operator.run.look(unified_job(annotations={**OPEN, "note": "mine"}))
    operator.run.drive(2.0)
    assert operator.asked == 1
    assert [type(one) for one in operator.told] == [ev.JobSubmitted]


def test_an_operator_that_lost_its_journal_goes_on_with_what_the_status_says():
    """Given a status by the operator before, when all else is forgotten, then the size is the same."""
    before = Operator(unified_job(annotations=OPEN))
    body = manifest(annotations=OPEN)
    body["metadata"] |= {"uid": "11111111-2222", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["status"] = {"sizeChoice": before.status["sizeChoice"]}
    after = Operator(read(body), choice=SizeChoice(1))
    assert after.asked == 0
    assert after.job.size_choice == FOUR


def test_an_operator_with_its_journal_goes_on_with_what_the_world_knows():
    before = Operator(unified_job(annotations=OPEN))
    after = Operator(unified_job(annotations=OPEN), choice=SizeChoice(1), known=before.job)
    assert after.asked == 0
    assert after.told == []


def test_nonsense_in_the_status_is_chosen_anew():
    body = manifest(annotations=OPEN)
    body["metadata"] |= {"uid": "11111111-2222", "creationTimestamp": "2026-01-01T00:00:00Z"}
    body["status"] = {"sizeChoice": {"gpus": 4000}}
    assert sizes_of(Operator(read(body)).job) == (4, 1, 8)


def test_a_user_who_says_a_size_later_gets_that():
    operator = Operator(unified_job(annotations=OPEN))
    operator.run.look(unified_job(annotations={names.WANTED: "2"}))
    operator.run.drive(2.0)
    assert sizes_of(operator.job) == (2, 1, 8)
    assert operator.run.size_choice is None


def test_a_size_that_a_person_pins_counts_more():
    operator = Operator(unified_job(annotations=OPEN, replicas={"targetReplicas": 2}))
    assert sizes_of(operator.job) == (2, 2, 2)


def test_a_job_without_gpus_has_the_one_size_that_it_says():
    operator = Operator(unified_job(replicas=ON_CPU, annotations=OPEN))
    assert (sizes_of(operator.job), operator.asked) == ((2, 2, 2), 0)
