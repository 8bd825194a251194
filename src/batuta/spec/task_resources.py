"""The `resources:` section of a task file: accelerators, CPU, memory, priority, labels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import yaml

from batuta.core.quota import PriorityClass
from batuta.spec import skypilot_keys
from batuta.spec.problem import InputError, did_you_mean
from batuta.spec.quantity import Amount, parse_amount, parse_duration_s, parse_memory_gib, shown
from batuta.spec.skypilot_keys import CLOUD_KEYS, ContainerSupport
from batuta.spec.yaml_reader import TaskReader, YamlNode, is_null

if TYPE_CHECKING:
    from batuta.spec.task import Task

ANY_GPU = ""  # the type of a GPU when any will do
VIRTUAL_GPU = "virtual"  # the type of virtual GPUs that were given none: they stand for every type that a task asks for
NO_ACCELERATORS = "0"  # stands for no accelerators at all: the task runs on CPU
MOST_PER_NODE = 1024
MOST_ALTERNATIVES = 64
_FIX = "write TYPE:COUNT, for example H100:8, H100 for one, or H100:0.5 for half of one"
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
_COUNT = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9}")
LOWEST_PRIORITY, HIGHEST_PRIORITY = -1000, 1000
CLASS_LABEL = "kueue.x-k8s.io/priority-class"
_CLASS_NAME = re.compile(r"[a-z](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_ACCEPTED = f"a whole number within {LOWEST_PRIORITY}..{HIGHEST_PRIORITY}, or the name of a WorkloadPriorityClass"
HANG_AFTER_LABEL: Final = "batuta.dev/hang-after"
STRAGGLERS_LABEL: Final = "batuta.dev/stragglers"
PIDS_LIMIT_LABEL: Final = "batuta.dev/pids-limit"
OFF: Final = "off"
STRAGGLER_WORDS: Final = ("move", "report", OFF)
MOST_CANDIDATES = 64
MOST_RESTARTS = 10_000
MOST_PIDS = 2**22  # what Linux can have
LONGEST_EXEC_S = 10**9
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
TIME_LIMIT_LABELS = ("kueue.x-k8s.io/max-exec-time-seconds", "max-run-duration-seconds", "maxRunDurationSeconds")
"""A limit on the running time, as Kueue and as Konduktor spell it; they mean the same."""
ALIAS_OF_ACCELERATORS: Final = "gpus"  # the other name that SkyPilot has for `accelerators`
_NEEDS = ("accelerators", ALIAS_OF_ACCELERATORS, "cpus", "memory")
_KNOWN = (
    *(*_NEEDS, "labels", "image_id", "ports", "priority", "priority_class", "any_of", "ordered", "job_recovery"),
    *("network_tier", "autostop"),
)
_RECOVERY = ("max_restarts_on_errors", "recover_on_exit_codes")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """So many GPUs of one type on each node. A count below 1 is a share of one GPU."""

    type: str
    count: float

    def __str__(self) -> str:
        return f"{self.type or 'any'}:{self.count:g}"

    @property
    def gpus(self) -> int:
        """Whole GPUs that are touched: a share lies on one."""
        return math.ceil(self.count)

    @property
    def is_share(self) -> bool:
        return self.count < 1


def emulated_types(asked: Iterable[Accelerator], gpus_per_node: int, types: Collection[str]) -> tuple[str, ...]:
    """Return the types for which virtual GPUs of no type of their own stand in a cluster of these types.

    Of alternatives with several counts, those with the count that the job has are meant.
    """
    if VIRTUAL_GPU not in types:
        return ()
    known = {name.lower() for name in types}
    meant = (one.type for one in asked if one.type != ANY_GPU and one.gpus == gpus_per_node)
    return tuple(dict.fromkeys(name for name in meant if name.lower() not in known))


def parse_accelerator(text: str) -> Accelerator:
    """`H100:8`, `H100` (one), `8` (of any type)."""
    name, colon, count = (part.strip() for part in text.strip().partition(":"))
    if not colon and _COUNT.fullmatch(name):
        name, count = ANY_GPU, name
    elif not _TYPE.fullmatch(name) or (colon and not count):
        raise InputError.of(f"{shown(text)} is not an accelerator", fix=_FIX)
    return Accelerator(name, _parse_count(count or "1"))


def parse_accelerators(text: str) -> tuple[Accelerator, ...]:
    """What the command line says: one accelerator, alternatives with commas between them, or `0` for none."""
    if text.strip() == NO_ACCELERATORS:
        return ()
    found = tuple(parse_accelerator(part) for part in text.split(",")[: MOST_ALTERNATIVES + 1])
    if len(found) > MOST_ALTERNATIVES:
        raise InputError.of(f"more than {MOST_ALTERNATIVES} alternative accelerators")
    return tuple(dict.fromkeys(found))


def read_accelerators(reader: TaskReader, node: YamlNode) -> tuple[Accelerator, ...]:
    """Alternatives in the order of the file; none when nothing is said, or when something is wrong."""
    if is_null(node) or (isinstance(node, yaml.ScalarNode) and node.value.strip() == NO_ACCELERATORS):
        return ()
    if isinstance(node, yaml.MappingNode):
        found = _read_mapping(reader, node)
    elif isinstance(node, yaml.SequenceNode):
        found = [reader.parsed(item, "accelerators", parse_accelerator) for item in node.value[: MOST_ALTERNATIVES + 1]]
        if not found:
            reader.fault(node, "accelerators must not be an empty list", _FIX)
    else:
        found = [reader.parsed(node, "accelerators", parse_accelerator)]
    if len(found) > MOST_ALTERNATIVES:
        reader.fault(node, f"more than {MOST_ALTERNATIVES} alternative accelerators")
        return ()
    return tuple(dict.fromkeys(one for one in found if one is not None))


def _read_mapping(reader: TaskReader, node: yaml.MappingNode) -> list[Accelerator | None]:
    """`{H100: 8, A100: 8}`; also SkyPilot's set `{H100:8, A100:8}`: to YAML, keys without values."""
    found: list[Accelerator | None] = []
    for key, value in node.value[: MOST_ALTERNATIVES + 1]:
        name = reader.text(key, "an accelerator")
        if name is None:
            continue
        if is_null(value):
            found.append(reader.parsed(key, "accelerators", parse_accelerator))
            continue

        def with_name(text: str, name: str = name) -> Accelerator:
            return parse_accelerator(f"{name}:{text}")

        found.append(reader.parsed(value, "accelerators", with_name))
    if not node.value:
        reader.fault(node, "accelerators must not be an empty mapping", _FIX)
    return found


