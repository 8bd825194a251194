"""The keys of SkyPilot's task file that Batuta does not carry out: noted or refused, never ignored.

A key by which a cloud's machine is chosen changes nothing here; it is accepted with a note, so that files can
be tried as they are. A key that changes how the task runs is refused with the way out: a task that ran
without it would be another task. `docs/reference/task-file.md` has the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml

from batuta.spec.yaml_reader import TaskReader, YamlNode, is_empty, is_null

_NO_VOLUMES: Final = (
    "Batuta mounts no network volumes",
    "file_mounts with a local path; on Kubernetes a UnifiedJob with a volume",
)
_NO_HOOKS: Final = ("Batuta calls no script when a node stops", "do it at the end of run, or on SIGTERM")
_POD: Final = "remove it; on Kubernetes write a UnifiedJob, which has the whole pod"
_BESIDE: Final = "write it once, beside any_of or ordered"

IGNORED_KEYS: Final = ("inputs", "outputs", "file_mounts_mapping", "_metadata")
"""Keys of a task that are estimates for SkyPilot's optimizer, or its own."""

UNSUPPORTED_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "service": (
        "Batuta does not serve: it has no load balancer, no readiness probes and no scaling by traffic",
        "remove service to run the server as a job, whose endpoints batuta shows; or sky serve up",
    ),
    "pool": ("Batuta has no pools of workers", "remove pool; a job queue is what `batuta launch` uses anyway"),
    "volumes": _NO_VOLUMES,
    "volume_mounts": _NO_VOLUMES,
    "managed_secrets": ("Batuta has no store of secrets", "secrets: {NAME: null}, and the value with --secret NAME"),
    "event_callback": ("Batuta calls no script at events", "batuta events --follow, or logs --status"),
}
"""Keys of a task that would change how it runs: why they are not carried out, and the way out."""

CLOUD_KEYS: Final = (
    *("infra", "cloud", "region", "zone", "use_spot", "spot_recovery", "instance_type", "accelerator_args"),
    *("disk_size", "disk_tier", "ephemeral_storage", "local_disk", "max_hourly_cost"),
)
"""Keys of `resources` by which a cloud's machine is chosen."""

UNSUPPORTED_RESOURCE_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "volumes": _NO_VOLUMES,
    "container_image": ("it is not a key of SkyPilot's", "image_id: docker:IMAGE"),
    "hooks": _NO_HOOKS,
}

UNSUPPORTED_CANDIDATE_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    **UNSUPPORTED_RESOURCE_KEYS,
    **dict.fromkeys(
        ("labels", "image_id", "priority", "priority_class", "job_recovery", "ports", "network_tier"),
        ("the candidates are alternatives for one job, which has it once", _BESIDE),
    ),
    **dict.fromkeys(("any_of", "ordered"), ("a candidate has no candidates", "list them all once")),
}
"""Keys of a candidate in `any_of` or `ordered`: what is not about its hardware stands outside."""

_CONFIG_REFUSED: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("docker", "run_options"): (
        "Batuta sets the options of the container itself",
        "remove it; file_mounts, envs and resources say what a container gets",
    ),
    **{
        (of, name): ("Batuta makes the pod itself", _POD)
        for of in ("kubernetes", "ssh")
        for name in (*("pod_config", "custom_metadata", "post_provision_runcmd", "auto_mounts"), "enable_docker")
    },
    ("kubernetes", "allowed_nodes"): (
        "Batuta chooses the nodes by what the task needs",
        "name the accelerator instead; on Kubernetes write a UnifiedJob with a nodeSelector",
    ),
    ("hooks", ""): _NO_HOOKS,
}
_CONFIG_QUEUES: Final = (("quota", "queue"), ("kueue", "local_queue_name"))
"""Where `config.kubernetes` names the local queue of a task; the first one takes precedence."""


def read_config(reader: TaskReader, node: YamlNode | None, what: str) -> YamlNode | None:
    """Read SkyPilot's configuration for this task, and return the queue that it names.

    What steers a cloud is noted. What would change how the task runs is refused.
    """
    if node is None or is_empty(node):
        return None
    values = reader.mapping(node, what) or {}
    if what == "experimental" and "config_overrides" in values:
        return read_config(reader, values["config_overrides"], "experimental.config_overrides")
    queue: YamlNode | None = None
    for key, value in values.items():
        inside = reader.mapping(value, f"{what}.{key}") or {} if isinstance(value, yaml.MappingNode) else {}
        if key == "kubernetes":
            queue = _take_queue(reader, inside, what)
            if queue is not None and not inside:
                continue
        found = {name: inside.get(name) if name else value for of, name in _CONFIG_REFUSED if of == key}
        refused = {name: one for name, one in found.items() if one is not None and not is_empty(one)}
        for name, one in refused.items():
            why, fix = _CONFIG_REFUSED[key, name]
            reader.fault(one, f"{what}.{key}{'.' if name else ''}{name}: {why}", fix)
        for name in (name for name in inside if name not in refused):
            reader.notes.append(f"{what}.{key}.{name} is not used by Batuta")
        if not inside and not refused:
            reader.notes.append(f"{what}.{key} is not used by Batuta")
    return queue


