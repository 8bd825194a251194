"""What people write of a what-if → what would happen; all that is wrong with it at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from batuta.api.asked import Submit
from batuta.api.foresight_models import WhatIfPost
from batuta.backends.sim.foresight.whatif import Hypothesis
from batuta.core import event as ev
from batuta.core.apply import apply
from batuta.core.cluster import Node
from batuta.core.job import Job
from batuta.core.quota import Quota
from batuta.core.world import World
from batuta.spec.cluster import parse_cluster_string
from batuta.spec.kueue.change import merge
from batuta.spec.kueue.files import read_quota_texts
from batuta.spec.overrides import Overrides
from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.task import Task, parse_task
from batuta.spec.task_paths import PathRules

JobOf: TypeAlias = Callable[[World, Task, int], Job]
"""The job that a task becomes, if it could ever run in such a World; the number tells several apart."""
T = TypeVar("T")


@dataclass(slots=True)
class _Reading:
    """Collects problems on the way."""

    problems: list[Problem] = field(default_factory=list)

    def attempt(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except InputError as error:
            self.problems += error.problems
            return None


def read_hypothesis(world: World, asked: WhatIfPost, job_of: JobOf, paths: PathRules) -> Hypothesis:
    """What is asked, as far as it goes with this World. Raises InputError with every problem.

    The World is taken over: the nodes and the quota come true in it, so that tasks which need them fit.
    """
    reading, now_s = _Reading(), world.now_s
    nodes = reading.attempt(lambda: _added(world, asked.add_nodes)) if asked.add_nodes else ()
    quota = reading.attempt(lambda: _merged(world.quota, asked)) if asked.quota else None
    unknown = [name for name in asked.drain if name not in world.nodes.index]
    reading.problems += [
        Problem(f"there is no node {name}", fix=did_you_mean(name, list(world.nodes.index)))
        for name in unknown
    ]
    for node in nodes or ():
        apply(world, ev.NodeAdded(now_s, node))
    if quota is not None:
        apply(world, ev.QuotaSet(now_s, quota))
    jobs = [
        reading.attempt(partial(_job, world, one, number, job_of, paths))
        for number, one in enumerate(asked.submit, start=1)
    ]
    if reading.problems:
        raise InputError(reading.problems)
    made = tuple(job for job in jobs if job is not None)
    return Hypothesis(tuple(nodes or ()), quota, made, tuple(dict.fromkeys(asked.drain)))


def _added(world: World, text: str) -> Sequence[Node]:
    """New nodes, under names that nobody has."""
    found, number = list[Node](), 0
    for node in parse_cluster_string(text):
        while (name := f"added-{number}") in world.nodes.index:
            number += 1
        number += 1
        found.append(replace(node, name=name))
    return found


def _merged(quota: Quota, asked: WhatIfPost) -> Quota:
    return merge(quota, read_quota_texts([(file.name, file.text) for file in asked.quota]))


def _job(world: World, asked: Submit, number: int, job_of: JobOf, paths: PathRules) -> Job:
    if asked.base_dir is not None:
        paths = replace(paths, base=Path(asked.base_dir))
    overrides = Overrides(**asked.overrides.model_dump()) if asked.overrides else Overrides()
    written = asked.task if isinstance(asked.task, str) else json.dumps(asked.task, ensure_ascii=False)
    job = job_of(world, parse_task(written, asked.file, overrides, paths), number)
    # Nobody tries it out here: it is asked about as if it were queued at once.
    return replace(job, id=f"new-{number}", sequence=number, trial=None)
