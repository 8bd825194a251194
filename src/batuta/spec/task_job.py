"""A task as the scheduler sees it: sizes in GPUs, kinds of GPU, what is known about its speed.

- A **replica** is one node's worth of a task: `gpus_per_replica` is the count of its accelerators, and every
  size is a multiple of it. Two replicas may lie on one machine when it has the GPUs.
- A task **without accelerators** is CPU-only, as in SkyPilot: its replicas take CPU and memory of any nodes,
  one CPU each if it does not say how many. (`batuta launch -- COMMAND` requests one GPU by default.)
- **Virtual GPUs** that were given no type stand for every type, so that files can be tried as they are.
- **Alternatives** with the same count become the job's GPU types. Those with another count would be another
  job: the first count that the nodes can ever give is taken.
- Until something is measured, speed is n to the power of 0.9, and a restart takes half a minute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from batuta.core.cluster import Node, tolerates
from batuta.core.curve import SpeedCurve, linear_curve, power_curve
from batuta.core.job import ANY_TYPE, Job, Share, Spread
from batuta.core.node_table import ROOMY
from batuta.spec.problem import InputError, Problem, did_you_mean
from batuta.spec.task import Task
from batuta.spec.task_elastic import Checkpoint
from batuta.spec.task_resources import ANY_GPU, VIRTUAL_GPU, Accelerator, ReplicaResources

DEFAULT_QUEUE = "default"
PRIOR_EXPONENT = 0.9
PRIOR_WORK_S = 3600.0  # of a job with one GPU; see `prior_work_s`
PRIOR_RESTART_S = 30.0
NEVER_S = 1e9  # the checkpoint interval of a task that never makes one: a stop loses all since the start
DEFAULT_CPUS_MILLI = 1000  # of each replica of a CPU-only task that does not say how many CPUs it needs
LONGEST_CURVE = 4096  # GPUs up to which a speed is written down; beyond, the last value holds
_Obstacle: TypeAlias = tuple[str, str]  # what is in the way, and the fix


def check_fits(job: Job, nodes: Sequence[Node]) -> list[Problem]:
    """Return why the job could never have its smallest size on these nodes alone; empty when it can.

    The answer agrees with the feasibility that the scheduler computes; this adds the reason and the fix.
    """
    found = _obstacle(job, nodes)
    return [] if found is None else [Problem(found[0], fix=found[1])]


def _obstacle(job: Job, nodes: Sequence[Node]) -> _Obstacle | None:
    if not nodes:
        return "the cluster has no nodes", ""
    suited = [node for node in nodes if _suits(job, node)]
    if not job.cpu_only:
        nodes = [node for node in nodes if node.gpus]
        if not nodes:
            return "no node of the cluster has a GPU", "resources.accelerators: 0 to run on CPU"
        accepted = dict(job.gpu_types)
        if accepted and not any(node.gpu_type in accepted for node in nodes):
            known = sorted({node.gpu_type for node in nodes})
            near = did_you_mean(next(iter(accepted)), known)
            fix = near if near.startswith("did") else f"this cluster has {', '.join(known[:16])}"
            return f"no node has a GPU of type {' or '.join(accepted)}", fix
        suited = [node for node in suited if node.gpus and (not accepted or node.gpu_type in accepted)]
    if not suited:
        which = "every node" if job.cpu_only else "every node that would do"
        return f"{which} is tainted or lacks a label that the job wants", ""
    return _too_small(job, suited)


def _too_small(job: Job, nodes: Sequence[Node]) -> _Obstacle | None:
    """The first thing of which no node has enough for a replica, else the whole; None when the job fits."""
    limits, each = (_CPU_LIMITS, 1) if job.cpu_only else (_LIMITS, job.gpus_per_replica)
    within = job.topology.within if job.topology.required else Spread.ANY
    # A job has GPUs of one type only, and in one place where its topology requires that.
    by_place: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        place = {Spread.NODE: node.name, Spread.RACK: node.rack, Spread.ANY: ""}[within]
        fits = min(limit(job, node) for limit, _ in limits)
        by_place["" if job.cpu_only else node.gpu_type, place] += fits - fits % each
    most = max(by_place.values())
    if most >= job.min:
        return None
    if not most:
        for limit, say in limits:
            if all(limit(job, node) < each for node in nodes):
                return say(job, nodes)
        less = "CPU or memory" if job.cpu_only else "CPU, memory or fewer GPUs per node"
        return "no single node has all that one replica needs", f"ask for less {less}"
    part = within.value
    if job.cpu_only:
        where = "" if within is Spread.ANY else f" in one {part}"
        message = f"needs room for {job.min} replicas{where}; the cluster has room for {most}"
        return message, "fewer nodes, or less CPU or memory for each"
    if within is not Spread.ANY:
        message = f"needs at least {job.min} GPUs in one {part}; the best {part} gives {most}"
        return message, f"gpu.topology: prefer-{part}, or fewer nodes"
    kinds = " or ".join(name for name, _ in job.gpu_types) or "any type"
    return f"needs at least {job.min} GPUs of {kinds}; the cluster gives {most}", "fewer nodes, or a smaller min_nodes"


def _suits(job: Job, node: Node) -> bool:
    tolerated = all(tolerates(job.tolerations, taint) for taint in node.taints)
    return tolerated and all(label in node.labels for label in job.node_labels)


def _gpus(job: Job, node: Node) -> int:
    return node.gpus


def _of_one_numa(job: Job, node: Node) -> int:
    if not job.topology.single_numa or not node.numa:
        return node.gpus
    return max(Counter(node.numa).values())


def _cpus(job: Job, node: Node) -> int:
    each = job.cpus_milli_per_gpu
    return node.cpus_milli // each if each and node.cpus_milli else ROOMY


def _memory(job: Job, node: Node) -> int:
    each = job.memory_mib_per_gpu
    return node.memory_mib // each if each and node.memory_mib else ROOMY


def _large_cards(job: Job, node: Node) -> int:
    return 0 if job.share is not None and job.share.memory_mib > node.gpu_memory_mib else node.gpus


def _say_gpus(job: Job, nodes: Sequence[Node]) -> _Obstacle:
    most = max(node.gpus for node in nodes)
    fix = "fewer GPUs, more nodes"
    if any(node.gpu_type == VIRTUAL_GPU for node in nodes):
        replicas = job.min // job.gpus_per_replica
        larger = f"batuta up --virtual {replicas}x{job.gpus_per_replica} --home DIR"
        fix = f"{fix}; or a server with larger virtual nodes: {larger}"
    return f"needs {job.gpus_per_replica} GPUs on each node; the largest node has {most}", fix


def _say_numa(job: Job, nodes: Sequence[Node]) -> _Obstacle:
    most = max(_of_one_numa(job, node) for node in nodes)
    return f"needs {job.gpus_per_replica} GPUs of one NUMA node; the largest has {most}", "gpu.numa: any"


def _say_cpus(job: Job, nodes: Sequence[Node]) -> _Obstacle:
    need = job.cpus_milli_per_gpu * (job.gpus_per_replica or 1) / 1000
    most = max(node.cpus_milli for node in nodes) / 1000
    return f"needs {need:g} CPUs on each node; the largest node has {most:g}", "resources.cpus"


def _say_memory(job: Job, nodes: Sequence[Node]) -> _Obstacle:
    need = job.memory_mib_per_gpu * (job.gpus_per_replica or 1) / 1024
    most = max(node.memory_mib for node in nodes) / 1024
    return f"needs {need:.4g} GiB of memory on each node; the largest node has {most:.4g}", "resources.memory"


def _say_cards(job: Job, nodes: Sequence[Node]) -> _Obstacle:
    need = job.share.memory_mib if job.share is not None else 0
    most = max(node.gpu_memory_mib for node in nodes)
    return f"needs {need} MiB on one GPU; the largest GPU has {most}", "gpu.memory"


_CPU_LIMITS: tuple[tuple[Callable[[Job, Node], int], Callable[[Job, Sequence[Node]], _Obstacle]], ...] = (
    (_cpus, _say_cpus),
    (_memory, _say_memory),
)
"""How many replicas of a CPU-only job fit on an empty node, as far as one thing is concerned; the message if none."""
_LIMITS = ((_gpus, _say_gpus), (_large_cards, _say_cards), (_of_one_numa, _say_numa), *_CPU_LIMITS)
"""The same for the GPUs of a node that a job can use."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One way to give a task its GPUs: so many per node, of any of these types (none: all).

    With a count of 0 it runs on CPU.
    """

    count: float
    types: tuple[str, ...]
    needs: ReplicaResources


def task_to_job(
    task: Task, job_id: str, submit_s: float, *, user: str = "", sequence: int = 0, nodes: Sequence[Node] = ()
) -> Job:
    """The job of a task. With nodes, names of GPU types are theirs, and alternatives that fit come first."""
    jobs = []
    for candidate in _candidates(task):
        job = _build(task, candidate, job_id, submit_s, user, sequence, nodes)
        if nodes and not check_fits(job, nodes):
            return job
        jobs.append(job)
    return jobs[0]


def prior_work_s(curve: SpeedCurve) -> float:
    """The work of a job of which nothing is known but how many GPUs it may have.

    Were it the same for all, the widest would be done first and pass for the shortest; in proportion to the
    speed, the narrowest would. In between, work × time is the same for all, and the first goes first.
    """
    return PRIOR_WORK_S * math.sqrt(curve.speeds[-1])


def _candidates(task: Task) -> Iterator[_Candidate]:
    for needs in task.choices:
        by_count: dict[float, list[Accelerator]] = {}
        for one in needs.accelerators:
            by_count.setdefault(one.count, []).append(one)
        for count, group in by_count.items():
            any_type = any(one.type == ANY_GPU for one in group)
            yield _Candidate(count, () if any_type else tuple(one.type for one in group), needs)
        if not by_count:
            yield _Candidate(int(task.gpu.is_share), (), needs)


def _build(
    task: Task, candidate: _Candidate, job_id: str, submit_s: float, user: str, sequence: int, nodes: Sequence[Node]
) -> Job:
    types = _known_types(candidate.types, nodes)
    cpu_only = not candidate.count
    share = None if cpu_only else _share(task, candidate, types, nodes)
    # GPUs in each replica, or each replica alone.
    each = 1 if cpu_only or share is not None else max(1, int(candidate.count))
    elastic, needs = task.elastic, candidate.needs
    sizes = None if cpu_only else elastic.legal_sizes
    on_request = elastic.checkpoint is Checkpoint.ON_SIGNAL
    largest = elastic.max_nodes * each
    curve = linear_curve(1) if cpu_only else power_curve(min(largest, LONGEST_CURVE), PRIOR_EXPONENT)
    cpus_milli = int(needs.cpus.value * 1000) if needs.cpus else DEFAULT_CPUS_MILLI if cpu_only else 0
    job = Job(
        id=job_id,
        submit_s=submit_s,
        size=task.num_nodes * each,
        min=elastic.min_nodes * each,
        max=largest,
        sizes=tuple(size * each for size in sizes) if sizes else None,
        gpus_per_replica=0 if cpu_only else each,
        sequence=sequence,
        name=task.name or job_id,
        user=user,
        queue=task.queue or DEFAULT_QUEUE,
        priority=task.priority,
        kind=elastic.kind_of(task.run),
        application=task.name,
        gpu_types=tuple((name, 1.0) for name in types) or ANY_TYPE,
        share=share,
        topology=task.gpu.topology,
        cpus_milli_per_gpu=cpus_milli // each,
        memory_mib_per_gpu=int(needs.memory_gib.value * 1024) // each if needs.memory_gib else 0,
        curve=curve,
        work_s=prior_work_s(curve),
        restart_s=PRIOR_RESTART_S,
        checkpoint_interval_s=None if on_request else elastic.checkpoint_interval_s or NEVER_S,
        restartable=elastic.is_restartable(task.run),
        time_limit_s=task.max_exec_time_s,
    )
    faults = job.faults()
    if faults:
        raise InputError([Problem(fault) for fault in faults])
    return job


def _known_types(names: Sequence[str], nodes: Sequence[Node]) -> tuple[str, ...]:
    """The types as the nodes spell them, for `h100` and `H100` are the same to people.

    Virtual GPUs that were given no type stand for every type that no node has.
    """
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys(node.gpu_type for node in nodes if node.gpus):
        spelled.setdefault(name.lower(), []).append(name)
    stand_in = spelled.get(VIRTUAL_GPU)
    return tuple(dict.fromkeys(own for name in names for own in spelled.get(name.lower(), stand_in or [name])))


def _share(task: Task, candidate: _Candidate, types: Sequence[str], nodes: Sequence[Node]) -> Share | None:
    """A part of one GPU. `H100:0.5` is half of the compute, and half of the memory where that is known."""
    gpu, count = task.gpu, candidate.count
    if not gpu.is_share and count >= 1:
        return None
    percent = gpu.compute_percent or (max(1, round(count * 100)) if count < 1 else 0)
    memory_mib = gpu.memory_mib
    if not memory_mib and count < 1:
        suited = (node for node in nodes if node.gpus and (not types or node.gpu_type in types))
        cards = [node.gpu_memory_mib for node in suited]
        memory_mib = int(min(cards) * count) if cards else 0
    return Share(memory_mib, percent, soft=gpu.soft)
