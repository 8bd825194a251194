"""A task's priority: a number, or the name of a class that the server knows."""

import pytest

from batuta.core.quota import PriorityClass
from batuta.spec.problem import InputError
from batuta.spec.task import Task, parse_task
from batuta.spec.task_env import Overrides
from batuta.spec.task_resources import is_without_class, with_class_priority

CLASSES = (PriorityClass("high", 10_000), PriorityClass("low", -5))
LABEL = "run: x\nresources: {labels: {kueue.x-k8s.io/priority-class: high}}"


def task(priority: str, given: int | str | None = None) -> Task:
    return parse_task(f"run: x\nresources: {{priority: {priority}}}", overrides=Overrides(priority=given))


def test_a_name_stands_for_the_value_of_its_class():
    assert with_class_priority(task("high"), CLASSES).priority == 10_000
    assert with_class_priority(parse_task(LABEL), CLASSES).priority == 10_000


def test_a_number_goes_before_a_class():
    both = LABEL.replace("resources: {", "resources: {priority: 7, ")
    assert with_class_priority(parse_task(both), CLASSES).priority == 7


@pytest.mark.parametrize(
    ("written", "given", "priority"),
    [("5", "low", -5), ("high", 3, 3), ("high", "12", 12), ("high", None, 10_000)],
)
def test_the_command_line_stands_in_for_what_the_file_says(written, given, priority):
    assert with_class_priority(task(written, given), CLASSES).priority == priority


def test_an_unknown_class_is_refused_with_the_nearest_one():
    with pytest.raises(InputError) as caught:
        with_class_priority(task("hihg"), CLASSES)
    assert str(caught.value) == "there is no priority class 'hihg' (did you mean high?)"


def test_where_there_are_no_classes_a_name_is_refused_but_a_label_is_let_pass():
    with pytest.raises(InputError, match="batuta queues apply"):
        with_class_priority(task("high"), ())
    labelled = parse_task(LABEL)
    assert with_class_priority(labelled, ()).priority == 0
    assert is_without_class(labelled, ())
    assert not is_without_class(task("high"), ())


@pytest.mark.parametrize("text", ["1001", "-1001", "1.5", "High", "a b", "''", "-x"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(InputError):
        task(text)
