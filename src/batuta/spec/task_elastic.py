"""How a task grows and shrinks (`elastic:`), counted in nodes, and the part of a GPU it wants (`gpu:`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import yaml

from batuta.core.job import ANYWHERE, JobKind, Spread, Topology
from batuta.spec.duration import parse_duration_s
from batuta.spec.overrides import Overrides
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import parse_memory_mib, parse_percent, shown
from batuta.spec.task_yaml import TaskReader
from batuta.spec.yaml_nodes import YamlNode

MOST_NODES = 100_000
AUTO = "auto"
AUTO_MOST_NODES = 8
"""Up to so many nodes a size that is left open may have, unless `elastic.max_nodes` says something else."""
MOST_SIZES = 1024
GRACE_S = 60.0
LONGEST_GRACE_S = 86_400.0
LONGEST_INTERVAL_S = 30 * 86_400.0
_KEYS = (
    *("min_nodes", "max_nodes", "sizes", "step"),
    *("checkpoint", "checkpoint_interval", "grace", "kind"),
)
_GPU_KEYS = ("memory", "compute", "limit", "topology", "numa")
_KINDS: dict[str, JobKind | None] = {"auto": None, **{kind.value: kind for kind in JobKind}}
_TOPOLOGIES = {
    "any": (Spread.ANY, False),
    "prefer-node": (Spread.NODE, False),
    "require-node": (Spread.NODE, True),
    "prefer-rack": (Spread.RACK, False),
    "require-rack": (Spread.RACK, True),
}


class Checkpoint(Enum):
    """When a task saves what it has done: never, when asked, or every so often by itself."""

    NONE = "none"
    ON_SIGNAL = "on-signal"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Elastic:
    """The sizes a task can have, in nodes, and what a change of size needs. Rigid when min is max."""

    min_nodes: int = 1
    max_nodes: int = 1
    sizes: tuple[int, ...] | None = None
    step: int = 1
    checkpoint: Checkpoint = Checkpoint.NONE
    checkpoint_interval_s: float | None = None
    grace_s: float = GRACE_S
    kind: JobKind | None = None
    """None: found out from what `run` calls."""

    @property
    def legal_sizes(self) -> tuple[int, ...] | None:
        """All sizes in nodes, ascending; None when every number from min to max is one."""
        if self.sizes is None and self.step > 1:
            return tuple(range(self.min_nodes, self.max_nodes + 1, self.step))
        return self.sizes


@dataclass(frozen=True, slots=True)
class GpuWishes:
    """A share of one GPU, and where the GPUs of a task want to be. Zero: nothing said."""

    memory_mib: int = 0
    compute_percent: int = 0
    topology: Topology = ANYWHERE
    soft: bool = False
    """The compute of a share may be exceeded while the card is idle."""

    @property
    def is_share(self) -> bool:
        return bool(self.memory_mib or self.compute_percent)


@dataclass(frozen=True, slots=True)
class AskedSize:
    """How many nodes a task asks for; `auto` where that is left open, with the smallest for now."""

    nodes: int = 1
    auto: bool = False


RIGID = Elastic()
NO_WISHES = GpuWishes()


def read_elastic(
    reader: TaskReader, node: YamlNode | None, num_nodes: YamlNode | None, overrides: Overrides
) -> tuple[AskedSize, Elastic]:
    """How many nodes the task asks for, and its sizes."""
    before = len(reader.problems)
    values = reader.section(node, "elastic", _KEYS)
    auto, asked = _asked(reader, num_nodes, overrides.num_nodes)
    low = _count(reader, values.get("min_nodes"), "min_nodes", overrides.min_nodes)
    high = _count(reader, values.get("max_nodes"), "max_nodes", overrides.max_nodes)
    step = _count(reader, values.get("step"), "step", None)
    sizes = _read_sizes(reader, values.get("sizes"))
    cut = overrides.min_nodes is not None or overrides.max_nodes is not None
    checkpoint, interval_s = _read_checkpoint(reader, values, elastic=cut or node is not None)
    grace_s = _duration(reader, values.get("grace"), "grace", 0.0, LONGEST_GRACE_S)
    kind = reader.word(values["kind"], "kind", tuple(_KINDS)) if "kind" in values else None
    if low is not None and high is not None and low > high:
        place = values.get("min_nodes", values.get("max_nodes"))
        reader.blame(place, f"min_nodes {low} is above max_nodes {high}")
    if len(reader.problems) > before:
        return AskedSize(), RIGID
    if sizes is not None:
        sizes = _within(reader, values, sizes, low, high, cut=cut)
        low, high = (sizes[0], sizes[-1]) if sizes else (low, high)
    if asked and cut and overrides.num_nodes is None:
        # Whoever changes the range on the command line does not mean the old count to stand against it.
        asked = min(max(asked, low or 1), high or MOST_NODES)
    asked = asked or low or 1
    low = low or asked
    if high is None:
        high = max(asked, low)
        if auto and low < AUTO_MOST_NODES:
            high = AUTO_MOST_NODES - (AUTO_MOST_NODES - low) % (step or 1)
    elastic = Elastic(
        low,
        high,
        sizes,
        step or 1,
        checkpoint,
        interval_s,
        GRACE_S if grace_s is None else grace_s,
        _KINDS[kind or "auto"],
    )
    _check_range(reader, values, num_nodes, asked, elastic)
    return AskedSize(asked, auto), elastic


def read_gpu(reader: TaskReader, node: YamlNode | None) -> GpuWishes:
    """What stands under `gpu`."""
    values = reader.section(node, "gpu", _GPU_KEYS)
    memory = compute = None
    if "memory" in values:
        memory = reader.parsed(values["memory"], "gpu.memory", parse_memory_mib)
    if "compute" in values:
        compute = reader.parsed(values["compute"], "gpu.compute", parse_percent)
    within, required = Spread.ANY, False
    if "topology" in values:
        word = reader.word(values["topology"], "gpu.topology", tuple(_TOPOLOGIES))
        within, required = _TOPOLOGIES[word or "any"]
    numa = reader.word(values["numa"], "gpu.numa", ("any", "single")) if "numa" in values else None
    limit = reader.word(values["limit"], "gpu.limit", ("hard", "soft")) if "limit" in values else None
    return GpuWishes(
        memory or 0, compute or 0, Topology(within, required, numa == "single"), soft=limit == "soft"
    )


def _asked(reader: TaskReader, node: YamlNode | None, given: int | str | None) -> tuple[bool, int | None]:
    """Whether the size is left open; if not, what is asked for. The file is checked in any case."""
    open_in_file = node is not None and isinstance(node, yaml.ScalarNode) and node.value == AUTO
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 9:
        given = int(given)
    asked = _count(reader, None if open_in_file else node, "num_nodes", None if given == AUTO else given)
    if given == AUTO:
        return True, None
    return open_in_file and given is None, asked


def _count(reader: TaskReader, node: YamlNode | None, what: str, given: int | str | None) -> int | None:
    """What the command line says, else what the file says. The file is checked in any case."""
    written = reader.whole(node, what, 1, MOST_NODES) if node is not None else None
    if given is None:
        return written
    if isinstance(given, bool | str) or not 1 <= given <= MOST_NODES:
        flag, found = "--" + what.replace("_", "-"), shown(given) if isinstance(given, str) else given
        wanted = f"a whole number within 1..{MOST_NODES}{f' or {AUTO}' if what == 'num_nodes' else ''}"
        reader.problems.append(Problem(f"{flag} must be {wanted}, found {found}"))
        return None
    return given


def _read_sizes(reader: TaskReader, node: YamlNode | None) -> tuple[int, ...] | None:
    if node is None:
        return None
    items = reader.sequence(node, "sizes")
    if len(items) > MOST_SIZES:
        reader.fault(node, f"sizes has {len(items)} values", f"at most {MOST_SIZES}")
        return None
    found = {reader.whole(item, "a size", 1, MOST_NODES) for item in items}
    if not items:
        reader.fault(node, "sizes must not be empty", "for example [1, 2, 4, 8]")
    return tuple(sorted(size for size in found if size is not None))


def _within(
    reader: TaskReader,
    values: dict[str, YamlNode],
    sizes: tuple[int, ...],
    low: int | None,
    high: int | None,
    *,
    cut: bool,
) -> tuple[int, ...]:
    """The sizes from min to max. A file has to be of one mind; the command line may cut sizes off."""
    kept = tuple(size for size in sizes if (low or 1) <= size <= (high or MOST_NODES))
    if "step" in values:
        reader.fault(values["step"], "elastic has sizes and step", "keep one of them")
    if not kept:
        reader.blame(values["sizes"], f"no size lies within {low or 1}..{high or sizes[-1]}")
    elif cut:
        if kept != sizes:
            reader.notes.append(f"elastic.sizes: cut to {', '.join(map(str, kept))} by the command line")
    elif kept != sizes:
        outside = ", ".join(str(size) for size in sizes if size not in kept)
        reader.fault(values["sizes"], f"sizes {outside} lie outside of min_nodes..max_nodes")
    else:
        for key, end, value in (("min_nodes", sizes[0], low), ("max_nodes", sizes[-1], high)):
            if value is not None and value != end:
                side = "first" if key == "min_nodes" else "last"
                reader.fault(
                    values[key], f"{key} {value} is not the {side} of sizes", f"{key}: {end}, or leave it out"
                )
    return kept


def _check_range(
    reader: TaskReader, values: dict[str, YamlNode], num_nodes: YamlNode | None, asked: int, elastic: Elastic
) -> None:
    low, high, step = elastic.min_nodes, elastic.max_nodes, elastic.step
    place = values.get("min_nodes", values.get("max_nodes"))
    if not low <= asked <= high:
        limit = f"below min_nodes {low}" if asked < low else f"above max_nodes {high}"
        reader.blame(num_nodes or place, f"num_nodes {asked} is {limit}", "change one of them")
        return
    if (high - low) // step >= MOST_SIZES and step > 1:
        reader.blame(values.get("step"), f"step {step} makes more than {MOST_SIZES} sizes", "a larger step")
    elif (high - low) % step:
        down = high - (high - low) % step
        message = f"max_nodes {high} is not min_nodes {low} and a multiple of step {step}"
        reader.blame(values.get("step"), message, f"max_nodes: {down} or {down + step}")
    elif (sizes := elastic.legal_sizes) and asked not in sizes:
        reader.blame(
            num_nodes or values.get("sizes"),
            f"num_nodes {asked} is not one of the sizes",
            f"one of {_few(sizes)}",
        )


def _read_checkpoint(
    reader: TaskReader, values: dict[str, YamlNode], *, elastic: bool
) -> tuple[Checkpoint, float | None]:
    """Who writes `elastic` is taken to checkpoint when asked; who does not, to lose all when stopped."""
    interval = values.get("checkpoint_interval")
    interval_s = _duration(reader, interval, "checkpoint_interval", 1.0, LONGEST_INTERVAL_S)
    if "checkpoint" not in values:
        if interval is not None:
            return Checkpoint.INTERVAL, interval_s
        return (Checkpoint.ON_SIGNAL if elastic else Checkpoint.NONE), None
    node = values["checkpoint"]
    word = reader.word(node, "checkpoint", tuple(one.value for one in Checkpoint))
    checkpoint = Checkpoint(word or "none")
    if word and checkpoint is Checkpoint.INTERVAL and interval is None:
        reader.fault(
            node, "checkpoint: interval needs checkpoint_interval", "for example checkpoint_interval: 10m"
        )
    elif word and checkpoint is not Checkpoint.INTERVAL and interval is not None:
        reader.fault(
            interval, f"checkpoint_interval does not go with checkpoint: {word}", "checkpoint: interval"
        )
    return checkpoint, interval_s


def _duration(
    reader: TaskReader, node: YamlNode | None, what: str, low_s: float, high_s: float
) -> float | None:
    if node is None:
        return None

    def parse(text: str) -> float:
        try:
            seconds = parse_duration_s(text)
        except InputError as error:
            raise InputError.of(f"{shown(text)} is not a duration", fix=error.problems[0].fix) from None
        if not low_s <= seconds <= high_s:
            raise InputError.of(f"{shown(text)} is out of range", fix=f"within {low_s:g}s..{high_s:g}s")
        return seconds

    return reader.parsed(node, what, parse)


def _few(sizes: tuple[int, ...]) -> str:
    first = ", ".join(map(str, sizes[:12]))
    return first + (", …" if len(sizes) > 12 else "")
