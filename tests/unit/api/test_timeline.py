"""Sizes over time, from events alone."""

from dataclasses import replace
from itertools import islice

import pytest

from batuta.api import timeline
from batuta.api.event_text import public_event
from batuta.api.timeline import GpuTimeline
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node, Placement, Span
from batuta.core.job import JobState
from batuta.core.plan import Plan, Preempt, Resize, Start, no_decisions
from batuta.core.reason import Reason
from batuta.core.world import World
from batuta.store.codec import encode
from batuta.store.journal import StoredEvent
from tests.support.snapshots import snapshot_of
from tests.support.stories import Story
from tests.support.worlds import at, make_job, make_nodes, make_world

NOBODY = snapshot_of(make_world(make_nodes(4)))


def planned(time_s: float, *commands: Start | Resize | Preempt) -> ev.Planned:
    return ev.Planned(time_s, Plan(0, time_s, "test", commands, (), no_decisions()))


def start(time_s: float, job: str, where: str) -> ev.Planned:
    return planned(time_s, Start(job, at(where), Reason.ADMITTED))


def record_of(*events: ev.Event, as_told: bool = False) -> GpuTimeline:
    record = GpuTimeline()
    for event in events:
        text = encode(event)
        record.feed(public_event(StoredEvent(1, text)).data if as_told else text)
    return record


def sizes(record: GpuTimeline, since_s: float = 0.0, now_s: float = 100.0) -> dict[str, list[tuple[float, float, int]]]:
    return {
        job["id"]: [(one["from_s"], one["to_s"], one["gpus"]) for one in job["segments"]]
        for job in record.show(NOBODY, since_s, now_s, 1000)
    }


def test_a_job_grows_shrinks_waits_and_ends() -> None:
    events = (
        ev.JobSubmitted(0.0, replace(make_job("a"), name="resnet")),
        start(1.0, "a", "n0:01"),
        planned(5.0, Resize("a", at("n0:0123"), Reason.GREW)),
        planned(7.0, Preempt("a", Reason.PREEMPTED)),
        start(10.0, "a", "n0:0"),
        ev.JobInterrupted(12.0, "a"),
        start(20.0, "a", "n0:1"),
        ev.JobEnded(25.0, "a", JobState.SUCCEEDED),
    )
    expected = {"a": [(1.0, 5.0, 2), (5.0, 7.0, 4), (10.0, 12.0, 1), (20.0, 25.0, 1)]}
    for as_told in (False, True):
        record = record_of(*events, as_told=as_told)
        assert sizes(record) == expected
        assert sizes(record, since_s=6.0)["a"][0] == (6.0, 7.0, 4)
        assert sizes(record, since_s=30.0) == {}
        assert record.show(NOBODY, 0.0, 100.0, 10)[0]["name"] == "resnet"


def test_what_still_runs_goes_up_to_now() -> None:
    assert sizes(record_of(start(1.0, "a", "n0:0")), now_s=9.0) == {"a": [(1.0, 9.0, 1)]}


@pytest.mark.parametrize("as_told", [False, True])
def test_what_was_found_counts_whatever_was_planned(as_told: bool) -> None:
    record = record_of(
        start(1.0, "a", "n0:0123"),
        ev.JobFound(5.0, "a", at("n0:01")),
        ev.JobFound(6.0, "b", at("n1:0123")),
        ev.NodeChanged(8.0, Node("n1", 3)),
        as_told=as_told,
    )
    assert sizes(record) == {
        "a": [(1.0, 5.0, 4), (5.0, 100.0, 2)],
        "b": [(6.0, 8.0, 4), (8.0, 100.0, 3)],
    }


