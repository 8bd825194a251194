"""Events for people: each once, and not too many."""

from types import SimpleNamespace

from batuta.backends.kube.jobtypes.job_type import Run
from batuta.backends.kube.operator.unified_job_status import BURST, REFILL_S, EventReason, EventRecorder, event_of
from batuta.backends.kube.operator.workqueue import WriteQueue
from batuta.core.cluster import Span
from tests.support.unified_jobs import ON_CPU, unified_job


def herald_and_told() -> tuple[EventRecorder, WriteQueue, list[str]]:
    told: list[str] = []
    writes = WriteQueue(lambda asked: told.extend(key for key, _ in asked))
    return EventRecorder(SimpleNamespace(writes=writes)), writes, told  # type: ignore[arg-type]


def test_the_same_news_is_told_once():
    herald, writes, told = herald_and_told()
    for now_s in (0.0, 100.0):
        herald.tell(unified_job(), EventReason.STARTED, "with 4 replicas", now_s)
    writes.send()
    assert len(told) == 1


def test_a_job_that_crashes_all_day_has_few_events():
    herald, writes, told = herald_and_told()
    for n in range(10 * BURST):
        herald.tell(unified_job(), EventReason.INTERRUPTED, f"exit code {n}", 1.0 + n / 100)
    writes.send()
    assert len(told) == BURST
    herald.tell(unified_job(), EventReason.INTERRUPTED, "again", 10.0 + 2 * REFILL_S)
    writes.send()
    assert len(told) == BURST + 1


def test_failures_are_warnings_and_two_operators_tell_them_under_one_name():
    first, second = (event_of(unified_job(), EventReason.FAILED, "exit code 3", now_s) for now_s in (60.0, 61.0))
    assert first["type"] == "Warning"
    assert first["metadata"]["name"] == second["metadata"]["name"]
    assert event_of(unified_job(), EventReason.COMPLETED, "done", 60.0)["type"] == "Normal"


def test_replicas_without_gpus_are_told_as_replicas():
    herald, told = EventRecorder(SimpleNamespace()), []  # type: ignore[arg-type]
    herald.tell = lambda uj, news, note, now_s: told.append((news, note))  # type: ignore[method-assign]
    uj, run = unified_job(replicas=ON_CPU), Run(2)
    herald.started(uj, run, [Span("c", ()), Span("d", ())], 0.0)
    herald.stopped(uj, 2, 1.0)
    herald.started(unified_job(), run, [Span("n", (0,)), Span("n", (1,))], 2.0)
    assert told == [
        (EventReason.STARTED, "start 0 with 2 replicas on c, d"),
        (EventReason.PREEMPTED, "gave the CPU and memory of 2 replicas back, and waits"),
        (EventReason.STARTED, "start 0 with 2 replicas, 2 GPUs on n"),
    ]
