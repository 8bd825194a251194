"""Nodes as columns: allocatable and free resources, labels, taints and host ports, an entry per node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from batuta.backends.kube import objects
from batuta.backends.kube.binder.requests import HostPort, Needs, amount, units

T = TypeVar("T", bound=np.generic)
Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
PODS: Final = "pods"
MISSING: Final = -1
_SMALLEST: Final = 16
_MOST_ASKS: Final = 8192


def padded(table: NDArray[T], shape: tuple[int, ...], filling: float = 0) -> NDArray[T]:
    if table.shape == shape:
        return table
    larger = np.full(shape, filling, table.dtype)
    larger[tuple(slice(length) for length in table.shape)] = table
    return larger


class Taint(NamedTuple):
    """What keeps pods away from a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{{{self.key}: {self.value}}}" if self.value else f"{{{self.key}}}"


class Ask(NamedTuple):
    """Requests as lines of the table of resources, and how much of each."""

    lines: Rows
    amounts: Ints


class LabelColumn:
    """The values of one label: a number per node, equal for equal values, `MISSING` where it is absent."""

    def __init__(self, capacity: int) -> None:
        self.codes: Codes = np.full(capacity, MISSING, np.int32)
        self.values: list[str] = []
        self._number: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.codes[row] = MISSING
            return
        number = self._number.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        self.codes[row] = number

    def grow(self, capacity: int) -> None:
        self.codes = padded(self.codes, (capacity,), MISSING)


