"""Writes a task as one line of JSON for the journal, and as the task file that reads as the same task."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from batuta.core.job import Spread
from batuta.spec.problem import InputError, Problem
from batuta.spec.quantity import Amount
from batuta.spec.skypilot_keys import ContainerSupport
from batuta.spec.task import Task, parse_task
from batuta.spec.task_elastic import GRACE_S, NO_GPU_REQUEST, NO_TRIAL, Elastic, GpuRequest, TrialSpec
from batuta.spec.task_env import Overrides
from batuta.spec.task_paths import PathRules
from batuta.spec.task_resources import CLASS_LABEL, QUEUE_LABEL, ReplicaResources

if TYPE_CHECKING:
    from pydantic import TypeAdapter


_NO_OVERRIDES = Overrides()
_UNCHECKED = PathRules(None, None, probe=None)
SCHEMA = 1  # goes up when a key is renamed, removed or changes its meaning; a new key with a default needs none


def task_with_overrides(
    task: Task, overrides: Overrides, rules: PathRules, of: str, images: Callable[[], ContainerSupport] | None = None
) -> Task:
    """A stored task with what a command line says over it. Raises InputError if it cannot run any more.

    `of` names the job that it comes from. What the overrides do not touch stays exactly as it is stored.
    """
    text = json.dumps(task_to_mapping(task), ensure_ascii=False)
    before = parse_task(text, of, _NO_OVERRIDES, _UNCHECKED)
    try:
        after = parse_task(text, of, overrides, rules, images=images)
    except InputError as error:
        # The text was generated: its lines and columns mean nothing to the user.
        found = [Problem(one.message, file=f"the task of {of}", fix=one.fix) for one in error.problems]
        raise InputError(found) from None
    changed = {
        one.name: value for one in fields(Task) if (value := getattr(after, one.name)) != getattr(before, one.name)
    }
    return replace(task, **changed)


def task_to_yaml(task: Task, *, with_envs: bool = True) -> str:
    """The task file as YAML, for people: without the values of its secrets, and of its envs if so asked."""
    plain = task_to_mapping(task, with_secrets=False)
    if not with_envs and task.envs:
        plain["envs"] = dict.fromkeys(dict(task.envs))
    return yaml.dump(plain, Dumper=ReadableDumper, sort_keys=False, allow_unicode=True, width=100)


class ReadableDumper(yaml.SafeDumper):
    """Writes a text of several lines as such, and what is used twice both times, without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


ReadableDumper.add_representer(str, _represent_text)


def task_to_mapping(task: Task, *, with_secrets: bool = True) -> dict[str, Any]:
    """The mapping of a task file that reads as this task; paths are absolute.

    Without secrets their values are null, which a submit asks for.
    """
    secrets = {name: value if with_secrets else None for name, value in task.secrets}
    return _said(
        name=task.name,
        workdir=task.workdir,
        num_nodes="auto" if task.auto_nodes else task.num_nodes,
        resources=_resources(task),
        envs=dict(task.envs),
        secrets=secrets,
        file_mounts={mount.target: mount.source for mount in task.file_mounts},
        setup=task.setup,
        run=task.run,
        elastic=_elastic(task.elastic, task),
        gpu=_gpu(task.gpu),
        trial=_trial(task.trial),
    )


def _said(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "", (), {}, [])}


def _resources(task: Task) -> dict[str, Any]:
    # What a command line said over the labels is in the task's own fields.
    labels = {name: value for name, value in task.labels if name not in (QUEUE_LABEL, CLASS_LABEL)}
    if task.queue:
        labels[QUEUE_LABEL] = task.queue
    restarts, codes = task.max_restarts_on_errors or None, list(task.recover_on_exit_codes)
    recovery = _said(max_restarts_on_errors=restarts, recover_on_exit_codes=codes)
    return {
        **_needs(task.needs),
        **_said(
            any_of=[_needs(one) for one in task.any_of],
            labels=labels,
            image_id=task.image_id,
            ports=[str(low) if low == high else f"{low}-{high}" for low, high in task.ports],
            priority=task.priority or task.priority_class,
            job_recovery=recovery,
        ),
    }