def _parse_count(text: str) -> float:
    count = float(text) if _COUNT.fullmatch(text) else 0.0
    if count > 1 and count == int(count) and count <= MOST_PER_NODE:
        return count
    if not 0.01 <= count <= 1:
        fix = f"a whole number within 1..{MOST_PER_NODE}, or a share of one GPU within 0.01..1"
        raise InputError.of(f"{shown(text)} is not a count of GPUs", fix=fix)
    return count


def parse_priority(text: str) -> int | str:
    """A number within bounds, or the name of a class."""
    if re.fullmatch(r"[-+]?[0-9]{1,18}", text):
        if LOWEST_PRIORITY <= int(text) <= HIGHEST_PRIORITY:
            return int(text)
    elif _CLASS_NAME.fullmatch(text):
        return text
    raise InputError.of(f"must be {_ACCEPTED}, found {shown(text)}")


def with_class_priority(task: Task, classes: Sequence[PriorityClass]) -> Task:
    """Return the task with the priority of its class; its own number takes precedence.

    Raises InputError when there is no such class. A class from a label is ignored where the cluster has no
    classes at all (`is_without_class`): the task was written for another cluster.
    """
    if not task.priority_class or task.priority or is_without_class(task, classes):
        return task
    known = {one.name: one.value for one in classes}
    if task.priority_class not in known:
        fix = "batuta queues apply -f FILE makes them, or say a number"
        if known:
            fix = did_you_mean(task.priority_class, list(known)) or "batuta queues export lists them"
        raise InputError.of(f"there is no priority class {shown(task.priority_class)}", fix=fix)
    return replace(task, priority=known[task.priority_class])


def is_without_class(task: Task, classes: Sequence[PriorityClass]) -> bool:
    """Whether the class comes from a label only, and there are no classes here."""
    by_label = bool(task.priority_class) and dict(task.labels).get(CLASS_LABEL) == task.priority_class
    return by_label and not classes


@dataclass(frozen=True, slots=True)
class RankSettings:
    """What a job wants for itself. None or empty: as the server has it."""

    hang_after_s: float | None = None  # infinite: it is never called hung
    stragglers: str = ""  # one of STRAGGLER_WORDS


