"""Notes on their way from an agent to the operator, and what people write on nodes."""

import json

import pytest

from batuta.backends.kube import names, objects
from batuta.backends.kube.health.annotations import MOST_NOTES, NodeNote, read_notes, read_seen, write_notes
from batuta.backends.kube.health.state import MOST_BYTES, HealthState, Restart, from_text, to_text
from batuta.backends.kube.health.taints import CORDON, TAINT, Repaired, cordoned_by, has_removed_taint, mended
from batuta.core.health import HealthStateMachine
from batuta.core.health_record import WHOLE_NODE, Incident, Record, State, Target
from batuta.core.health_rules import Action, Finding, HealthRules, Rule, Scope, Source

RULES = HealthRules((Rule(Source.XID, "program", Action.RESTART_JOB, Scope.GPU, 31, 31),))


def test_notes_come_as_they_went_the_oldest_first_and_not_too_many():
    notes = [NodeNote(n=n, time=float(n), code=31, gpu=1, owners=("a/b/c",)) for n in range(200, 0, -1)]
    read = read_notes(write_notes(notes))
    assert [note.n for note in read] == [*range(1, MOST_NOTES + 1)]
    assert read[0] == notes[-1]


def test_long_texts_do_not_make_an_annotation_that_is_refused():
    notes = [NodeNote(n=n, time=1.0, text="x" * 5000) for n in range(1, 65)]
    assert len(write_notes(notes)) < 70_000
    assert read_notes(write_notes(notes))[0].n == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '[{"n": "x"}]', '[{"n": 1, "time": 1, "source": "log"}]', "7"])
def test_what_is_no_note_says_nothing(text: str):
    assert read_notes(text) == ()


@pytest.mark.parametrize(("text", "seen"), [("17", 17), ("", 0), ("-3", 0), ("x", 0), ("9" * 30, 0)])
def test_the_last_number_is_a_number(text: str, seen: int):
    assert read_seen(text) == seen


# ----------------------------------------------------------------------------------------------------- memory


def test_what_is_remembered_is_the_same_after_a_restart():
    book = HealthStateMachine(RULES)
    book.add_node("n", 2, "pool")
    book.add_node("well", 2, "pool")
    book.found(Finding(5.0, "n", Source.XID, 31, gpu=1, jobs=("a/j",)))
    restart = Restart(("uid",), 5.0, "Xid 31")
    memory = HealthState(book, {"n": 9}, {"n": {"Sick": "t"}}, {"n": "b"}, {"a/j": restart}, {"a/j": [5.0]})
    again = from_text(RULES, to_text(memory))
    assert to_text(again) == to_text(memory)
    assert (again.seen, again.restarts, again.is_new) == ({"n": 9}, {"a/j": restart}, False)
    assert "well" not in to_text(memory)


def test_a_memory_fits_into_a_config_map_however_much_happened():
    book = HealthStateMachine(RULES)
    jobs = ("team/job-with-a-long-name-as-people-give-them",)
    incidents = [Incident(1000.0 * k, Source.XID, 31, jobs, "program") for k in range(64)]
    for number in range(200):
        book.add_node(f"node-{number}", 8, "pool")
        for gpu in range(8):
            record = Record(State.SUSPECT, 1.0, "Xid 31: program", incidents=incidents)
            book.records[Target(f"node-{number}", gpu)] = record
    text = to_text(HealthState(book))
    assert len(text) <= MOST_BYTES
    assert len(from_text(RULES, text).book.records) == 1600


@pytest.mark.parametrize("text", ["{}", "[]", '{"form": 2}', "x", json.dumps({"form": 1, "book": {}})])
def test_a_memory_that_is_damaged_says_so(text: str):
    with pytest.raises(ValueError, match=r"."):
        from_text(RULES, text)


# ----------------------------------------------------------------------------------------------------- people


def node(unschedulable: bool = False, taint: str = "", health: str = "", mended: str | None = None) -> objects.Node:
    taints = [objects.Taint(key=names.UNHEALTHY, value=taint, effect="NoSchedule")] if taint else []
    told = {names.HEALTH: json.dumps({"taint": health})} if health else {}
    told |= {} if mended is None else {names.MENDED: mended}
    return objects.Node(
        metadata=objects.Meta(name="n", annotations=told),
        spec=objects.NodeSpec(unschedulable=unschedulable, taints=taints),
    )


def test_a_cordon_and_a_taint_of_others_are_people_s_and_ours_is_not():
    assert cordoned_by(node()) == ""
    assert cordoned_by(node(unschedulable=True)) == CORDON
    assert cordoned_by(node(taint="mine")) == TAINT
    assert cordoned_by(node(taint="Xid-79", health="Xid-79")) == ""


def test_our_taint_that_is_gone_was_taken_off():
    assert has_removed_taint(node(health="Xid-79"))
    assert not has_removed_taint(node(taint="Xid-79", health="Xid-79"))
    assert not has_removed_taint(node())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node", Repaired(frozenset({WHOLE_NODE}))),
        ("gpu-3, 5", Repaired(frozenset({3, 5}))),
        ("all", Repaired(everything=True)),
        ("yesterday", Repaired(unclear="yesterday")),
        ("", Repaired(unclear="")),
    ],
)
def test_what_people_say_is_mended(text: str, said: Repaired):
    assert mended(node(mended=text)) == said


def test_nobody_says_anything_without_the_annotation():
    assert mended(node()) is None