def test_lost_gpus_are_taken_away() -> None:
    record = record_of(
        start(1.0, "a", "n0:01 n1:0"),
        start(1.0, "b", "n2:0"),
        ev.GpuFailed(3.0, "n0", 1),
        ev.NodeLost(5.0, "n1"),
    )
    assert sizes(record, now_s=6.0) == {
        "a": [(1.0, 3.0, 3), (3.0, 5.0, 2), (5.0, 6.0, 1)],
        "b": [(1.0, 6.0, 1)],
    }


def test_a_move_is_no_change_of_size() -> None:
    record = record_of(start(1.0, "a", "n0:0"), planned(2.0, Resize("a", at("n1:0"), Reason.REPAIRED)))
    assert sizes(record, now_s=3.0) == {"a": [(1.0, 3.0, 1)]}


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_JOBS", 10)
    monkeypatch.setattr(timeline, "MAX_CHANGES", 5)
    record = record_of(*(start(float(k), f"j{k}", "n0:0") for k in range(50)))
    assert list(sizes(record)) == [f"j{k}" for k in range(40, 50)]
    grown = [
        planned(float(k), Resize("a", Placement((Span("n0", tuple(range(1 + k % 2))),)), Reason.GREW))
        for k in range(50)
    ]
    assert len(sizes(record_of(*grown))["a"]) == 5
    assert len(record.show(NOBODY, 0.0, 100.0, 3)) == 3


def test_jobs_that_run_since_before_the_record_are_shown_too() -> None:
    world = make_world(make_nodes(4), {"a": "n0:01"}, [make_job("a", 2)])
    shown = GpuTimeline().show(snapshot_of(world), 0.0, 50.0, 10)
    assert shown == [{"id": "a", "name": "", "segments": [{"from_s": 0.0, "to_s": 50.0, "gpus": 2}]}]


def test_it_ends_where_the_world_is() -> None:
    world, record = World(), GpuTimeline()
    for event in islice(Story(7), 2500):
        apply(world, event)
        record.feed(encode(event))
    now_s = world.now_s + 1
    last = {job["id"]: job["segments"][-1] for job in record.show(snapshot_of(world), 0.0, now_s, 10**6)}
    for job, placement in zip(world.jobs.jobs, world.jobs.placements, strict=True):
        runs = job.id in last and last[job.id]["to_s"] == now_s
        assert (last[job.id]["gpus"] if runs else 0) == (0 if placement is None else placement.size)


def test_use_is_kept_by_job_and_stays_bounded() -> None:
    """Given a job on two nodes, when both are measured again and again, then its mean is kept, thinned."""
    record = record_of(start(1.0, "a", "n0:01 n1:0"), start(1.0, "b", "n1:1"))
    record.feed(encode(ev.GpusUsed(10.0, "n0", (1.0, 0.5, 0.0, 0.0))))
    record.feed(encode(ev.GpusUsed(10.0, "n1", (0.0, 0.25))))
    assert record.use("a") == [{"time_s": 10.0, "busy": 0.5, "gpus": 3}]
    assert record.use("b") == [{"time_s": 10.0, "busy": 0.25, "gpus": 1}]
    record.feed(encode(ev.JobEnded(11.0, "b", JobState.SUCCEEDED)))
    for second in range(20, 20 + 3 * timeline.MAX_POINTS):
        record.feed(encode(ev.GpusUsed(float(second), "n1", (0.0, 1.0))))
    assert len(record.use("b")) == 1, "whoever has no GPUs is not measured"
    found = record.use("a")
    assert len(found) <= timeline.MAX_POINTS
    assert (found[0]["time_s"], found[-1]["time_s"]) == (10.0, 19.0 + 3 * timeline.MAX_POINTS)


def test_a_job_that_shares_a_card_is_measured_by_its_own_part() -> None:
    record = record_of(start(1.0, "a", "n0:0"), start(1.0, "b", "n0:0"))
    record.feed(encode(ev.GpusUsed(10.0, "n0", (0.9,), (("a", 0.7), ("b", 0.2)))))
    assert [record.use(job)[0]["busy"] for job in "ab"] == [0.7, 0.2]
