"""What administrators have written at a point of a case: objects as text, and the quota that they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from batuta.core.quota import Quota
from batuta.spec.kueue.change import QuotaChange, flavor_uses, merge, remove
from batuta.spec.kueue.objects import KINDS, Key, Written, each_object, read_object
from batuta.spec.kueue.part import Item, ObjectReader
from batuta.spec.kueue.short_form import is_short_form, read_short_form
from batuta.spec.problem import InputError, did_you_mean
from batuta.spec.sound_yaml import is_null
from batuta.spec.text_file import read_text
from batuta.spec.yaml_nodes import YamlNode


class CaseQuota:
    """Grows and changes as a case is read from top to bottom. What is wrong is noted, and changes nothing."""

    def __init__(self, reader: ObjectReader, *, fair: bool) -> None:
        self._reader = reader
        self._nodes: dict[Key, YamlNode] = {}
        self._elsewhere: set[Key] = set()
        """Objects that other files have: the places of their nodes say nothing here."""
        self.quota = Quota(fair_sharing=fair)

    def create_from(self, path: Path) -> None:
        """Adds the objects of another file. Raises InputError with its problems."""
        own, known = self._reader, set(self._nodes)
        self._reader = ObjectReader(str(path))
        try:
            for root in self._reader.compose_sound(read_text(path)):
                self.create(Item(root, ""))
            own.notes += self._reader.notes
            if self._reader.problems:
                raise InputError(self._reader.problems)
        finally:
            self._reader = own
            self._elsewhere |= set(self._nodes) - known

    def create(self, item: Item) -> Key | None:
        """Adds an object, a list of them, or queues in short form; the key of the last one."""
        if is_short_form(item.node):
            written = tuple(read_short_form(self._reader, item.node))
            self._merge(item.node, QuotaChange(written))
            return written[-1].key if written else None
        key = None
        for one in each_object(self._reader, item.node):
            found = read_object(self._reader, one)
            if isinstance(found, bool):
                self.quota = replace(self.quota, fair_sharing=found)
            elif found is not None:
                key = found.key
                self._create(one.node, found)
        return key

    def _create(self, node: YamlNode, found: Written) -> None:
        if found.key in self._nodes:
            self._reader.fault(node, f"{found.key} is there already", "update it, or delete it first")
        else:
            self._merge(node, QuotaChange((found,)))
            self._nodes[found.key] = node

    def update(self, node: YamlNode, kind: str, name: str, patch: YamlNode) -> Key | None:
        """Merges a patch into the `spec` of an object as it was written, and reads it again."""
        key = self._find(node, kind, name)
        if key is None:
            return None
        changed = _with_spec(self._nodes[key], patch)
        reader = ObjectReader(self._reader.file)
        found = read_object(reader, Item(changed, ""))
        self._reader.notes += reader.notes
        if key not in self._elsewhere:
            self._reader.problems += reader.problems
        else:
            for problem in reader.problems:
                self._reader.fault(node, problem.message, problem.fix)
        if isinstance(found, Written):
            self._merge(node, QuotaChange((found,)))
            self._nodes[key] = changed
        return key

    def delete(self, node: YamlNode, kind: str, name: str) -> Key | None:
        key = self._find(node, kind, name)
        if key is None:
            return None
        del self._nodes[key]
        # A flavor that somebody names stays until nobody does, as with the API server.
        if kind != "ResourceFlavor" or name not in {flavor for _, flavor in flavor_uses(self.quota)}:
            self.quota = remove(self.quota, [key])
        return key

    def _find(self, node: YamlNode, kind: str, name: str) -> Key | None:
        """The object of a kind and name; `namespace/name` where the name alone would mean several."""
        if kind not in KINDS:
            self._reader.fault(node, f"unknown kind {kind[:60]}", did_you_mean(kind, KINDS))
            return None
        space, _, short = name.rpartition("/")
        found = [
            key
            for key in self._nodes
            if (key.kind, key.name) == (kind, short) and space in ("", key.namespace)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            self._reader.fault(
                node, f"{kind} {name} could be {' or '.join(map(str, found))}", "namespace/name"
            )
        else:
            known = [key.name for key in self._nodes if key.kind == kind]
            self._reader.fault(node, f"there is no {kind} {name}", did_you_mean(name, known) if known else "")
        return None

    def _merge(self, node: YamlNode, change: QuotaChange) -> None:
        try:
            self.quota = merge(self.quota, change)
        except InputError as error:
            for problem in error.problems:
                self._reader.fault(node, problem.message, problem.fix)


def _with_spec(node: YamlNode, patch: YamlNode) -> YamlNode:
    spec = yaml.ScalarNode("tag:yaml.org,2002:str", "spec", patch.start_mark, patch.end_mark)
    whole = yaml.MappingNode("tag:yaml.org,2002:map", [(spec, patch)], patch.start_mark, patch.end_mark)
    return merge_patch(node, whole)


def merge_patch(node: YamlNode | None, patch: YamlNode) -> YamlNode:
    """A JSON merge patch (RFC 7396) on nodes: mappings are merged, null takes out, all else replaces."""
    if not isinstance(patch, yaml.MappingNode):
        return patch
    pairs = list(node.value) if isinstance(node, yaml.MappingNode) else []
    for key, value in patch.value:
        place = next((k for k, (own, _) in enumerate(pairs) if own.value == key.value), None)
        old = None if place is None else pairs[place][1]
        if is_null(value):
            pairs = [pair for pair in pairs if pair[0].value != key.value]
        elif place is None:
            pairs.append((key, merge_patch(old, value)))
        else:
            pairs[place] = (key, merge_patch(old, value))
    base = node if isinstance(node, yaml.MappingNode) else patch
    return yaml.MappingNode(base.tag, pairs, base.start_mark, base.end_mark)
