"""What is to be run: a SkyPilot task file as it is, with `elastic:`, `gpu:` and `trial:` beside.

`docs/reference/task-file.md` has all keys. Keys that only steer a cloud (`infra`, `region`, `use_spot` …) are
accepted, not used, and noted; keys that would change how the task runs and are not supported are problems
(`skypilot_keys`), as is everything else that is not understood. All problems come at once. JSON is read as well.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from batuta.spec import skypilot_keys, task_elastic, task_resources
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import Amount, shown
from batuta.spec.skypilot_keys import ContainerSupport
from batuta.spec.task_env import Overrides, read_variables
from batuta.spec.task_paths import Mount, PathRules, is_relative_target, read_mounts, read_workdir
from batuta.spec.task_resources import ReplicaResources, Resources
from batuta.spec.yaml_reader import TaskReader, YamlNode, scalar_at

LONGEST = 128
NAME_FIX = f"letters and digits of any script, dots, dashes and underscores, at most {LONGEST}"
_DIGEST = 8
_BETWEEN = frozenset("._-")
_KEYS = (
    *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts"),
    *("setup", "run", "config", "experimental", "api_server_access", "elastic", "gpu", "trial"),
)
_NO_OVERRIDES = Overrides()


def parse_name(text: str) -> str | None:
    """The name in Unicode's form NFC, so that it is found however it is typed; None for what is no name."""
    name = unicodedata.normalize("NFC", text)
    if not 1 <= len(name) <= LONGEST or not name[0].isalnum() or name[-1] in _BETWEEN:
        return None
    # Letters, digits, and the marks that many scripts write between and behind them.
    words = (letter for letter in name if letter not in _BETWEEN and not letter.isalnum())
    return name if all(unicodedata.category(letter).startswith("M") for letter in words) else None