class NodeTable:
    """The nodes. A row stays a node's own until the node goes; then another node may get it."""

    def __init__(self) -> None:
        self.row: dict[str, int] = {}
        self.name: list[str] = []
        self.capacity = 0
        self.alive: Flags = np.zeros(0, np.bool_)
        self.unschedulable: Flags = np.zeros(0, np.bool_)
        self.resources: dict[str, int] = {}  # the line of each resource in the tables below
        self.allocatable: Ints = np.zeros((0, 0), np.int64)
        self.free: Ints = np.zeros((0, 0), np.int64)
        self.per_unit: Floats = np.zeros((0, 0), np.float64)
        """One part of what is allocatable: times an amount, it is the amount's fraction of the node."""
        self._asks: dict[Needs, Ask] = {}
        self.taint_set: Codes = np.zeros(0, np.int32)
        """Which of `taint_sets` a node has; nodes with equal taints have the same."""
        self.taint_sets: list[tuple[Taint, ...]] = [()]
        self._taint_number: dict[tuple[Taint, ...], int] = {(): 0}
        self._labels: dict[str, LabelColumn] = {}
        self._label_maps: list[Mapping[str, str]] = []
        self._vacant: list[int] = []
        self.line(PODS)

    def __len__(self) -> int:
        return len(self.row)

    def put(self, node: objects.Node) -> int:
        """Writes what a node says of itself; what it has free moves with what it has."""
        name = node.metadata.name
        row = self.row.get(name)
        if row is None:
            row = self._new_row(name)
        self.unschedulable[row] = node.spec.unschedulable
        self._put_taints(row, node.spec.taints)
        self._put_labels(row, node.metadata.labels)
        self._put_allocatable(row, node.status.allocatable)
        return row

    def drop(self, name: str) -> None:
        """Frees the node's row. Holders of something there have to give it back first."""
        row = self.row.pop(name)
        self.alive[row] = False
        self._put_taints(row, ())
        self._put_labels(row, {})
        self._put_allocatable(row, {})
        self._vacant.append(row)

    def label(self, key: str) -> LabelColumn:
        """The column of a label; made when a plugin first asks, kept up to date from then on."""
        column = self._labels.get(key)
        if column is None:
            column = self._labels[key] = LabelColumn(self.capacity)
            for row, labels in enumerate(self._label_maps):
                column.put(row, labels.get(key))
        return column

    def labels_of(self, row: int) -> Mapping[str, str]:
        return self._label_maps[row]

    def line(self, name: str) -> int:
        """The line of a resource; a new one where no node or pod has named it yet."""
        found = self.resources.get(name)
        if found is None:
            found = self.resources[name] = len(self.resources)
            self._reshape(self.capacity)
        return found

    def ask(self, requests: Needs) -> Ask:
        """A pod's requests as lines and amounts; the pod itself is one of `pods`."""
        found = self._asks.get(requests)
        if found is None:
            if len(self._asks) >= _MOST_ASKS:
                self._asks.clear()
            lines = [self.line(PODS), *(self.line(name) for name, _ in requests)]
            amounts = [1, *(value for _, value in requests)]
            found = self._asks[requests] = Ask(np.array(lines)[:, None], np.array(amounts, np.int64)[:, None])
        return found

    def left(self, requests: Needs, rows: Rows) -> Ints:
        """Lines of requests × rows: what would be left after a pod with these requests."""
        ask = self.ask(requests)
        left: Ints = self.free[ask.lines, rows] - ask.amounts
        return left

    def take(self, row: int, requests: Needs, sign: int) -> None:
        """Takes a pod's requests from a node (`sign` 1), or gives them back (-1)."""
        ask = self.ask(requests)
        self.free[ask.lines[:, 0], row] -= sign * ask.amounts[:, 0]

    def _new_row(self, name: str) -> int:
        if self._vacant:
            row = self._vacant.pop()
            self.name[row] = name
        else:
            row = len(self.name)
            if row == self.capacity:
                self._grow(max(_SMALLEST, 2 * row))
            self.name.append(name)
            self._label_maps.append({})
        self.row[name] = row
        self.alive[row] = True
        return row

    def _grow(self, capacity: int) -> None:
        self.capacity = capacity
        self.alive = padded(self.alive, (capacity,), False)
        self.unschedulable = padded(self.unschedulable, (capacity,), False)
        self.taint_set = padded(self.taint_set, (capacity,), 0)
        self._reshape(capacity)
        for labels in self._labels.values():
            labels.grow(capacity)

    def _reshape(self, capacity: int) -> None:
        shape = (len(self.resources), capacity)
        self.allocatable, self.free = padded(self.allocatable, shape), padded(self.free, shape)
        self.per_unit = padded(self.per_unit, shape)

    def _put_taints(self, row: int, taints: Iterable[objects.Taint]) -> None:
        found = tuple(Taint(one.key, one.value, one.effect) for one in taints)
        number = self._taint_number.setdefault(found, len(self.taint_sets))
        if number == len(self.taint_sets):
            self.taint_sets.append(found)
        self.taint_set[row] = number

    def _put_labels(self, row: int, labels: Mapping[str, str]) -> None:
        self._label_maps[row] = labels
        for key, column in self._labels.items():
            column.put(row, labels.get(key))

    def _put_allocatable(self, row: int, stated: Mapping[str, str]) -> None:
        for name in stated:
            self.line(name)
        for name, line in self.resources.items():
            value = units(name, amount(stated[name])) if name in stated else 0
            self.free[line, row] += value - self.allocatable[line, row]
            self.allocatable[line, row] = value
            self.per_unit[line, row] = 1.0 / value if value > 0 else 0.0


class PortTable:
    """Host ports in use: few pods have any, so only their nodes are kept."""

    def __init__(self) -> None:
        self.by_row: dict[int, Counter[HostPort]] = {}

    def take(self, row: int, ports: Iterable[HostPort], sign: int) -> None:
        """Takes ports (`sign` 1), or gives them back (-1)."""
        held = self.by_row.setdefault(row, Counter())
        for port in ports:
            held[port] += sign
        self.by_row[row] = +held
        if not self.by_row[row]:
            del self.by_row[row]

    def clash(self, row: int, wanted: Iterable[HostPort]) -> HostPort | None:
        held = self.by_row.get(row)
        if held is None:
            return None
        return next((port for port in wanted if any(port.clashes(other) for other in held)), None)
