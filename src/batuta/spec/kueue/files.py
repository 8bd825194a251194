"""Reading quota: from files, from texts of files, from plain objects. All problems come at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batuta.spec.kueue.change import QuotaChange
from batuta.spec.kueue.objects import Key, Written, each_object, read_object
from batuta.spec.kueue.part import Item, ObjectReader
from batuta.spec.kueue.plain import object_node
from batuta.spec.kueue.short_form import is_short_form, read_short_form
from batuta.spec.problem import InputError, Problem, in_order
from batuta.spec.text_file import read_text


def read_quota_files(paths: Sequence[Path]) -> QuotaChange:
    """What all these files say together. YAML or JSON, Kueue's objects or the short form."""
    texts, problems = list[tuple[str, str]](), list[Problem]()
    for path in paths:
        try:
            texts.append((str(path), read_text(path)))
        except InputError as error:
            problems += error.problems
    try:
        change = read_quota_texts(texts)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return change


def read_quota_texts(texts: Iterable[tuple[str, str]]) -> QuotaChange:
    """The same for texts, each with the name that its problems shall have."""
    collected = Collected()
    for file, text in texts:
        reader = ObjectReader(file)
        for root in reader.compose_sound(text):
            if is_short_form(root):
                collected.add_short(read_short_form(reader, root))
            else:
                collected.add_items(reader, each_object(reader, root))
        collected.close(reader)
    return collected.change()


def read_quota_objects(objects: Iterable[Any]) -> QuotaChange:
    """The same for plain values, as the API server sends them."""
    collected, reader = Collected(), ObjectReader("")
    for value in objects:
        try:
            root = object_node(value)
        except InputError as error:
            reader.problems += error.problems
            continue
        collected.add_items(reader, each_object(reader, root))
    collected.close(reader)
    return collected.change()


class Collected:
    """Objects from one or more readers, each named once."""

    def __init__(self) -> None:
        self._objects: dict[Key, Written] = {}
        self._fair_sharing: bool | None = None
        self._problems: list[Problem] = []
        self._notes: list[str] = []

    def add_items(self, reader: ObjectReader, items: Iterable[Item]) -> None:
        for item in items:
            found = read_object(reader, item)
            if isinstance(found, bool):
                self._fair_sharing = found
            elif found is not None:
                self._add(found)

    def add_short(self, objects: Iterable[Written]) -> None:
        """Flavors of the short form follow from the names of types: each queue may bring them along again."""
        for one in objects:
            known = self._objects.get(one.key)
            if known is None or one.key.kind != "ResourceFlavor" or known.value != one.value:
                self._add(one)

    def _add(self, one: Written) -> None:
        earlier = self._objects.setdefault(one.key, one)
        if earlier is not one:
            first = str(earlier.place).removesuffix(": ")
            fix = f"the first is at {first}" if first else ""
            self._problems.append(replace(one.place, message=f"{one.key} appears twice", fix=fix))

    def close(self, reader: ObjectReader) -> None:
        """Takes over what a reader has to say when its last object was read."""
        self._problems += reader.problems
        self._notes += reader.notes

    def change(self) -> QuotaChange:
        """All of it, or all that is wrong."""
        if self._problems:
            raise InputError(in_order(self._problems))
        return QuotaChange(
            tuple(self._objects.values()), self._fair_sharing, tuple(dict.fromkeys(self._notes))
        )