def host_name(name: str, longest: int) -> str:
    """Return a DNS label for a name: the name itself if it is one, else with a digest."""
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if plain and not plain[0].isalpha():
        plain = f"job-{plain}"
    if not name.isascii():
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
        plain = (plain or "job")[: longest - _DIGEST - 1].rstrip("-") + f"-{digest}"
    return plain[:longest].rstrip("-")


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be run, and on what. Counts of nodes are replicas: a replica is one node's worth of GPUs."""

    name: str = ""
    workdir: str = ""
    num_nodes: int = 1
    auto_nodes: bool = False
    """The count is to be chosen, among the sizes of `elastic`; `num_nodes` is the smallest of them."""
    needs: ReplicaResources = task_resources.NO_RESOURCES
    any_of: tuple[ReplicaResources, ...] = ()  # candidates, each complete; empty: `needs` is the only one
    labels: tuple[tuple[str, str], ...] = ()
    image_id: str = ""  # `docker:IMAGE`, the container that it runs in; empty: it runs on the node itself
    ports: tuple[tuple[int, int], ...] = ()  # what its processes listen at, as first and last ports of ranges
    priority: int = 0
    queue: str = ""  # empty: the default queue
    priority_class: str = ""  # stands in for a priority of 0 when the task is submitted
    max_exec_time_s: float | None = None
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    file_mounts: tuple[Mount, ...] = ()
    setup: str = ""
    run: str = ""
    elastic: task_elastic.Elastic = task_elastic.RIGID
    gpu: task_elastic.GpuRequest = task_elastic.NO_GPU_REQUEST
    trial: task_elastic.TrialSpec = task_elastic.NO_TRIAL
    notes: tuple[str, ...] = ()  # what was accepted and is not used, as sentences

    @property
    def choices(self) -> tuple[ReplicaResources, ...]:
        """The alternative resources of a node, in order of preference."""
        return self.any_of or (self.needs,)

    @property
    def accelerators(self) -> tuple[task_resources.Accelerator, ...]:
        """All alternatives, in order of preference."""
        return tuple(dict.fromkeys(one for needs in self.choices for one in needs.accelerators))

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the first alternative; 0 when the task names none."""
        found = self.accelerators
        return found[0].gpus if found else int(self.gpu.is_share)

    @property
    def pids_limit(self) -> int | None:
        """How many processes and threads each node may have at most; None: as the server has it."""
        text = dict(self.labels).get(task_resources.PIDS_LIMIT_LABEL)
        return None if text is None else task_resources.parse_pids_limit(text)

    @property
    def cpus(self) -> Amount | None:
        return self.choices[0].cpus

    @property
    def memory_gib(self) -> Amount | None:
        return self.choices[0].memory_gib

    @property
    def mentions_sky_workdir(self) -> bool:
        """Whether it counts on `~/sky_workdir`, where SkyPilot has the working directory."""
        texts = (self.setup, self.run, *(value for _, value in self.envs), *(m.target for m in self.file_mounts))
        return any("sky_workdir" in text for text in texts)


def parse_task(
    text: str,
    file: str = "task.yaml",
    overrides: Overrides = _NO_OVERRIDES,
    paths: PathRules | None = None,
    *,
    check_paths: bool = True,
    images: Callable[[], ContainerSupport] | None = None,
) -> Task:
    """The task in a YAML or JSON text. Raises InputError with every problem and its place.

    Without `paths`, relative ones start at the folder of `file` and everything readable is allowed. `images`
    is asked whether a task with an image can be run; without it, any can.
    """
    rules = paths or PathRules(Path(file).absolute().parent, Path.home())
    if not check_paths:
        rules = replace(rules, probe=None)
    reader = TaskReader(file)
    root = reader.compose_task(text)
    task = _read(reader, root, overrides, rules, images) if root is not None else Task()
    if reader.problems:
        raise InputError(sorted(reader.problems, key=lambda problem: (problem.line, problem.column)))
    return replace(task, notes=tuple(dict.fromkeys(reader.notes)))


def _refuse_object(root: YamlNode, file: str) -> None:
    """Raise InputError for an object of Kubernetes: one sentence says more than each of its keys."""
    version, kind = scalar_at(root, "apiVersion"), scalar_at(root, "kind")
    if version is None or kind is None:
        return
    if (version.partition("/")[0], kind) == ("batuta.dev", "UnifiedJob"):
        message = f"a UnifiedJob ({shown(version)}) is for a cluster"
        raise InputError.of(message, file=file, fix="batuta --context NAME launch FILE, or kubectl apply -f FILE")
    raise InputError.of(
        f"this is an object of Kubernetes ({shown(kind)} of {shown(version)}) and no task; such files, "
        "of Voda or Alnair too, are not read",
        file=file,
        fix="write a task file, or a UnifiedJob of batuta.dev for a cluster",
    )


def _read(
    reader: TaskReader,
    root: YamlNode,
    overrides: Overrides,
    rules: PathRules,
    images: Callable[[], ContainerSupport] | None,
) -> Task:
    _refuse_object(root, reader.file)
    values = reader.section(root, "a task", _KEYS, skypilot_keys.IGNORED_KEYS, skypilot_keys.UNSUPPORTED_KEYS)
    queues = [skypilot_keys.read_config(reader, values.get(key), key) for key in ("config", "experimental")]
    skypilot_keys.read_api_access(reader, values.get("api_server_access"))
    envs, secrets = read_variables(reader, values.get("envs"), values.get("secrets"), overrides)
    resources = task_resources.read_resources(reader, values.get("resources"), images)
    if overrides.gpus is not None:
        resources = task_resources.override_gpus(reader, resources, overrides.gpus)
    nodes, auto, elastic = task_elastic.read_elastic(reader, values.get("elastic"), values.get("num_nodes"), overrides)
    priority, priority_class = _priority(reader, resources, overrides.priority)
    task = Task(
        name=_read_name(reader, values.get("name"), overrides.name),
        workdir=read_workdir(reader, values.get("workdir"), overrides.workdir, rules, envs),
        num_nodes=nodes,
        auto_nodes=auto,
        **resources.task_fields(),
        priority=priority,
        queue=_queue(reader, resources, overrides.queue, next(filter(None, queues), None)),
        priority_class=priority_class,
        envs=tuple(envs.items()),
        secrets=tuple(secrets.items()),
        file_mounts=read_mounts(reader, values.get("file_mounts"), rules, envs),
        setup=reader.script(values.get("setup"), "setup"),
        run=reader.script(values.get("run"), "run"),
        elastic=elastic,
        gpu=task_elastic.read_gpu(reader, values.get("gpu")),
        trial=task_elastic.read_trial(reader, values.get("trial"), overrides.trial),
    )
    no_run = not task.run.strip() and isinstance(values.get("run"), yaml.ScalarNode | None)
    if no_run and task.setup.strip():
        reader.notes.append("there is no run: the job ends after setup")
        task = replace(task, run=":")
    elif no_run and isinstance(root, yaml.MappingNode):
        reader.blame(values.get("run"), "a task needs run: the commands for each node")
    _check_share(reader, values, task, in_local_container=images is not None and bool(task.image_id))
    _check_mounts(reader, values, task, rules)
    if not task.gpus_per_node:
        task = _without_accelerators(reader, values, task, overrides)
    if elastic.keeps_size_until_saved(task.run) and not _says_how_it_saves(values.get("elastic")):
        reader.notes.append(
            "elastic: the job keeps its size until a checkpoint of it is seen (batuta.sdk), because a resize "
            "would lose its work; if a restart loses nothing, say elastic.restartable: true"
        )
    return task


def _says_how_it_saves(elastic: YamlNode | None) -> bool:
    """Whether the file says when the task makes checkpoints: its author knows what they are for."""
    return isinstance(elastic, yaml.MappingNode) and any(
        key.value in ("checkpoint", "checkpoint_interval") for key, _ in elastic.value
    )


def _check_mounts(reader: TaskReader, values: dict[str, YamlNode], task: Task, rules: PathRules) -> None:
    """Mounts outside of the working directory, where a machine cannot give them to one job alone."""
    outside = [mount.target for mount in task.file_mounts if not is_relative_target(mount.target)]
    if rules.no_mounts is None or skypilot_keys.image_of(task.image_id) or not (outside or task.mentions_sky_workdir):
        return
    if why := rules.no_mounts():
        target = outside[0] if outside else "~/sky_workdir"
        message = f"{target} cannot be mounted: this machine gives jobs no private mounts ({why})"
        fix = "a target relative to the workdir, or a server that may make mount namespaces: as root, "
        fix += "or where user namespaces are allowed"
        reader.blame(values.get("file_mounts" if outside else "run"), message, fix)


def _without_accelerators(reader: TaskReader, values: dict[str, YamlNode], task: Task, overrides: Overrides) -> Task:
    """A task without accelerators runs on CPU, at one size; one with several sizes has a GPU on each node.

    A note says which of both, unless the user gave `--gpus 0`.
    """
    elastic = task.elastic
    if elastic.min_nodes == elastic.max_nodes and not task.auto_nodes and not task.trial.wanted:
        if overrides.gpus is None:
            reader.notes.append("no accelerators: runs on CPU; add accelerators: 1 for a GPU")
        return task
    if overrides.gpus is not None:
        place = values.get("elastic", values.get("trial", values.get("num_nodes")))
        fix = "--gpus 1, or one number of nodes and no trial"
        reader.blame(place, "a task without GPUs has one size, so it is neither elastic nor tried out", fix)
        return task
    reader.notes.append("no accelerators, but several sizes: each node has one GPU of any type")
    one = (task_resources.Accelerator(task_resources.ANY_GPU, 1),)
    any_of = tuple(replace(needs, accelerators=one) for needs in task.any_of)
    return replace(task, needs=replace(task.needs, accelerators=one), any_of=any_of)


def _check_share(reader: TaskReader, values: dict[str, YamlNode], task: Task, *, in_local_container: bool) -> None:
    """A share is of one GPU, for a job of one replica."""
    if not (task.gpu.is_share or any(one.is_share for one in task.accelerators)):
        return
    place = values["gpu"] if task.gpu.is_share else values.get("resources")
    if in_local_container:
        message = "a share of a GPU is not enforced inside a container of this machine"
        reader.blame(place, message, "ask for a whole GPU, or remove image_id")
    if any(one.count > 1 for one in task.accelerators):
        message = "a share is of one GPU, but accelerators asks for more"
        reader.blame(place, message, "ask for one GPU, or drop the share")
    if (task.num_nodes, task.elastic.max_nodes, task.auto_nodes) != (1, 1, False):
        reader.blame(place, "a task with a share of a GPU has one node", "num_nodes: 1, and no elastic sizes")
    if task.trial.wanted:
        reader.blame(values.get("trial"), "a share of a GPU is not tried out: it has one size", "trial: false")


def _read_name(reader: TaskReader, node: YamlNode | None, given: str | None) -> str:
    written = reader.text(node, "name") or ""
    if given is None and not written:
        return ""
    name = parse_name(written if given is None else given)
    if name is None and given is not None:
        reader.problems.append(Problem(f"--name: {shown(given)} is not a name", fix=NAME_FIX))
    elif name is None and node is not None:
        reader.fault(node, f"name cannot be {shown(written)}", NAME_FIX)
    return name or ""


def _priority(reader: TaskReader, resources: Resources, given: int | str | None) -> tuple[int, str]:
    """The number, and the name of a class. What the command line says stands in for both."""
    if given is None:
        return resources.priority, resources.priority_class or resources.label(task_resources.CLASS_LABEL)
    found = reader.option("--priority", str(given), task_resources.parse_priority)
    return (found, "") if isinstance(found, int) else (0, found or "")


def _queue(reader: TaskReader, resources: Resources, given: str | None, of_config: YamlNode | None) -> str:
    """Return the queue: that of the command line, else of the label, else of SkyPilot's configuration."""
    configured = reader.parsed(of_config, "config: queue", task_resources.parse_queue) or ""
    if given is None:
        return resources.label(task_resources.QUEUE_LABEL) or configured
    return reader.option("--queue:", given, task_resources.parse_queue) or ""