def parse_hang_after_s(text: str) -> float:
    """A time span of more than 0, or infinite for `off`. InputError for anything else."""
    if text.strip().lower() == OFF:
        return math.inf
    found_s = parse_duration_s(text, "the time")
    if found_s <= 0:
        raise InputError.of(f"it must be more than 0, found {shown(text)}", fix="as in 30m, or off")
    return found_s


def parse_stragglers(text: str) -> str:
    if text not in STRAGGLER_WORDS:
        raise InputError.of(f"it cannot be {shown(text)}", fix=f"one of {', '.join(STRAGGLER_WORDS)}")
    return text


def parse_pids_limit(text: str) -> int:
    """How many processes and threads each node of a job may have. InputError for anything else."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MOST_PIDS:
        raise InputError.of(f"{shown(text)} is not a number of processes", fix=f"a whole number within 1..{MOST_PIDS}")
    return int(text)


LABEL_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    HANG_AFTER_LABEL: parse_hang_after_s,
    STRAGGLERS_LABEL: parse_stragglers,
    PIDS_LIMIT_LABEL: parse_pids_limit,
}
"""By label: what refuses a value that means nothing."""


def rank_settings(labels: Mapping[str, str]) -> RankSettings:
    """What labels say. InputError for a value that means nothing."""
    hang, stragglers = labels.get(HANG_AFTER_LABEL), labels.get(STRAGGLERS_LABEL)
    return RankSettings(
        None if hang is None else parse_hang_after_s(hang), "" if stragglers is None else parse_stragglers(stragglers)
    )


@dataclass(frozen=True, slots=True)
class ReplicaResources:
    """What one node needs for a replica. Accelerators are alternatives in order of preference."""

    accelerators: tuple[Accelerator, ...] = ()
    cpus: Amount | None = None
    memory_gib: Amount | None = None


NO_RESOURCES = ReplicaResources()


@dataclass(frozen=True, slots=True)
class Resources:
    """All that stands under `resources`."""

    needs: ReplicaResources = NO_RESOURCES
    any_of: tuple[ReplicaResources, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    image_id: str = ""
    ports: tuple[tuple[int, int], ...] = ()
    priority: int = 0
    priority_class: str = ""
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")

    def task_fields(self) -> dict[str, Any]:
        """What a task has of it as it is; a command line may override the priority."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if not one.name.startswith("priority")}
        limits = (float(text) for name, text in self.labels if name in TIME_LIMIT_LABELS)
        return found | {"max_exec_time_s": min(limits, default=None)}


def read_resources(
    reader: TaskReader, node: YamlNode | None, images: Callable[[], ContainerSupport] | None = None
) -> Resources:
    """Everything sound under `resources`; keys that steer a cloud are noted."""
    values = reader.section(node, "resources", _KNOWN, CLOUD_KEYS, skypilot_keys.UNSUPPORTED_RESOURCE_KEYS)
    skypilot_keys.read_network_tier(reader, values.get("network_tier"))
    skypilot_keys.read_autostop(reader, values.get("autostop"))
    needs = _read_needs(reader, values, NO_RESOURCES)
    priority = _read_priority(reader, values.get("priority"))
    class_name = reader.text(values.get("priority_class"), "priority_class")
    restarts, codes = _read_recovery(reader, values.get("job_recovery"))
    return Resources(
        needs=needs,
        any_of=_read_candidates(reader, values, needs),
        labels=_read_labels(reader, values.get("labels")),
        image_id=skypilot_keys.read_image(reader, values.get("image_id"), images),
        ports=skypilot_keys.read_ports(reader, values.get("ports")),
        priority=priority if isinstance(priority, int) else 0,
        priority_class=priority if isinstance(priority, str) else class_name or "",
        max_restarts_on_errors=restarts,
        recover_on_exit_codes=codes,
    )


def override_gpus(reader: TaskReader, resources: Resources, gpus: str) -> Resources:
    """What `--gpus` says stands in for all accelerators of the file."""
    found = reader.option("--gpus:", gpus, parse_accelerators)
    if found is None:
        return resources
    needs = replace(resources.needs, accelerators=found)
    any_of = dict.fromkeys(replace(one, accelerators=found) for one in resources.any_of)
    return replace(resources, needs=needs, any_of=tuple(any_of))


def parse_queue(text: str) -> str:
    if not _QUEUE_NAME.fullmatch(text):
        raise InputError.of(
            f"{shown(text)} is not the name of a queue", fix="letters, digits, dots, dashes and underscores"
        )
    return text


