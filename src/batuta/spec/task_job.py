"""A task as the scheduler sees it: sizes in GPUs, kinds of GPU, what is known about its speed.

- A **replica** is one node's worth of a task: `gpus_per_replica` is the count of its accelerators, and every
  size is a multiple of it. Two replicas may lie on one machine when it has the GPUs.
- A task **without accelerators** counts as one GPU per node, of any type (`default_gpus`): the scheduler
  deals in GPUs, and `batuta launch -- python hello.py` should just run. With `default_gpus=0` it is refused.
- **Alternatives** with the same count become the job's GPU types. Those with another count would be another
  job: the first count that the nodes can ever give is taken.
- Until something is measured, speed is n to the power of 0.9, and a restart takes half a minute.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batuta.core.cluster import Node
from batuta.core.curve import SpeedCurve, power_curve
from batuta.core.job import ANY_TYPE, Job, JobKind, Share
from batuta.spec.accelerator import ANY, Accelerator
from batuta.spec.problem import InputError, Problem
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_fit import check_fits
from batuta.spec.task_resources import Needs

DEFAULT_QUEUE = "default"
PRIOR_EXPONENT = 0.9
PRIOR_WORK_S = 3600.0
"""Of a job with one GPU; see `prior_work_s`."""
PRIOR_RESTART_S = 30.0
NEVER_S = 1e9
"""The checkpoint interval of a task that never makes one: a stop loses all since the start."""
LONGEST_CURVE = 4096
"""GPUs up to which a speed is written down; beyond, the last value holds."""

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
_CALLS = r"(?:^|[\s;&|('\"`/])(?:{})(?=$|[\s;&|)'\"`])"
_TORCH = re.compile(
    _CALLS.format(r"torchrun|torch\.distributed\.run|torch\.distributed\.elastic"), re.MULTILINE
)
_HOROVOD = re.compile(_CALLS.format("horovodrun"), re.MULTILINE)
_HOROVOD_ELASTIC = re.compile(r"--(?:host-discovery-script|min-np|max-np|min-num-proc|max-num-proc)\b")
_MPI = re.compile(_CALLS.format(r"mpirun|mpiexec|orterun|prterun"), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One way to give a task its GPUs: so many per node, of any of these types (none: all)."""

    count: float
    types: tuple[str, ...]
    needs: Needs


def task_to_job(
    task: Task,
    job_id: str,
    submit_s: float,
    *,
    user: str = "",
    sequence: int = 0,
    nodes: Sequence[Node] = (),
    default_gpus: int = 1,
) -> Job:
    """The job of a task. With nodes, names of GPU types are theirs, and alternatives that fit come first."""
    if not task.accelerators and not task.gpu.is_share and default_gpus < 1:
        raise InputError.of("asks for no GPU", fix="resources.accelerators, for example H100:1")
    jobs = []
    for candidate in _candidates(task, default_gpus):
        job = _build(task, candidate, job_id, submit_s, user, sequence, nodes)
        if nodes and not check_fits(job, nodes):
            return job
        jobs.append(job)
    return jobs[0]


def find_kind(run: str) -> JobKind:
    """How a script starts its workers, from the launcher that it calls."""
    code = _COMMENT.sub("", run)
    if _TORCH.search(code):
        return JobKind.TORCH_ELASTIC
    if _HOROVOD.search(code):
        return JobKind.HOROVOD_ELASTIC if _HOROVOD_ELASTIC.search(code) else JobKind.MPI
    return JobKind.MPI if _MPI.search(code) else JobKind.SCRIPT


def prior_work_s(curve: SpeedCurve) -> float:
    """The work of a job of which nothing is known but how many GPUs it may have.

    Were it the same for all, the widest would be done first and pass for the shortest; in proportion to the
    speed, the narrowest would. In between, work × time is the same for all, and the first goes first.
    """
    return PRIOR_WORK_S * math.sqrt(curve.speeds[-1])


def _candidates(task: Task, default_gpus: int) -> Iterator[_Candidate]:
    for needs in task.choices:
        by_count: dict[float, list[Accelerator]] = {}
        for one in needs.accelerators:
            by_count.setdefault(one.count, []).append(one)
        for count, group in by_count.items():
            any_type = any(one.type == ANY for one in group)
            yield _Candidate(count, () if any_type else tuple(one.type for one in group), needs)
        if not by_count:
            yield _Candidate(1 if task.gpu.is_share else default_gpus, (), needs)


def _build(
    task: Task,
    candidate: _Candidate,
    job_id: str,
    submit_s: float,
    user: str,
    sequence: int,
    nodes: Sequence[Node],
) -> Job:
    types = _known_types(candidate.types, nodes)
    share = _share(task, candidate, types, nodes)
    each = 1 if share is not None else max(1, int(candidate.count))
    elastic, needs = task.elastic, candidate.needs
    sizes = elastic.legal_sizes
    largest = elastic.max_nodes * each
    curve = power_curve(min(largest, LONGEST_CURVE), PRIOR_EXPONENT)
    job = Job(
        id=job_id,
        submit_s=submit_s,
        size=task.num_nodes * each,
        min=elastic.min_nodes * each,
        max=largest,
        sizes=tuple(size * each for size in sizes) if sizes else None,
        gpus_per_replica=each,
        sequence=sequence,
        name=task.name or job_id,
        user=user,
        queue=task.queue or DEFAULT_QUEUE,
        priority=task.priority,
        kind=elastic.kind or find_kind(task.run),
        application=task.name,
        gpu_types=tuple((name, 1.0) for name in types) or ANY_TYPE,
        share=share,
        topology=task.gpu.topology,
        cpus_milli_per_gpu=int(needs.cpus.value * 1000) // each if needs.cpus else 0,
        memory_mib_per_gpu=int(needs.memory_gib.value * 1024) // each if needs.memory_gib else 0,
        curve=curve,
        work_s=prior_work_s(curve),
        restart_s=PRIOR_RESTART_S,
        checkpoint_interval_s=_interval_s(task),
    )
    faults = job.faults()
    if faults:
        raise InputError([Problem(fault) for fault in faults])
    return job


def _known_types(names: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """The types as the nodes spell them, for `h100` and `H100` are the same to people."""
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys(node.gpu_type for node in nodes):
        spelled.setdefault(name.lower(), []).append(name)
    return tuple(dict.fromkeys(own for name in names for own in spelled.get(name.lower(), [name])))


def _share(task: Task, candidate: _Candidate, types: Sequence[str], nodes: Sequence[Node]) -> Share | None:
    """A part of one GPU. `H100:0.5` is half of the compute, and half of the memory where that is known."""
    gpu, count = task.gpu, candidate.count
    if not gpu.is_share and count >= 1:
        return None
    percent = gpu.compute_percent or (max(1, round(count * 100)) if count < 1 else 0)
    memory_mib = gpu.memory_mib
    if not memory_mib and count < 1:
        cards = [node.gpu_memory_mib for node in nodes if not types or node.gpu_type in types]
        memory_mib = int(min(cards) * count) if cards else 0
    return Share(memory_mib, percent, soft=gpu.soft)


def _interval_s(task: Task) -> float | None:
    if task.elastic.checkpoint is Checkpoint.ON_SIGNAL:
        return None
    return task.elastic.checkpoint_interval_s or NEVER_S
