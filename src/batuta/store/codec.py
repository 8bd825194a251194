"""Events ↔ JSON: `{"v":1,"type":"JobStarted","time_s":12.5,"job":"j1","cause":"backend"}`.

An event type has a codec by standing in `batuta.core.event.Event`; one with a field that cannot be written
makes this module fail to load. `v` changes when old text would be misread, not when a field is added.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any, get_args

from batuta.core.event import Event, Planned
from batuta.core.job import JobId
from batuta.core.plan import Decisions, no_decisions
from batuta.store.decision_columns import pack, unpack
from batuta.store.errors import CodecError, UnknownEventError
from batuta.store.phases_form import OUTLOOKS as _OUTLOOKS  # noqa: F401  (events hold some)
from batuta.store.values import TAG, Form, dumps, form_of, loads, set_form

VERSION = 1
_NONE = no_decisions()
_KEYS = frozenset(("v", TAG))


def _write_decisions(decisions: Decisions) -> str | None:
    """As columns, packed; None for the decisions of a cycle without jobs."""
    is_empty = not (len(decisions) or decisions.capacity or decisions.free)
    if is_empty and decisions.kind is None and decisions.moving is None:
        return None
    return base64.b64encode(pack(decisions)).decode()


def _read_decisions(value: Any) -> Decisions:
    return _NONE if value is None else unpack(base64.b64decode(value))


set_form(Decisions, Form(_write_decisions, _read_decisions))
EVENT_TYPES: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_FORMS = {name: form_of(kind) for name, kind in EVENT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """An event and its place in the journal."""

    seq: int
    event: Event


def encode(event: Event) -> str:
    """The whole event as JSON; the decisions of a plan are packed into one string of it."""
    name = type(event).__name__
    form = _FORMS.get(name)
    if form is None or form.write is None:
        raise UnknownEventError(f"{name} is not an event of the journal's")
    return dumps({"v": VERSION, TAG: name} | form.write(event))


def decode(text: str | bytes) -> Event:
    """The event that was encoded. Fields that are not known are ignored, types that are not are refused."""
    data = loads(text)
    if not isinstance(data, dict) or not data.keys() >= _KEYS:
        raise CodecError('an event is an object with "v" and "type"')
    if data["v"] != VERSION:
        raise UnknownEventError(
            f"an event is written in format {data['v']}, this version of Batuta reads format {VERSION}; "
            "it was written by a newer one"
        )
    form = _FORMS.get(data[TAG])
    if form is None or form.read is None:
        raise UnknownEventError(
            f"unknown event type {data[TAG]!r}: the journal was written by a newer version of Batuta"
        )
    try:
        event: Event = form.read(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f"{data[TAG]} cannot be read: {error!r}") from error
    return event


def without_decisions(event: Planned) -> Planned:
    """The same plan, for those who only want to know what was commanded."""
    return with_decisions(event, _NONE)


def with_decisions(event: Planned, decisions: Decisions) -> Planned:
    return replace(event, plan=replace(event.plan, decisions=decisions))


def job_of(event: Event) -> JobId | None:
    """The one job that an event is about; None when it is about none, or about many."""
    job = getattr(event, "job", None)
    return job if job is None or isinstance(job, str) else job.id


def jobs_of(plan_event: Planned) -> list[JobId]:
    """The jobs of which a plan says something, each once."""
    plan = plan_event.plan
    told = [c.job for c in plan.commands] + [job for job, _ in plan.retiered]
    return list(dict.fromkeys([*told, *plan.found_idle]))
