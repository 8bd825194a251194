"""The `resources` of a task file: what each node needs, and what SkyPilot keeps beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import yaml

from batuta.spec.accelerator import Accelerator, parse_accelerators, read_accelerators
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import Amount, parse_amount, parse_memory_gib, shown
from batuta.spec.sound_yaml import is_null
from batuta.spec.task_priority import CLASS_LABEL, parse_priority
from batuta.spec.task_ranks import CHECKS as RANK_CHECKS
from batuta.spec.task_yaml import TaskReader
from batuta.spec.yaml_nodes import YamlNode

MOST_CANDIDATES = 64
MOST_RESTARTS = 10_000
LONGEST_EXEC_S = 10**9
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
EXEC_TIME_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"

_NEEDS = ("accelerators", "cpus", "memory")
_KNOWN = (*_NEEDS, "labels", "image_id", "priority", "any_of", "ordered", "job_recovery")
_CLOUD = (
    *("infra", "cloud", "region", "zone", "use_spot", "spot_recovery", "instance_type", "accelerator_args"),
    *("disk_size", "disk_tier", "ephemeral_storage", "local_disk", "network_tier", "max_hourly_cost"),
    *("ports", "autostop", "volumes", "container_image"),
)
_RECOVERY = ("max_restarts_on_errors", "recover_on_exit_codes")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Needs:
    """What one node has to have for a replica. Accelerators are alternatives, the first liked best."""

    accelerators: tuple[Accelerator, ...] = ()
    cpus: Amount | None = None
    memory_gib: Amount | None = None


NO_NEEDS = Needs()


@dataclass(frozen=True, slots=True)
class Resources:
    """All that stands under `resources`."""

    needs: Needs = NO_NEEDS
    any_of: tuple[Needs, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    image_id: str = ""
    priority: int = 0
    priority_class: str = ""
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()

    def label(self, name: str) -> str:
        return dict(self.labels).get(name, "")


def read_resources(reader: TaskReader, node: YamlNode | None) -> Resources:
    """Everything sound under `resources`; keys about clouds are noted."""
    values = reader.section(node, "resources", _KNOWN, _CLOUD)
    needs = _read_needs(reader, values, NO_NEEDS)
    priority: int | str | None = None
    if "priority" in values:
        priority = _read_priority(reader, values["priority"])
    restarts, codes = _read_recovery(reader, values.get("job_recovery"))
    return Resources(
        needs=needs,
        any_of=_read_candidates(reader, values, needs),
        labels=_read_labels(reader, values.get("labels")),
        image_id=_read_image(reader, values.get("image_id")),
        priority=priority if isinstance(priority, int) else 0,
        priority_class=priority if isinstance(priority, str) else "",
        max_restarts_on_errors=restarts,
        recover_on_exit_codes=codes,
    )


def override_gpus(reader: TaskReader, resources: Resources, gpus: str) -> Resources:
    """What `--gpus` says stands in for all accelerators of the file."""
    try:
        found = parse_accelerators(gpus)
    except InputError as error:
        reader.problems += [Problem(f"--gpus: {one.message}", fix=one.fix) for one in error.problems]
        return resources
    needs = replace(resources.needs, accelerators=found)
    any_of = dict.fromkeys(replace(one, accelerators=found) for one in resources.any_of)
    return replace(resources, needs=needs, any_of=tuple(any_of))


def parse_queue(text: str) -> str:
    """A name as Kubernetes has them."""
    if not _NAME.fullmatch(text):
        raise InputError.of(
            f"{shown(text)} is not the name of a queue", fix="letters, digits, dots, dashes and underscores"
        )
    return text


def parse_exec_time_s(text: str) -> float:
    """Whole seconds, as Kueue writes them."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= LONGEST_EXEC_S:
        raise InputError.of(f"{shown(text)} is not a number of seconds", fix=f"within 1..{LONGEST_EXEC_S}")
    return float(text)


def _read_needs(reader: TaskReader, values: dict[str, YamlNode], default: Needs) -> Needs:
    needs = default
    if "accelerators" in values:
        needs = replace(needs, accelerators=read_accelerators(reader, values["accelerators"]))
    if "cpus" in values:
        needs = replace(needs, cpus=reader.parsed(values["cpus"], "cpus", parse_amount))
    if "memory" in values:
        needs = replace(needs, memory_gib=reader.parsed(values["memory"], "memory", parse_memory_gib))
    return needs


def _read_candidates(reader: TaskReader, values: dict[str, YamlNode], needs: Needs) -> tuple[Needs, ...]:
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
    unused = (*_CLOUD, "labels", "image_id", "priority", "job_recovery")
    found = [_read_needs(reader, reader.section(item, what, _NEEDS, unused), needs) for item in items]
    distinct = tuple(dict.fromkeys(found))
    return () if distinct in ((), (needs,)) else distinct


def _read_labels(reader: TaskReader, node: YamlNode | None) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in (reader.mapping(node, "labels") or {}).items() if node is not None else ():
        what = f"label {key[:60]}"
        if key == QUEUE_LABEL:
            text = reader.parsed(value, what, parse_queue)
        elif key == EXEC_TIME_LABEL:
            text = reader.text(value, what) if reader.parsed(value, what, parse_exec_time_s) else None
        elif key in RANK_CHECKS:
            text = (
                reader.text(value, what) if reader.parsed(value, what, RANK_CHECKS[key]) is not None else None
            )
        elif key == CLASS_LABEL or not isinstance(value, yaml.ScalarNode):
            text = reader.text(value, what)
        else:
            text = "" if is_null(value) else str(value.value)
        if text is not None:
            found.append((key, text))
    return tuple(found)


def _read_priority(reader: TaskReader, node: YamlNode) -> int | str | None:
    text = reader.text(node, "priority")
    try:
        return None if text is None else parse_priority(text)
    except InputError as error:
        for problem in error.problems:
            reader.fault(node, f"priority {problem.message}", problem.fix)
        return None


def _read_image(reader: TaskReader, node: YamlNode | None) -> str:
    if node is None:
        return ""
    if isinstance(node, yaml.MappingNode):
        reader.notes.append("resources.image_id by region is not used by Batuta")
        return ""
    return reader.text(node, "image_id") or ""


def _read_recovery(reader: TaskReader, node: YamlNode | None) -> tuple[int, tuple[int, ...]]:
    """A strategy alone is about regions of clouds; the limit on restarts is for everyone."""
    if node is None:
        return 0, ()
    if isinstance(node, yaml.ScalarNode):
        if node.value.lower() != "none":
            reader.notes.append("resources.job_recovery: the strategy is not used by Batuta")
        return 0, ()
    values = reader.section(node, "resources.job_recovery", _RECOVERY, ("strategy",))
    restarts = 0
    if "max_restarts_on_errors" in values:
        restarts = reader.whole(values["max_restarts_on_errors"], _RECOVERY[0], 0, MOST_RESTARTS) or 0
    codes = values.get("recover_on_exit_codes")
    items = (
        [codes]
        if isinstance(codes, yaml.ScalarNode)
        else reader.sequence(codes, _RECOVERY[1])
        if codes
        else []
    )
    found = {reader.whole(item, "an exit code", 0, 255) for item in items[:256]}
    return restarts, tuple(sorted(code for code in found if code is not None))