def _take_queue(reader: TaskReader, kubernetes: dict[str, YamlNode], what: str) -> YamlNode | None:
    """Take the queue's name out of `config.kubernetes`; what else stands beside it there is noted."""
    found: YamlNode | None = None
    for section, key in _CONFIG_QUEUES:
        node = kubernetes.get(section)
        if not isinstance(node, yaml.MappingNode):
            continue
        values = reader.mapping(node, f"{what}.kubernetes.{section}") or {}
        if is_null(values.get(key)):
            continue
        found = values.pop(key) if found is None else found
        del kubernetes[section]
        reader.notes += [f"{what}.kubernetes.{section}.{name} is not used by Batuta" for name in values if name != key]
    return found


def read_api_access(reader: TaskReader, node: YamlNode | None) -> None:
    """Whether the task may call SkyPilot's API server, which there is none of."""
    if node is not None and str(node.value).lower() not in ("false", "no", "off"):
        reader.fault(node, "api_server_access: there is no API server of SkyPilot's", "remove it")


def read_network_tier(reader: TaskReader, node: YamlNode | None) -> None:
    """`standard` is what there is. `best` would set up InfiniBand or GPUDirect."""
    if node is None:
        return
    if str(node.value).lower() == "standard":
        reader.notes.append("resources.network_tier is not used by Batuta")
    else:
        message = "resources.network_tier: Batuta sets up neither InfiniBand nor GPUDirect"
        fix = "remove it; NCCL uses what the node has. On Kubernetes a UnifiedJob may ask for the device"
        reader.fault(node, message, fix)


def read_autostop(reader: TaskReader, node: YamlNode | None) -> None:
    """A job's GPUs are free when it ends, so there is nothing to stop; a hook would be a script to call."""
    if node is None:
        return
    hook = (reader.mapping(node, "autostop") or {}).get("hook") if isinstance(node, yaml.MappingNode) else None
    if hook is not None:
        message = "resources.autostop.hook: Batuta calls no script when a node stops"
        reader.fault(hook, message, "do it at the end of run")
    else:
        reader.notes.append("resources.autostop is not used by Batuta: a job's GPUs are free when it ends")


@dataclass(frozen=True, slots=True)
class ContainerSupport:
    """Whether the server can run tasks in containers."""

    refusal: str = ""  # why it cannot; empty when it can
    fix: str = ""
    notes: tuple[str, ...] = ()  # what the user should know about containers here


def image_of(image_id: str) -> str:
    """The container image that an `image_id` names; empty when it names none (a cloud's machine image)."""
    image = image_id.removeprefix("docker:")
    if image == image_id or not image or "://" in image or image.startswith("-"):
        return ""
    return "" if any(letter.isspace() for letter in image) else image


def read_image(reader: TaskReader, node: YamlNode | None, images: Callable[[], ContainerSupport] | None = None) -> str:
    """`docker:IMAGE`. An image of a cloud's virtual machines, or one for each region, is refused.

    So is any where `images` says that there are no containers.
    """
    if node is None:
        return ""
    fix = "docker:IMAGE runs in a container; without image_id the task runs on the node itself"
    if isinstance(node, yaml.MappingNode):
        reader.fault(node, "image_id by region: Batuta has no regions", fix)
        return ""
    text = reader.text(node, "image_id") or ""
    if text and not image_of(text):
        reader.fault(node, f"image_id {text[:80]!r} is not a container image", fix)
    elif text and images is not None:
        rules = images()
        if rules.refusal:
            reader.fault(node, f"image_id {text[:80]!r}: {rules.refusal}", rules.fix)
        reader.notes += [f"image_id: {note}" for note in rules.notes]
    return text


def read_ports(reader: TaskReader, node: YamlNode | None) -> tuple[tuple[int, int], ...]:
    """`8080`, `10052-10100`, or a list of such, as first and last ports."""
    found = [_read_port(reader, one) for one in (node.value if isinstance(node, yaml.SequenceNode) else [node])]
    return tuple(dict.fromkeys(one for one in found if one is not None))


def endpoints(host: str, ports: Iterable[Sequence[int]]) -> list[str]:
    """Where ports are reached: `127.0.0.1:8080`, `127.0.0.1:10052-10100`."""
    return [f"{host}:{low}" if low == high else f"{host}:{low}-{high}" for low, high in ports]


def _read_port(reader: TaskReader, node: YamlNode | None) -> tuple[int, int] | None:
    text = reader.text(node, "ports")
    if node is None or text is None:
        return None
    first, _, last = text.partition("-")
    if all(one.isascii() and one.isdigit() and len(one) <= 5 for one in (first, last or first)):
        low, high = int(first), int(last or first)
        if 1 <= low <= high <= 65_535:
            return low, high
    reader.fault(node, f"ports: {text[:60]!r} is not a port or a range", "8080, or 10052-10100, within 1..65535")
    return None
