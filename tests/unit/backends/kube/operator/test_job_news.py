"""Events for people: each once, and not too many."""

from types import SimpleNamespace

from batuta.backends.kube.operator.job_news import BURST, REFILL_S, Herald, News, event_of
from batuta.backends.kube.operator.writes import Writes
from tests.support.unified_jobs import unified_job


def herald_and_told() -> tuple[Herald, Writes, list[str]]:
    told: list[str] = []
    writes = Writes(lambda asked: told.extend(key for key, _ in asked))
    return Herald(SimpleNamespace(writes=writes)), writes, told  # type: ignore[arg-type]


def test_the_same_news_is_told_once():
    herald, writes, told = herald_and_told()
    for now_s in (0.0, 100.0):
        herald.tell(unified_job(), News.STARTED, "with 4 replicas", now_s)
    writes.send()
    assert len(told) == 1


def test_a_job_that_crashes_all_day_has_few_events():
    herald, writes, told = herald_and_told()
    for n in range(10 * BURST):
        herald.tell(unified_job(), News.INTERRUPTED, f"exit code {n}", 1.0 + n / 100)
    writes.send()
    assert len(told) == BURST
    herald.tell(unified_job(), News.INTERRUPTED, "again", 10.0 + 2 * REFILL_S)
    writes.send()
    assert len(told) == BURST + 1


def test_failures_are_warnings_and_two_operators_tell_them_under_one_name():
    first, second = (event_of(unified_job(), News.FAILED, "exit code 3", now_s) for now_s in (60.0, 61.0))
    assert first["type"] == "Warning"
    assert first["metadata"]["name"] == second["metadata"]["name"]
    assert event_of(unified_job(), News.COMPLETED, "done", 60.0)["type"] == "Normal"
