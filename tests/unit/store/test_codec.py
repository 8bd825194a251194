import inspect
import json
from dataclasses import dataclass, fields, is_dataclass, make_dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import event as event_module
from batuta.core.cluster import Placement, Span
from batuta.core.event import JobEnded, JobProgressed, JobStarted, JobSubmitted, Planned, TimePassed
from batuta.core.job import Job, JobState
from batuta.core.plan import Plan, Start, no_decisions
from batuta.core.reason import Reason
from batuta.store import codec
from batuta.store.codec import codec_of
from batuta.store.errors import CodecError, UnknownEventError
from tests.support.deep import deep
from tests.support.walks import Walk
from tests.unit.store.arbitrary_events import EVENT_TYPES, any_event, values_of


def again(event):
    return codec.decode(codec.encode(event))


@given(any_event())
def test_any_event_comes_back_to_the_last_bit(event):
    text = codec.encode(event)
    assert text.isascii()
    assert deep(codec.decode(text)) == deep(event)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
@given(st.data())
def test_every_event_type_has_a_codec(kind, data):
    event = data.draw(values_of(kind))
    assert deep(again(event)) == deep(event)


def test_every_event_in_the_module_is_one_of_the_union():
    """A type that is missing in `Event` would be written by nobody and noticed by nobody."""
    there = {
        kind
        for name, kind in inspect.getmembers(event_module, inspect.isclass)
        if is_dataclass(kind) and kind.__module__ == event_module.__name__ and not name.startswith("_")
    }
    assert there == set(EVENT_TYPES) == set(codec.EVENT_TYPES.values())


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_no_field_takes_the_place_of_the_envelope(kind):
    assert not {"v", "type"} & {field.name for field in fields(kind)}


def test_what_happens_on_a_cluster_comes_back():
    events = [event for seed in range(3) for event in Walk(seed).go(250).events]
    assert {type(event) for event in events} == set(EVENT_TYPES)
    for event in events:
        assert deep(again(event)) == deep(event)
        assert again(event) == event


def test_the_text_is_what_the_docs_say():
    assert (
        codec.encode(JobStarted(12.5, "j1")) == '{"v":1,"type":"JobStarted","time_s":12.5,"job":"j1","cause":"backend"}'
    )
    start = Start("j1", Placement((Span("n0", (0, 1)),)), Reason.ADMITTED, (("gpus", 2),))
    event = Planned(1.0, Plan(7, 1.0, "fifo", (start,), (("j2", 1),), no_decisions()))
    assert codec.encode(event) == (
        '{"v":1,"type":"Planned","time_s":1.0,"plan":{"world_version":7,"time_s":1.0,"policy":"fifo",'
        '"commands":[{"type":"Start","job":"j1","placement":[[["n0",[0,1]]]],"reason":"ADMITTED",'
        '"evidence":[["gpus",2]]}],"retiered":[["j2",1]],"decisions":null,"flavors":[],"found_idle":[]},"cause":"decide"}'
    )


def test_numbers_that_json_does_not_have_are_strings():
    for left_s, text in (
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (-float("inf"), '"-Infinity"'),
    ):
        event = JobProgressed(0.0, "j", left_s)
        assert f'"remaining_s":{text}' in codec.encode(event)
        assert deep(again(event)) == deep(event)


def test_numbers_of_numpy_are_numbers():
    event = JobProgressed(np.float64(1.5), "j", np.float64(0.1), restart_s=np.int64(3))  # type: ignore[arg-type]
    assert again(event) == JobProgressed(1.5, "j", 0.1, restart_s=3)


def test_what_a_newer_version_adds_is_ignored():
    data = json.loads(codec.encode(JobSubmitted(1.0, Job("j", 1.0))))
    data["colour"], data["job"]["colour"] = "red", [1, {"a": None}]
    assert codec.decode(json.dumps(data)) == JobSubmitted(1.0, Job("j", 1.0))


def test_what_an_older_version_did_not_write_has_its_default():
    data = json.loads(codec.encode(JobSubmitted(1.0, Job("j", 1.0, cpus_milli_per_gpu=7))))
    del data["cause"], data["job"]["cpus_milli_per_gpu"]
    assert codec.decode(json.dumps(data)) == JobSubmitted(1.0, Job("j", 1.0))


def test_a_new_field_with_a_default_needs_no_code():
    """As when JobSubmitted gets its task: old texts are read, new ones written in full."""
    newer = make_dataclass(
        "JobSubmitted",
        [("time_s", float), ("job", Job), ("task", str, ""), ("cause", str, "submit")],
        frozen=True,
    )
    form = codec_of(newer)
    assert form.write is not None
    assert form.read is not None
    old = json.loads(codec.encode(JobSubmitted(1.0, Job("j", 1.0))))
    old.pop("task", None)
    assert form.read(old).task == ""
    event = newer(1.0, Job("j", 1.0), task='{"run": "x"}')
    assert form.write(event)["task"] == '{"run": "x"}'
    assert form.read(json.loads(json.dumps(form.write(event)))) == event


def test_every_field_is_written_even_at_its_default():
    """Else a default that changes in a later version would rewrite history."""
    data = json.loads(codec.encode(JobSubmitted(1.0, Job("j", 1.0))))
    assert set(data["job"]) == {field.name for field in fields(Job)}


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ('{"v":1,"type":"JobVanished","time_s":1.0}', UnknownEventError, "'JobVanished'.*newer version"),
        ('{"v":2,"type":"JobStarted","time_s":1.0,"job":"j"}', UnknownEventError, "format 2.*newer"),
        ('{"v":1,"type":"JobStarted","time_s":1.0}', CodecError, "JobStarted lacks 'job'"),
        ('{"type":"JobStarted"}', CodecError, "object with"),
        ("[1]", CodecError, "object with"),
        ('{"v":1,', CodecError, "not JSON"),
        (
            '{"v":1,"type":"JobEnded","time_s":1,"job":"j","state":"GONE"}',
            CodecError,
            "JobState has no .*'GONE'",
        ),
        ('{"v":1,"type":"JobSubmitted","time_s":1,"job":3}', CodecError, "JobSubmitted cannot be read"),
        (
            '{"v":1,"type":"Planned","time_s":1,"plan":{"world_version":1,"time_s":1,"policy":"",'
            '"commands":[{"type":"Explode"}],"retiered":[],"decisions":null}}',
            CodecError,
            "unknown type 'Explode', known are Start, Resize",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(text, kind, message):
    with pytest.raises(kind, match=message):
        codec.decode(text)


def test_a_stranger_is_not_written():
    @dataclass
    class JobVanished:
        time_s: float

    with pytest.raises(UnknownEventError, match="JobVanished"):
        codec.encode(JobVanished(1.0))  # type: ignore[arg-type]


def test_jobs_of_an_event():
    assert codec.job_of(JobSubmitted(1.0, Job("j1", 1.0))) == "j1"
    assert codec.job_of(JobEnded(1.0, "j2", JobState.FAILED)) == "j2"
    assert codec.job_of(TimePassed(1.0)) is None
