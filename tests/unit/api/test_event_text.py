"""Events as they are told: whatever happens, in sentences, and without what tasks hold."""

import json
from itertools import islice

import pytest

from batuta.api.event_text import public_event, sentences_of, type_of, with_seq
from batuta.core import event as ev
from batuta.core.cluster import Placement, Span
from batuta.core.plan import Plan, Preempt, Start, no_decisions
from batuta.core.reason import Reason
from batuta.store.codec import EVENT_TYPES, encode
from batuta.store.journal import StoredEvent
from tests.support.stories import Story
from tests.support.walks import Walk
from tests.support.worlds import at, make_job


def told(event: ev.Event) -> dict[str, object]:
    return with_seq(public_event(StoredEvent(7, encode(event))))


def test_most_events_are_told_as_they_are() -> None:
    event = ev.JobInterrupted(1.0, "17", exit_code=3)
    text = encode(event)
    found = public_event(StoredEvent(7, text))
    assert (found.seq, found.type, found.jobs, found.data) == (7, "JobInterrupted", frozenset(("17",)), text)
    assert found.frame.decode() == f"event: JobInterrupted\ndata: {text}\nid: 7\n\n"
    assert told(event)["seq"] == 7


def test_a_submit_is_told_without_its_task() -> None:
    found = public_event(StoredEvent(1, encode(ev.JobSubmitted(1.0, make_job("17"), task='{"secrets":"hush"}'))))
    assert "hush" not in found.data
    assert found.jobs == {"17"}
    assert json.loads(found.data)["job"]["id"] == "17"


def test_a_plan_is_told_in_sentences() -> None:
    start = Start("1", Placement((Span("n0", (0, 1)), Span("n1", (3,)))), Reason.ADMITTED, (("gpus", 3),))
    stop = Preempt("2", Reason.PREEMPTED, (("before", float("nan")),))
    shown = told(ev.Planned(1.0, Plan(1, 1.0, "fifo", (start, stop), (("3", 1),), no_decisions())))
    assert shown["policy"] == "fifo"
    first, second = shown["commands"]  # type: ignore[misc]
    assert first["sentence"] == "starts with 3 GPUs"  # type: ignore[has-type]
    assert first["gpus"] == 3  # type: ignore[has-type]
    assert second["gpus"] == 0  # type: ignore[has-type]
    assert second["sentence"]  # type: ignore[has-type]


def test_a_plan_tells_which_jobs_are_idle() -> None:
    plan = Plan(1, 1.0, "fifo", (), (), no_decisions(), found_idle=("7",))
    text = encode(ev.Planned(1.0, plan))
    assert public_event(StoredEvent(1, text)).jobs == {"7"}
    assert [told["sentence"] for told in sentences_of(text, "7")] == ["holds GPUs and does not use them"]
    assert list(sentences_of(text, "8")) == []


def test_a_reason_that_this_version_does_not_know() -> None:
    start = Start("1", Placement((Span("n0", (0,)),)), Reason.ADMITTED, (("gpus", 1),))
    text = encode(ev.Planned(1.0, Plan(1, 1.0, "fifo", (start,), (), no_decisions())))
    found = public_event(StoredEvent(1, text.replace("ADMITTED", "FROM_THE_FUTURE")))
    assert json.loads(found.data)["commands"][0]["sentence"] == "from the future"


def test_every_event_of_a_long_story_can_be_told() -> None:
    kinds = set()
    for seq, event in enumerate(islice(Story(6), 3000)):
        text = encode(event)
        found = public_event(StoredEvent(seq, text))
        kinds.add(found.type)
        assert found.type == type_of(text) == type(event).__name__
        assert json.loads(found.data)["time_s"] == event.time_s
        for job in found.jobs:
            for sentence in sentences_of(text, job):
                assert sentence["sentence"]
    assert kinds <= EVENT_TYPES.keys()
    assert {"JobSubmitted", "Planned", "JobEnded"} <= kinds


FOUND = at("n0:01 n1:2")


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (ev.JobFound(1.0, "1", FOUND), "runs on n0:0+1, n1:2, as was found"),
        (
            ev.JobFound(1.0, "1", FOUND, True, not_before_s=6.0, detail="n2 is full"),
            "runs on n0:0+1, n1:2, as was found (n2 is full); it is not resized for 5 s",
        ),
        (ev.JobFound(1.0, "1", FOUND, False), "has its place on n0:0+1, n1:2, as was found"),
        (ev.JobFound(1.0, "1", at("")), "is found without GPUs"),
        (ev.JobForgotten(1.0, "1"), "is no longer kept in mind"),
    ],
)
def test_what_was_found_is_a_story(event: ev.Event, sentence: str) -> None:
    assert [one["sentence"] for one in sentences_of(encode(event), "1")] == [sentence]
    assert public_event(StoredEvent(1, encode(event))).jobs == {"1"}


def test_every_event_of_a_walk_can_be_told() -> None:
    for seq, event in enumerate(Walk(1).go(600).events):
        text = encode(event)
        found = public_event(StoredEvent(seq, text))
        for job in found.jobs:
            assert all(one["sentence"] for one in sentences_of(text, job))


def test_progress_is_no_story() -> None:
    assert not list(sentences_of(encode(ev.JobProgressed(1.0, "1", 5.0)), "1"))
    timed = ev.TransitionTimed(1.0, "1", 2, checkpoint_s=1.26, start_s=3.0)
    assert [one["sentence"] for one in sentences_of(encode(timed), "1")] == [
        "the change took: checkpoint 1.3 s, start 3.0 s"
    ]
