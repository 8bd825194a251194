"""A health book as plain values and back, so that it outlives its process."""

from __future__ import annotations

from typing import Any

from batuta.core.health import HealthBook
from batuta.core.health_guard import Member
from batuta.core.health_record import Cordon, Record, State, Target
from batuta.core.health_rules import Action, HealthRules, Source
from batuta.core.health_verdict import Incident

FORM = 1
"""The form of the values; one that is unknown is refused."""


def to_plain(book: HealthBook) -> dict[str, Any]:
    """Numbers, texts, lists and mappings that JSON can hold. Rules are not among them: they may change."""
    return {
        "form": FORM,
        "nodes": {name: [member.gpus, member.pool] for name, member in sorted(book.members.items())},
        "cordons": {node: [*cordon] for node, cordon in sorted(book.cordons.items())},
        "records": [
            [target.node, target.gpu, _plain_record(record)]
            for target, record in sorted(book.records.items())
            if record != Record()
        ],
    }


def from_plain(rules: HealthRules, plain: dict[str, Any]) -> HealthBook:
    """The same book under these rules. Values of another form, or with parts missing, are a ValueError."""
    if plain.get("form") != FORM:
        raise ValueError(f"health records of form {plain.get('form')!r}, known is {FORM}")
    book = HealthBook(rules)
    try:
        book.members = {name: Member(int(gpus), str(pool)) for name, (gpus, pool) in plain["nodes"].items()}
        book.cordons = {str(node): _cordon(cordon) for node, cordon in plain["cordons"].items()}
        for node, gpu, values in plain["records"]:
            book.records[Target(str(node), int(gpu))] = _record(values)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"health records are damaged: {error!r}") from error
    return book


def _cordon(plain: Any) -> Cordon:
    """The first books knew only who."""
    who, since_s = (plain, 0.0) if isinstance(plain, str) else plain
    return Cordon(str(who), float(since_s))


def _plain_record(record: Record) -> dict[str, Any]:
    return {
        "state": record.state.value,
        "since_s": record.since_s,
        "reason": record.reason,
        "who": record.who,
        "remedy": record.remedy.value,
        "held": record.held,
        "ends_s": record.ends_s,
        "flaps": record.flaps,
        "returned_s": record.returned_s,
        "incidents": [
            [one.time_s, one.source.value, one.code, [*one.jobs], one.means] for one in record.incidents
        ],
    }


def _record(values: dict[str, Any]) -> Record:
    incidents = [
        Incident(float(time_s), Source(source), int(code), tuple(jobs), str(means))
        for time_s, source, code, jobs, means in values["incidents"]
    ]
    known = {**values, "state": State(values["state"]), "remedy": Action(values["remedy"])}
    return Record(**{**known, "incidents": incidents})
