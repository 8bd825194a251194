"""The `elastic:`, `gpu:` and `trial:` sections of a task file: sizes in nodes, a share of a GPU, trial runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import yaml

from batuta.core.job import ANYWHERE, JobKind, Spread, Topology
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import parse_duration_s, parse_memory_mib, parse_percent, shown
from batuta.spec.task_env import Overrides
from batuta.spec.task_resources import HIGHEST_PRIORITY, LOWEST_PRIORITY
from batuta.spec.yaml_reader import TaskReader, YamlNode

MOST_NODES = 100_000
AUTO = "auto"
AUTO_MOST_NODES = 8  # the largest size of `num_nodes: auto` without `elastic.max_nodes`
MOST_SIZES = 1024
GRACE_S = 60.0
LONGEST_GRACE_S = 86_400.0
LONGEST_INTERVAL_S = 30 * 86_400.0
TRIAL_BUDGET_S = 300.0
SHORTEST_TRIAL_S = 5.0  # in less nothing can be measured: scripts report every few seconds
LONGEST_TRIAL_S = 86_400.0
MOST_TRIAL_SIZES = 16
MOST_TRIAL_GPUS = 100_000
_KEYS = (
    *("min_nodes", "max_nodes", "sizes", "step"),
    *("checkpoint", "checkpoint_interval", "restartable", "grace", "kind"),
)
_GPU_KEYS = ("memory", "compute", "limit", "topology", "numa")
_TRIAL_KEYS = ("sizes", "budget", "each", "priority")
_KINDS: dict[str, JobKind | None] = {"auto": None, **{kind.value: kind for kind in JobKind}}
_TOPOLOGIES = {
    "any": (Spread.ANY, False),
    "prefer-node": (Spread.NODE, False),
    "require-node": (Spread.NODE, True),
    "prefer-rack": (Spread.RACK, False),
    "require-rack": (Spread.RACK, True),
}

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_CALLS = r"(?:^|[\s;&|('\"`/])(?:{})(?=$|[\s;&|)'\"`])"
_TORCH = re.compile(_CALLS.format(r"torchrun|torch\.distributed\.run|torch\.distributed\.elastic"), re.MULTILINE)
_HOROVOD = re.compile(_CALLS.format("horovodrun"), re.MULTILINE)
_HOROVOD_ELASTIC = re.compile(r"--(?:host-discovery-script|min-np|max-np|min-num-proc|max-num-proc)\b")
_MPI = re.compile(_CALLS.format(r"mpirun|mpiexec|orterun|prterun"), re.MULTILINE)


class Checkpoint(Enum):
    """When a task makes checkpoints: never, on request, or periodically by itself."""

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
    kind: JobKind | None = None  # None: derived from the launcher that `run` calls
    restartable: bool = False  # a restart loses nothing that matters, with or without a checkpoint

    def kind_of(self, run: str) -> JobKind:
        """Return how its workers start: the given kind, else by the launcher that `run` calls."""
        return self.kind or find_kind(run)

    def is_restartable(self, run: str) -> bool:
        """Whether a resize loses nothing: the task says so, or workers can join and leave while it runs."""
        return self.restartable or self.kind_of(run) is JobKind.HOROVOD_ELASTIC

    def keeps_size_until_saved(self, run: str) -> bool:
        """Whether the scheduler resizes it only after its first checkpoint."""
        return self.max_nodes > self.min_nodes and not self.is_restartable(run)

    @property
    def legal_sizes(self) -> tuple[int, ...] | None:
        """All sizes in nodes, ascending; None when every number from min to max is one."""
        if self.sizes is None and self.step > 1:
            return tuple(range(self.min_nodes, self.max_nodes + 1, self.step))
        return self.sizes


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A share of one GPU, and the topology of the GPUs of a task. Zero: not given."""

    memory_mib: int = 0
    compute_percent: int = 0
    topology: Topology = ANYWHERE
    soft: bool = False  # the job may exceed the compute of its share while the GPU is idle

    @property
    def is_share(self) -> bool:
        return bool(self.memory_mib or self.compute_percent)


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """How to try a task out before it is queued; what is absent follows from the job."""

    wanted: bool | None = None  # None: the queue decides
    sizes: tuple[int, ...] = ()  # GPUs in all, ascending
    budget_s: float | None = None
    each_s: float | None = None
    priority: int | None = None  # of the trial runs; None: that of the task
    only: bool = False  # run the trial and do not queue the job


RIGID = Elastic()
NO_GPU_REQUEST = GpuRequest()
NO_TRIAL = TrialSpec()


def find_kind(run: str) -> JobKind:
    """Return how a script starts its workers, by the launcher that it calls."""
    code = _COMMENT.sub("", run)
    if _TORCH.search(code):
        return JobKind.TORCH_ELASTIC
    if _HOROVOD.search(code):
        return JobKind.HOROVOD_ELASTIC if _HOROVOD_ELASTIC.search(code) else JobKind.MPI
    return JobKind.MPI if _MPI.search(code) else JobKind.SCRIPT