def parse_exec_time_s(text: str) -> float:
    """Whole seconds, as Kueue writes them."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= LONGEST_EXEC_S:
        raise InputError.of(f"{shown(text)} is not a number of seconds", fix=f"within 1..{LONGEST_EXEC_S}")
    return float(text)


def _read_needs(reader: TaskReader, values: dict[str, YamlNode], default: ReplicaResources) -> ReplicaResources:
    needs = default
    named, alias = values.get("accelerators"), values.get(ALIAS_OF_ACCELERATORS)
    if named is not None and alias is not None:
        reader.fault(alias, "resources has accelerators and gpus, which mean the same", "keep accelerators")
    elif (accelerators := named or alias) is not None:
        needs = replace(needs, accelerators=read_accelerators(reader, accelerators))
    if "cpus" in values:
        needs = replace(needs, cpus=reader.parsed(values["cpus"], "cpus", parse_amount))
    if "memory" in values:
        needs = replace(needs, memory_gib=reader.parsed(values["memory"], "memory", parse_memory_gib))
    return needs


def _read_candidates(
    reader: TaskReader, values: dict[str, YamlNode], needs: ReplicaResources
) -> tuple[ReplicaResources, ...]:
    """`any_of` or `ordered`: each takes from outside what it does not say itself."""
    if "any_of" in values and "ordered" in values:
        reader.fault(values["ordered"], "resources has any_of and ordered", "keep one of them")
        return ()
    node = values.get("any_of", values.get("ordered"))
    if node is None:
        return ()
    what = "resources.any_of" if "any_of" in values else "resources.ordered"
    items = reader.sequence(node, what)
    if len(items) > MOST_CANDIDATES:
        reader.fault(node, f"{what} has {len(items)} candidates", f"at most {MOST_CANDIDATES}")
        return ()
    # Labels, images and priorities of a candidate would need one job for each; there is one job.
    noted = (*CLOUD_KEYS, "autostop")
    sections = [reader.section(item, what, _NEEDS, noted, skypilot_keys.UNSUPPORTED_CANDIDATE_KEYS) for item in items]
    found = [_read_needs(reader, section, needs) for section in sections]
    distinct = tuple(dict.fromkeys(found))
    return () if distinct in ((), (needs,)) else distinct


def _read_labels(reader: TaskReader, node: YamlNode | None) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in (reader.mapping(node, "labels") or {}).items():
        what = f"label {key[:60]}"
        if key == QUEUE_LABEL:
            text = reader.parsed(value, what, parse_queue)
        elif key in TIME_LIMIT_LABELS:
            text = reader.text(value, what) if reader.parsed(value, what, parse_exec_time_s) else None
        elif key in LABEL_CHECKS:
            text = reader.text(value, what) if reader.parsed(value, what, LABEL_CHECKS[key]) is not None else None
        elif key == CLASS_LABEL or not isinstance(value, yaml.ScalarNode):
            text = reader.text(value, what)
        else:
            text = "" if is_null(value) else str(value.value)
        if text is not None:
            found.append((key, text))
    return tuple(found)


def _read_priority(reader: TaskReader, node: YamlNode | None) -> int | str | None:
    text = reader.text(node, "priority")
    try:
        return None if text is None else parse_priority(text)
    except InputError as error:
        reader.blame(node, f"priority {error.problems[0].message}")
        return None


def _read_recovery(reader: TaskReader, node: YamlNode | None) -> tuple[int, tuple[int, ...]]:
    """A strategy alone is about regions of clouds; the limit on restarts is for everyone."""
    if node is None:
        return 0, ()
    if isinstance(node, yaml.ScalarNode):
        if node.value.lower() != "none":
            reader.notes.append("resources.job_recovery: the strategy is not used by Batuta")
        return 0, ()
    values = reader.section(node, "resources.job_recovery", _RECOVERY, ("strategy",))
    restarts = reader.whole(values.get(_RECOVERY[0]), _RECOVERY[0], 0, MOST_RESTARTS) or 0
    codes = values.get(_RECOVERY[1])
    items = [codes] if isinstance(codes, yaml.ScalarNode) else reader.sequence(codes, _RECOVERY[1])
    found = {reader.whole(item, "an exit code", 0, 255) for item in items[:256]}
    return restarts, tuple(sorted(code for code in found if code is not None))
