"""What is to be run: a SkyPilot task file as it is, with `elastic:` and `gpu:` beside.

    name: resnet                     # default: the job's id
    workdir: .                       # a local folder; relative to the task file
    num_nodes: 4                     # default 1, or elastic.min_nodes; auto: chosen by what is known
    resources:
      accelerators: H100:8           # per node; H100 (one), {H100: 8}, [H100:8, A100:8], H100:0.5, 8 (any)
      cpus: 16+                      # per node; 16 and 16+ are placed alike
      memory: 64+                    # per node, in GiB unless it has a unit (64GB, 512MB: powers of 1024)
      priority: 100                  # -1000..1000, or the name of a WorkloadPriorityClass
      labels: {kueue.x-k8s.io/queue-name: team-a}
      any_of: [{accelerators: H100:8}, {accelerators: A100:8}]
      job_recovery: {max_restarts_on_errors: 3, recover_on_exit_codes: [33]}
    envs: {MODEL: 13b, TOKEN: null}  # taken as written; a null one has to be given with --env
    secrets: {HF_TOKEN: null}        # the same, but never shown
    file_mounts: {/data: ~/data}     # local paths; $NAME from envs is filled in, as in workdir
    setup: pip install -r requirements.txt
    run: torchrun train.py
    elastic: {min_nodes: 1, max_nodes: 8, sizes: [1, 2, 4, 8], checkpoint: on-signal, grace: 60s, kind: auto}
    gpu: {memory: 8GiB, compute: 50%, topology: prefer-node, numa: single}
    trial: true                      # run it at several sizes first; {sizes: [1, 2, 4], budget: 5m}

Keys about clouds (`infra`, `region`, `use_spot`, `disk_size` …) are accepted, not used, and noted. Everything
else that is not understood is a problem, and all problems come at once. JSON is read as well.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from batuta.spec.accelerator import Accelerator
from batuta.spec.overrides import Overrides
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import Amount, shown
from batuta.spec.task_elastic import NO_WISHES, RIGID, Elastic, GpuWishes, read_elastic, read_gpu
from batuta.spec.task_env import read_variables
from batuta.spec.task_paths import Mount, PathRules, check_workdir, read_mounts, read_workdir
from batuta.spec.task_priority import CLASS_LABEL, parse_priority
from batuta.spec.task_resources import (
    EXEC_TIME_LABEL,
    NO_NEEDS,
    QUEUE_LABEL,
    Needs,
    Resources,
    override_gpus,
    parse_queue,
    read_resources,
)
from batuta.spec.task_trial import NO_TRIAL, TrialWishes, read_trial
from batuta.spec.task_yaml import LARGEST_BYTES, TaskReader
from batuta.spec.text_file import read_text
from batuta.spec.yaml_nodes import YamlNode

_KEYS = (
    *("name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts"),
    *("setup", "run", "elastic", "gpu", "trial"),
)
_UNUSED = (
    *(
        "config",
        "experimental",
        "volumes",
        "event_callback",
        "inputs",
        "outputs",
        "api_server_access",
        "pool",
    ),
    *("file_mounts_mapping", "service"),
)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_NAME_FIX = "letters, digits, dots, dashes and underscores, at most 128"
_NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be run, and on what. Counts of nodes are replicas: a replica is one node's worth of GPUs."""

    name: str = ""
    workdir: str = ""
    num_nodes: int = 1
    auto_nodes: bool = False
    """The count is to be chosen, among the sizes of `elastic`; `num_nodes` is the smallest of them."""
    needs: Needs = NO_NEEDS
    any_of: tuple[Needs, ...] = ()
    """Candidates, each complete; empty: `needs` is the only one."""
    labels: tuple[tuple[str, str], ...] = ()
    image_id: str = ""
    priority: int = 0
    queue: str = ""
    """Empty: the default queue."""
    priority_class: str = ""
    """Stands in for a priority of 0 when the task is submitted."""
    max_exec_time_s: float | None = None
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()
    envs: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    file_mounts: tuple[Mount, ...] = ()
    setup: str = ""
    run: str = ""
    elastic: Elastic = RIGID
    gpu: GpuWishes = NO_WISHES
    trial: TrialWishes = NO_TRIAL
    notes: tuple[str, ...] = ()
    """What was accepted and is not used, as sentences."""

    @property
    def choices(self) -> tuple[Needs, ...]:
        """What a node may look like, the best liked first."""
        return self.any_of or (self.needs,)

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """All alternatives, the best liked first."""
        return tuple(dict.fromkeys(one for needs in self.choices for one in needs.accelerators))

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the best liked alternative; 0 when the task names none."""
        found = self.accelerators
        return found[0].gpus if found else int(self.gpu.is_share)

    @property
    def cpus(self) -> Amount | None:
        return self.choices[0].cpus

    @property
    def memory_gib(self) -> Amount | None:
        return self.choices[0].memory_gib

    def without_secrets(self) -> Task:
        """The same for eyes: the names of secrets stay, their values do not."""
        return replace(self, secrets=tuple((name, "<hidden>") for name, _ in self.secrets))


def parse_task(
    text: str,
    file: str = "task.yaml",
    overrides: Overrides = _NO_OVERRIDES,
    paths: PathRules | None = None,
    *,
    check_paths: bool = True,
) -> Task:
    """The task in a YAML or JSON text. Raises InputError with every problem and its place.

    Without `paths`, relative ones start at the folder of `file` and everything readable is allowed.
    """
    rules = paths or PathRules(Path(file).absolute().parent, Path.home())
    if not check_paths:
        rules = replace(rules, probe=None)
    reader = TaskReader(file)
    root = reader.compose_task(text)
    task = _read(reader, root, overrides, rules) if root is not None else Task()
    if reader.problems:
        raise InputError(sorted(reader.problems, key=lambda problem: (problem.line, problem.column)))
    return replace(task, notes=tuple(dict.fromkeys(reader.notes)))


def read_task(
    path: Path,
    overrides: Overrides = _NO_OVERRIDES,
    paths: PathRules | None = None,
    *,
    check_paths: bool = True,
) -> Task:
    """The task in a file."""
    try:
        too_large = path.stat().st_size > LARGEST_BYTES
    except OSError:
        too_large = False  # read_text says it better
    if too_large:
        raise InputError.of(
            f"is larger than {LARGEST_BYTES >> 20} MiB", file=str(path), fix="a task file is small"
        )
    return parse_task(read_text(path), str(path), overrides, paths, check_paths=check_paths)


def task_of_command(
    command: Sequence[str], overrides: Overrides = _NO_OVERRIDES, paths: PathRules | None = None
) -> Task:
    """The task of `batuta launch -- COMMAND…`. One word is a line for the shell, several are arguments."""
    line = command[0] if len(command) == 1 else shlex.join(command)
    rules = paths or PathRules(Path.cwd(), Path.home())
    return parse_task(json.dumps({"run": line}, ensure_ascii=False), "command", overrides, rules)


def _read(reader: TaskReader, root: YamlNode, overrides: Overrides, rules: PathRules) -> Task:
    values = reader.section(root, "a task", _KEYS, _UNUSED)
    variables = read_variables(
        reader, values.get("envs"), values.get("secrets"), overrides.env, overrides.secret
    )
    if overrides.workdir is None:
        workdir = read_workdir(reader, values.get("workdir"), rules, variables.envs)
    else:
        workdir = check_workdir(reader, overrides.workdir, rules, variables.envs)
    resources = read_resources(reader, values.get("resources"))
    if overrides.gpus is not None:
        resources = override_gpus(reader, resources, overrides.gpus)
    size, elastic = read_elastic(reader, values.get("elastic"), values.get("num_nodes"), overrides)
    gpu = read_gpu(reader, values.get("gpu"))
    exec_time = resources.label(EXEC_TIME_LABEL)
    priority, priority_class = _priority(reader, resources, overrides.priority)
    task = Task(
        name=_read_name(reader, values.get("name"), overrides.name),
        workdir=workdir,
        num_nodes=size.nodes,
        auto_nodes=size.auto,
        needs=resources.needs,
        any_of=resources.any_of,
        labels=resources.labels,
        image_id=resources.image_id,
        priority=priority,
        queue=_queue(reader, resources, overrides.queue),
        priority_class=priority_class,
        max_exec_time_s=float(exec_time) if exec_time else None,
        max_restarts_on_errors=resources.max_restarts_on_errors,
        recover_on_exit_codes=resources.recover_on_exit_codes,
        envs=tuple(variables.envs.items()),
        secrets=tuple(variables.secrets.items()),
        file_mounts=read_mounts(reader, values.get("file_mounts"), rules, variables.envs),
        setup=reader.script(values["setup"], "setup") if "setup" in values else "",
        run=reader.script(values["run"], "run") if "run" in values else "",
        elastic=elastic,
        gpu=gpu,
        trial=read_trial(reader, values.get("trial"), overrides.trial),
    )
    no_run = not task.run.strip() and isinstance(values.get("run"), yaml.ScalarNode | None)
    if no_run and isinstance(root, yaml.MappingNode):
        reader.blame(values.get("run"), "a task needs run: the commands for each node")
    _check_share(reader, values, task)
    if not task.gpus_per_node:
        reader.notes.append("no accelerators are asked for: each node counts as one GPU of any type")
    return task


def _check_share(reader: TaskReader, values: dict[str, YamlNode], task: Task) -> None:
    """A share is of one GPU, for a job of one replica."""
    shares = task.gpu.is_share or any(one.is_share for one in task.accelerators)
    if not shares:
        return
    place = values["gpu"] if task.gpu.is_share else values.get("resources")
    if any(one.count > 1 for one in task.accelerators):
        reader.blame(
            place,
            "a share is of one GPU, but accelerators asks for more",
            "ask for one GPU, or drop the share",
        )
    if (task.num_nodes, task.elastic.max_nodes, task.auto_nodes) != (1, 1, False):
        reader.blame(place, "a task with a share of a GPU has one node", "num_nodes: 1, and no elastic sizes")
    if task.trial.wanted:
        reader.blame(
            values.get("trial"), "a share of a GPU is not tried out: it has one size", "trial: false"
        )


def _read_name(reader: TaskReader, node: YamlNode | None, given: str | None) -> str:
    written = (reader.text(node, "name") or "") if node is not None else ""
    if given is not None and not _NAME.fullmatch(given):
        reader.problems.append(Problem(f"--name: {shown(given)} is not a name", fix=_NAME_FIX))
    elif given is None and node is not None and written and not _NAME.fullmatch(written):
        reader.fault(node, f"name cannot be {shown(written)}", _NAME_FIX)
    return written if given is None else given


def _priority(reader: TaskReader, resources: Resources, given: int | str | None) -> tuple[int, str]:
    """The number, and the name of a class. What the command line says stands in for both."""
    if given is None:
        return resources.priority, resources.priority_class or resources.label(CLASS_LABEL)
    try:
        found = parse_priority(str(given))
    except InputError as error:
        reader.problems += [Problem(f"--priority {problem.message}") for problem in error.problems]
        return 0, ""
    return (found, "") if isinstance(found, int) else (0, found)


def _queue(reader: TaskReader, resources: Resources, given: str | None) -> str:
    if given is None:
        return resources.label(QUEUE_LABEL)
    try:
        return parse_queue(given)
    except InputError as error:
        reader.problems += [
            Problem(f"--queue: {problem.message}", fix=problem.fix) for problem in error.problems
        ]
        return ""