def read_elastic(
    reader: TaskReader, node: YamlNode | None, num_nodes: YamlNode | None, overrides: Overrides
) -> tuple[int, bool, Elastic]:
    """Return how many nodes the task requests, whether the scheduler chooses (from these on), and its sizes."""
    before = len(reader.problems)
    values = reader.section(node, "elastic", _KEYS)
    auto, asked = _asked(reader, num_nodes, overrides.num_nodes)
    low = _count(reader, values.get("min_nodes"), "min_nodes", overrides.min_nodes)
    high = _count(reader, values.get("max_nodes"), "max_nodes", overrides.max_nodes)
    step = _count(reader, values.get("step"), "step", None)
    sizes = _read_sizes(reader, values["sizes"]) if "sizes" in values else None
    cut = overrides.min_nodes is not None or overrides.max_nodes is not None
    checkpoint, interval_s = _read_checkpoint(reader, values, elastic=cut or node is not None)
    grace_s = _duration(reader, values.get("grace"), "grace", 0.0, LONGEST_GRACE_S)
    restartable = reader.word(values.get("restartable"), "restartable", ("true", "false")) == "true"
    word = reader.word(values.get("kind"), "kind", tuple(_KINDS))
    if low is not None and high is not None and low > high:
        place = values.get("min_nodes", values.get("max_nodes"))
        reader.blame(place, f"min_nodes {low} is above max_nodes {high}")
    if len(reader.problems) > before:
        return 1, False, RIGID
    if sizes is not None:
        sizes = _within(reader, values, sizes, low, high, cut=cut)
        low, high = (sizes[0], sizes[-1]) if sizes else (low, high)
    if asked and cut and overrides.num_nodes is None:
        # A range on the command line overrides the count in the file.
        asked = min(max(asked, low or 1), high or MOST_NODES)
    asked = asked or low or 1
    low = low or asked
    if high is None:
        high = max(asked, low)
        if auto and low < AUTO_MOST_NODES:
            high = AUTO_MOST_NODES - (AUTO_MOST_NODES - low) % (step or 1)
    grace_s = GRACE_S if grace_s is None else grace_s
    restartable = restartable if overrides.restartable is None else overrides.restartable
    kind = _KINDS[word or "auto"]
    elastic = Elastic(low, high, sizes, step or 1, checkpoint, interval_s, grace_s, kind, restartable)
    _check_range(reader, values, num_nodes, asked, elastic)
    return asked, auto, elastic


def read_gpu(reader: TaskReader, node: YamlNode | None) -> GpuRequest:
    values = reader.section(node, "gpu", _GPU_KEYS)
    memory = reader.parsed(values.get("memory"), "gpu.memory", parse_memory_mib)
    compute = reader.parsed(values.get("compute"), "gpu.compute", parse_percent)
    word = reader.word(values.get("topology"), "gpu.topology", tuple(_TOPOLOGIES))
    numa = reader.word(values.get("numa"), "gpu.numa", ("any", "single"))
    limit = reader.word(values.get("limit"), "gpu.limit", ("hard", "soft"))
    topology = Topology(*_TOPOLOGIES[word or "any"], single_numa=numa == "single")
    return GpuRequest(memory or 0, compute or 0, topology, soft=limit == "soft")


def read_trial(reader: TaskReader, node: YamlNode | None, given: Mapping[str, Any] | None) -> TrialSpec:
    """Return the `trial:` section with the options of the command line over it."""
    trial = NO_TRIAL if node is None else _read_trial_section(reader, node)
    if given is None:
        return trial
    said = {key: value for key, value in given.items() if value not in (None, (), [])}
    if problems := _trial_option_problems(said):
        reader.problems += problems
        return trial
    if "sizes" in said:
        said["sizes"] = tuple(sorted(set(said["sizes"])))
    return replace(trial, wanted=True, **said)


def _asked(reader: TaskReader, node: YamlNode | None, given: int | str | None) -> tuple[bool, int | None]:
    """Return whether the size is `auto`, else the number of nodes. The file is always checked."""
    open_in_file = isinstance(node, yaml.ScalarNode) and node.value == AUTO
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 9:
        given = int(given)
    asked = _count(reader, None if open_in_file else node, "num_nodes", None if given == AUTO else given)
    if given == AUTO:
        return True, None
    return open_in_file and given is None, asked


def _count(reader: TaskReader, node: YamlNode | None, what: str, given: int | str | None) -> int | None:
    """Return the value of the command line, else of the file. The file is always checked."""
    written = reader.whole(node, what, 1, MOST_NODES)
    if given is None:
        return written
    if isinstance(given, bool | str) or not 1 <= given <= MOST_NODES:
        flag, found = "--" + what.replace("_", "-"), shown(given) if isinstance(given, str) else given
        wanted = f"a whole number within 1..{MOST_NODES}{f' or {AUTO}' if what == 'num_nodes' else ''}"
        reader.problems.append(Problem(f"{flag} must be {wanted}, found {found}"))
        return None
    return given


