"""Read and write the annotations and conditions of a node that carry its health.

The agent writes notes from the kernel log and figures from NVML; the operator writes the state of the node
and its GPUs. Conditions that other programs set, such as those of node-problem-detector, become lines for the
rules of the table `log`: a rule `if: 'node condition KernelDeadlock=True'` makes one of them a finding.
Conditions of the kubelet are left out, because the scheduler reads readiness by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Final, TypeAlias

import msgspec

from batuta.backends.kube import names, objects
from batuta.backends.kube.bounded_text import LARGEST_WHOLE, LATEST_S, MOST_GPUS, by_gpu, read_json, read_whole
from batuta.core.health_record import WHOLE_NODE, Record, State
from batuta.core.health_rules import Action
from batuta.core.health_signals import Figure, Values

MOST_NOTES: Final = 64  # at a time, the oldest first: the rest follows when these are acknowledged
LONGEST_TEXT: Final = 240  # characters of what follows a code: rules look at them, and annotations are small
MOST_OWNERS: Final = 16
_SOURCES: Final = ("xid", "sxid")
_MOST_BYTES: Final = 64 << 10
_NAMES: Final = frozenset(Figure)
OWN: Final = "BatutaUnhealthy"
_KUBELET: Final = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", OWN})


Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0.0, lt=LATEST_S)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_WHOLE)]


class NodeNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. Numbers count up over restarts of the agent: who has seen one knows it by its number."""

    n: Count
    time: Seconds  # when it was read, by the node's clock
    source: str = "xid"
    code: Count = 0
    gpu: Annotated[int, msgspec.Meta(ge=0, lt=MOST_GPUS)] | None = None  # None: not about a GPU, or the GPU is unknown
    text: str = ""
    owners: tuple[str, ...] = ()  # whose pods were hit, as `namespace/job/pod`; empty where the agent cannot tell


def write_notes(notes: Iterable[NodeNote]) -> str:
    """The annotation, with as many of the oldest notes as it may hold."""
    listed = sorted(notes, key=lambda note: note.n)[:MOST_NOTES]
    while (text := msgspec.json.encode(listed).decode()) and len(text) > _MOST_BYTES:
        listed.pop()
    return text


def read_notes(text: str) -> tuple[NodeNote, ...]:
    """The notes of an annotation in the order of their numbers; what cannot be read says nothing."""
    found = read_json(text, list[NodeNote], [])
    known = {note.n: note for note in found if note.n > 0 and note.source in _SOURCES}
    return tuple(note for _, note in sorted(known.items()))


def read_seen(text: str) -> int:
    """The number of the last note that is dealt with; 0 where nothing is."""
    return read_whole(text) or 0


def write_figures(found: Mapping[int, Values]) -> str:
    """The annotation; the same figures always make the same text."""
    plain = {str(gpu): {one.value: value for one, value in values.items()} for gpu, values in found.items()}
    return msgspec.json.encode(plain, order="deterministic").decode()


def read_figures(text: str) -> dict[int, dict[Figure, int]]:
    """The figures by GPU. Unreadable text and unknown figures are left out."""
    plain = read_json(text, dict[str, dict[str, int]], {})
    return {
        gpu: {Figure(name): value for name, value in told.items() if name in _NAMES and 0 <= value <= LARGEST_WHOLE}
        for gpu, told in by_gpu(plain).items()
    }


class ComponentHealth(msgspec.Struct, kw_only=True):
    """How a node or a GPU is, as `taints.show` writes it."""

    state: str
    reason: str = ""
    since_s: Seconds = 0.0
    who: str = ""
    remedy: str = ""
    held: bool = False
    until_s: Seconds | None = None
    flaps: Count = 0
    incidents: Count = 0

    def record(self) -> Record:
        """The same for the state machine; raises ValueError for unknown words."""
        return Record(
            state=State(self.state),
            since_s=self.since_s,
            reason=self.reason,
            who=self.who,
            remedy=Action(self.remedy) if self.remedy else Action.IGNORE,
            held=self.held,
            ends_s=self.until_s or 0.0,
            flaps=self.flaps,
        )


class NodeHealth(msgspec.Struct, kw_only=True):
    """All of it."""

    taint: str = ""
    node: ComponentHealth | None = None
    gpus: dict[str, ComponentHealth] = {}

    def by_gpu(self) -> dict[int, ComponentHealth]:
        """The GPUs by their numbers, and the node itself under `WHOLE_NODE`."""
        own = {} if self.node is None else {WHOLE_NODE: self.node}
        return own | by_gpu(self.gpus)


def read_node_health(annotations: Mapping[str, str]) -> NodeHealth:
    return read_json(annotations.get(names.HEALTH), NodeHealth, NodeHealth())


def records_on(annotations: Mapping[str, str]) -> dict[int, Record]:
    found: dict[int, Record] = {}
    for gpu, shown in read_node_health(annotations).by_gpu().items():
        with suppress(ValueError):
            found[gpu] = shown.record()
    return found


def condition_lines(node: objects.Node) -> Iterator[tuple[str, str, str]]:
    """Of each condition of others: its type, since when it holds, and the line."""
    for one in node.status.conditions:
        if one.type and one.type not in _KUBELET:
            line = f"node condition {one.type}={one.status} {one.reason}: {one.message}"
            yield one.type, one.last_transition_time, line