def _needs(needs: ReplicaResources) -> dict[str, Any]:
    kinds = [f"{one.type}:{_number(one.count)}" if one.type else _number(one.count) for one in needs.accelerators]
    return _said(
        accelerators=kinds[0] if len(kinds) == 1 else kinds, cpus=_amount(needs.cpus), memory=_amount(needs.memory_gib)
    )


def _elastic(elastic: Elastic, task: Task) -> dict[str, Any]:
    rigid = Elastic(task.num_nodes, task.num_nodes)
    if elastic == rigid and not task.auto_nodes:
        return {}
    is_range = task.auto_nodes or (elastic.min_nodes, elastic.max_nodes) != (task.num_nodes, task.num_nodes)
    with_range = is_range and elastic.sizes is None
    return _said(
        min_nodes=elastic.min_nodes if with_range else None,
        max_nodes=elastic.max_nodes if with_range else None,
        sizes=list(elastic.sizes or ()),
        step=elastic.step if elastic.step > 1 else None,
        checkpoint=elastic.checkpoint.value,
        checkpoint_interval=_duration(elastic.checkpoint_interval_s),
        grace=None if elastic.grace_s == GRACE_S else _duration(elastic.grace_s),
        kind=None if elastic.kind is None else elastic.kind.value,
        restartable=elastic.restartable or None,
    )


def _gpu(gpu: GpuRequest) -> dict[str, Any]:
    if gpu == NO_GPU_REQUEST:
        return {}
    place = gpu.topology
    within = None
    if place.within is not Spread.ANY:
        within = f"{'require' if place.required else 'prefer'}-{place.within.name.lower()}"
    return _said(
        memory=f"{gpu.memory_mib}MiB" if gpu.memory_mib else None,
        compute=f"{gpu.compute_percent}%" if gpu.compute_percent else None,
        limit="soft" if gpu.soft else None,
        topology=within,
        numa="single" if place.single_numa else None,
    )


def _trial(trial: TrialSpec) -> dict[str, Any] | bool | None:
    if trial == NO_TRIAL:
        return None
    said = _said(sizes=list(trial.sizes), budget=_duration(trial.budget_s), each=_duration(trial.each_s))
    if trial.priority is not None:
        said["priority"] = trial.priority
    return said or trial.wanted


def _amount(amount: Amount | None) -> str | None:
    return None if amount is None else _number(amount.value) + ("+" if amount.or_more else "")


def _number(value: float) -> str:
    return f"{value:.9f}".rstrip("0").rstrip(".")


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else f"{_number(seconds)}s"


def task_to_json(task: Task) -> str:
    """Return the task with its secrets in clear text. For display use `task_to_yaml`."""
    return f'{{"schema":{SCHEMA},"task":{_adapter().dump_json(task).decode()}}}'


def task_from_json(text: str) -> Task:
    """What `task_to_json` was given. Raises InputError for everything else."""
    from pydantic import ValidationError  # noqa: PLC0415 - takes a tenth of a second, which few commands need

    try:
        stored = json.loads(text)
        schema = stored.get("schema") if isinstance(stored, dict) else None
        inner = json.dumps(stored["task"]) if schema == SCHEMA else ""
    except (ValueError, KeyError, RecursionError):
        raise InputError.of("is not a stored task") from None
    if schema != SCHEMA or isinstance(schema, bool):
        message = f"is not a stored task, or one of another schema: {str(schema)[:40]}"
        raise InputError.of(message, fix=f"this Batuta reads schema {SCHEMA}")
    try:
        return _adapter().validate_json(inner, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise InputError([Problem(f"{'.'.join(map(str, one['loc']))}: {one['msg']}") for one in found]) from None


@cache
def _adapter() -> TypeAdapter[Task]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    return TypeAdapter(Task)
