"""Reads stories about quota from YAML or JSON: one, or a list of them.

name: a lender gets its quota back
config: base                  # or fair: fair sharing is on
files: [quota.yaml]           # files of objects, beside this one
objects: [ … ]                # Kueue's objects, or {queues: […]} in short form
steps:
  - do: {submit: {name: w1, queue: a, priority: 0, count: 2, requests: {nvidia.com/gpu: 1}}}
    admitted: {w1: {nvidia.com/gpu: default}}    # what is expected after the step; may be left out
    preempted: []
    pending: {}

Other things to do: `finish: w1`, `delete: w1`, `patchWorkload: {name, spec}`, `update: {kind, name, spec}`
(what is null is taken out), `create: {…}`, `deleteObject: {kind, name}`. All problems come at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from batuta.spec.kueue.part import Item, ObjectReader, Part, part_of, read_text_value
from batuta.spec.problem import InputError, Problem, in_order
from batuta.spec.quota_case import Case, Eviction, Expected, Step, Wait
from batuta.spec.quota_case_step import Workloads, read_action
from batuta.spec.quota_case_world import CaseQuota
from batuta.spec.sound_yaml import is_null
from batuta.spec.text_file import read_text

MOST_CASES, MOST_STEPS, MOST_OBJECTS = 100_000, 100_000, 100_000
MOST_FILES = 256
_CASE = ("name", "config", "files", "objects", "steps", "note")
_STEP = ("do", "admitted", "preempted", "pending")
_EVICTION = ("workload", "reason", "preemption", "by", "message")


def read_cases(path: Path) -> tuple[Case, ...]:
    """The cases of a file. Raises InputError with every problem and its place."""
    return parse_cases(read_text(path), str(path))


def parse_cases(text: str, file: str = "cases.yaml") -> tuple[Case, ...]:
    """The same for a text."""
    cases, problems = sort_out(text, file)
    if problems:
        raise InputError(problems)
    return cases


def sort_out(text: str, file: str = "cases.yaml") -> tuple[tuple[Case, ...], list[Problem]]:
    """The cases that are sound, and what is wrong with the others, in the order in which it stands there."""
    reader = ObjectReader(file)
    read = [_read_case(reader, item) for item in _each_case(reader, text)]
    return tuple(case for case in read if case is not None), in_order(reader.problems)


def _each_case(reader: ObjectReader, text: str) -> Iterator[Item]:
    for root in reader.compose_sound(text):
        if isinstance(root, yaml.SequenceNode):
            yield from (Item(node, f"case {number}") for number, node in enumerate(root.value, start=1))
        else:
            yield Item(root, "case 1")


def _read_case(reader: ObjectReader, item: Item) -> Case | None:
    before, told = len(reader.problems), len(reader.notes)
    top = _open(reader, item, _CASE)
    if top is None:
        return None
    quota = CaseQuota(reader, fair=top.word("config", ("base", "fair"), "base") == "fair")
    for one in top.items("files", MOST_FILES):
        _read_file(reader, one, quota)
    for one in top.items("objects", MOST_OBJECTS):
        quota.create(one)
    if not ("objects" in top or "files" in top) or "steps" not in top:
        top.fault("", f"{item.path} needs steps, and objects or files")
    begin = quota.quota
    workloads = Workloads()
    steps = [_read_step(reader, one, quota, workloads) for one in top.items("steps", MOST_STEPS)]
    if len(reader.problems) > before:
        return None
    return Case(
        top.text("name") or item.path,
        begin,
        tuple(step for step in steps if step is not None),
        top.text("note"),
        tuple(dict.fromkeys(reader.notes[told:])),
    )


def _read_file(reader: ObjectReader, item: Item, quota: CaseQuota) -> None:
    name = read_text_value(reader, item)
    try:
        quota.create_from(Path(reader.file).parent / name)
    except InputError as error:
        reader.problems += error.problems


def _read_step(reader: ObjectReader, item: Item, quota: CaseQuota, workloads: Workloads) -> Step | None:
    step = _open(reader, item, _STEP)
    if step is None:
        return None
    if "do" not in step:
        step.fault("do", f"{item.path} does nothing", "as in do: {finish: w1}")
        return None
    action = read_action(step, quota, workloads)
    expected = _expected(step)
    return None if action is None else Step(action, expected)


def _open(reader: ObjectReader, item: Item, known: tuple[str, ...]) -> Part | None:
    """A mapping in which other keys inform only: recordings have some of their own."""
    found = reader.mapping(item.node, item.path)
    if found is None:
        return None
    return Part(reader, item.node, item.path, known, dict.fromkeys(set(found) - set(known), ""))


def _expected(step: Part) -> Expected:
    return Expected(_admitted(step), _preempted(step), _pending(step))


def _admitted(step: Part) -> Mapping[str, Mapping[str, str] | None] | None:
    """Flavors by resource for each workload, or just a list of workloads."""
    if "admitted" not in step:
        return None
    names = _names(step, "admitted")
    if names is not None:
        return dict.fromkeys(names)
    found: dict[str, Mapping[str, str] | None] = {}
    for name, item in step.entries("admitted", MOST_STEPS):
        if is_null(item.node):
            found[name] = None
            continue
        flavors = step.reader.mapping(item.node, item.path) or {}
        found[name] = {
            resource: read_text_value(step.reader, Item(node, f"{item.path}.{resource}"))
            for resource, node in flavors.items()
        }
    return found


def _preempted(step: Part) -> tuple[Eviction, ...] | None:
    if "preempted" not in step:
        return None
    found = []
    for item in step.items("preempted", MOST_STEPS):
        if isinstance(item.node, yaml.ScalarNode):
            found.append(Eviction(read_text_value(step.reader, item)))
            continue
        one = part_of(step.reader, item, _EVICTION)
        if "workload" not in one:
            one.fault("workload", f"{item.path} needs workload", "who lost its quota")
        found.append(Eviction(*(one.text(key) for key in ("workload", "reason", "preemption", "by"))))
    return tuple(found)


def _pending(step: Part) -> Mapping[str, Wait] | None:
    if "pending" not in step:
        return None
    names = _names(step, "pending")
    if names is not None:
        return dict.fromkeys(names, Wait())
    found = {}
    for name, item in step.entries("pending", MOST_STEPS):
        one = None if is_null(item.node) else _open(step.reader, item, ("reason", "message"))
        found[name] = Wait() if one is None else Wait(one.text("reason"), one.text("message"))
    return found


def _names(step: Part, key: str) -> list[str] | None:
    """The workloads of a list; None when it is no list."""
    if not isinstance(step.value(key), yaml.SequenceNode):
        return None
    return [read_text_value(step.reader, item) for item in step.items(key, MOST_STEPS)]
