"""The priority of a task: a number, or the name of a WorkloadPriorityClass that the server knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from batuta.core.quota import PriorityClass
from batuta.spec.problem import InputError, did_you_mean
from batuta.spec.quantity import shown

if TYPE_CHECKING:
    from batuta.spec.task import Task

LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000
CLASS_LABEL = "kueue.x-k8s.io/priority-class"
_NAME = re.compile(r"[a-z](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_ACCEPTED = (
    f"a whole number within {LOWEST_PRIORITY}..{HIGHEST_PRIORITY}, or the name of a WorkloadPriorityClass"
)


def parse_priority(text: str) -> int | str:
    """A number within bounds, or the name of a class."""
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        if LOWEST_PRIORITY <= int(text) <= HIGHEST_PRIORITY:
            return int(text)
    elif _NAME.fullmatch(text):
        return text
    raise InputError.of(f"must be {_ACCEPTED}, found {shown(text)}")


def with_class_priority(task: Task, classes: Sequence[PriorityClass]) -> Task:
    """The task with the priority of its class. A number that it has itself goes before.

    Raises InputError when there is no such class. A label that was written for another cluster, where this
    one has no classes at all, is let pass: `is_without_class` tells.
    """
    if not task.priority_class or task.priority or is_without_class(task, classes):
        return task
    known = {one.name: one.value for one in classes}
    if task.priority_class not in known:
        fix = (
            did_you_mean(task.priority_class, list(known)) or "batuta queues export lists them"
            if known
            else "batuta queues apply -f FILE makes them, or say a number"
        )
        raise InputError.of(f"there is no priority class {shown(task.priority_class)}", fix=fix)
    return replace(task, priority=known[task.priority_class])


def is_without_class(task: Task, classes: Sequence[PriorityClass]) -> bool:
    """Whether the class comes from a label only, and there are no classes here."""
    by_label = bool(task.priority_class) and dict(task.labels).get(CLASS_LABEL) == task.priority_class
    return by_label and not classes