def _read_sizes(reader: TaskReader, node: YamlNode) -> tuple[int, ...] | None:
    items = reader.sequence(node, "sizes")
    if len(items) > MOST_SIZES:
        reader.fault(node, f"sizes has {len(items)} values", f"at most {MOST_SIZES}")
        return None
    if not items:
        reader.fault(node, "sizes must not be empty", "for example [1, 2, 4, 8]")
    return _whole_sizes(reader, items, MOST_NODES)


def _whole_sizes(reader: TaskReader, items: Sequence[YamlNode], most: int) -> tuple[int, ...]:
    found = {reader.whole(item, "a size", 1, most) for item in items}
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
    """Return the sizes within min..max. A file must be consistent; the command line may cut sizes off."""
    kept = tuple(size for size in sizes if (low or 1) <= size <= (high or MOST_NODES))
    if "step" in values:
        reader.fault(values["step"], "elastic has sizes and step", "keep one of them")
    if not kept:
        reader.blame(values["sizes"], f"no size lies within {low or 1}..{high or sizes[-1]}")
    elif cut and kept != sizes:
        reader.notes.append(f"elastic.sizes: cut to {', '.join(map(str, kept))} by the command line")
    elif kept != sizes:
        outside = ", ".join(str(size) for size in sizes if size not in kept)
        reader.fault(values["sizes"], f"sizes {outside} lie outside of min_nodes..max_nodes")
    elif not cut:
        ends = (("min_nodes", "first", sizes[0], low), ("max_nodes", "last", sizes[-1], high))
        for key, side, end, value in ends:
            if value is not None and value != end:
                reader.fault(values[key], f"{key} {value} is not the {side} of sizes", f"{key}: {end}, or leave it out")
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
        few = ", ".join(map(str, sizes[:12])) + (", …" if len(sizes) > 12 else "")
        reader.blame(num_nodes or values.get("sizes"), f"num_nodes {asked} is not one of the sizes", f"one of {few}")


def _read_checkpoint(
    reader: TaskReader, values: dict[str, YamlNode], *, elastic: bool
) -> tuple[Checkpoint, float | None]:
    """With `elastic` a task is assumed to checkpoint on request; else to lose all work when stopped."""
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
        reader.fault(node, "checkpoint: interval needs checkpoint_interval", "for example checkpoint_interval: 10m")
    elif word and checkpoint is not Checkpoint.INTERVAL and interval is not None:
        reader.fault(interval, f"checkpoint_interval does not go with checkpoint: {word}", "checkpoint: interval")
    return checkpoint, interval_s


def _duration(reader: TaskReader, node: YamlNode | None, what: str, low_s: float, high_s: float) -> float | None:
    def parse(text: str) -> float:
        try:
            seconds = parse_duration_s(text)
        except InputError as error:
            raise InputError.of(f"{shown(text)} is not a duration", fix=error.problems[0].fix) from None
        if not low_s <= seconds <= high_s:
            raise InputError.of(f"{shown(text)} is out of range", fix=f"within {low_s:g}s..{high_s:g}s")
        return seconds

    return reader.parsed(node, what, parse)


def _read_trial_section(reader: TaskReader, node: YamlNode) -> TrialSpec:
    if isinstance(node, yaml.ScalarNode):
        word = reader.word(node, "trial", ("true", "false"))
        return TrialSpec(wanted=None if word is None else word == "true")
    values = reader.section(node, "trial", _TRIAL_KEYS)
    items = reader.sequence(values.get("sizes"), "sizes")
    if "sizes" in values and not 1 <= len(items) <= MOST_TRIAL_SIZES:
        fix = f"1 to {MOST_TRIAL_SIZES}, for example [1, 2, 4]"
        reader.fault(values["sizes"], f"trial has {len(items)} sizes", fix)
    return TrialSpec(
        wanted=True,
        sizes=_whole_sizes(reader, items, MOST_TRIAL_GPUS),
        budget_s=_duration(reader, values.get("budget"), "budget", SHORTEST_TRIAL_S, LONGEST_TRIAL_S),
        each_s=_duration(reader, values.get("each"), "each", SHORTEST_TRIAL_S, LONGEST_TRIAL_S),
        priority=reader.whole(values.get("priority"), "priority", LOWEST_PRIORITY, HIGHEST_PRIORITY),
    )


def _trial_option_problems(said: Mapping[str, Any]) -> list[Problem]:
    found = [
        Problem(f"--{name}: {said[key]:g} s is out of range", fix=f"within {SHORTEST_TRIAL_S:g}s..24h")
        for key, name in (("budget_s", "budget"), ("each_s", "each"))
        if key in said and not SHORTEST_TRIAL_S <= said[key] <= LONGEST_TRIAL_S
    ]
    sizes = said.get("sizes", ())
    if len(sizes) > MOST_TRIAL_SIZES or not all(1 <= size <= MOST_TRIAL_GPUS for size in sizes):
        listed = ",".join(map(str, sizes[:20]))
        found.append(Problem(f"--sizes: {listed} cannot be tried", fix=f"1 to {MOST_TRIAL_SIZES} numbers of GPUs"))
    priority = said.get("priority", 0)
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        found.append(Problem(f"--trial-priority: {priority}", fix=f"within {LOWEST_PRIORITY}..{HIGHEST_PRIORITY}"))
    return found
