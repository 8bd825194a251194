"""Whether a job could ever run on these nodes, if it were alone; if not, why not.

The answer agrees with `core.reach`, which the scheduler itself goes by; this adds the words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from batuta.core.cluster import Node
from batuta.core.fit import tolerates
from batuta.core.job import Job, Spread
from batuta.spec.problem import Problem, did_you_mean


def check_fits(job: Job, nodes: Sequence[Node], file: str = "") -> list[Problem]:
    """Why the job can never have its smallest size; empty when it can."""
    return [Problem(message, file, fix=fix) for message, fix in _on_nodes(job, nodes)]


def _on_nodes(job: Job, nodes: Sequence[Node]) -> list[tuple[str, str]]:
    """What is in the way."""
    if not nodes:
        return [("the cluster has no nodes", "")]
    accepted = dict(job.gpu_types)
    alike = [node for node in nodes if not accepted or node.gpu_type in accepted]
    if not alike:
        wanted, known = " or ".join(accepted), sorted({node.gpu_type for node in nodes})
        near = did_you_mean(next(iter(accepted)), known)
        fix = near if near.startswith("did") else f"this cluster has {', '.join(known[:16])}"
        return [(f"no node has a GPU of type {wanted}", fix)]
    suited = [node for node in alike if _suits(job, node)]
    if not suited:
        return [("every node that would do is tainted or lacks a label that the job wants", "")]
    most = _most_by_type(job, suited)
    if max(most.values()) >= job.min:
        return []
    return [_too_much(job, suited, max(most.values()))]


def _suits(job: Job, node: Node) -> bool:
    tolerated = all(tolerates(job.tolerations, taint) for taint in node.taints)
    return tolerated and all(label in node.labels for label in job.node_labels)


def _most_by_type(job: Job, nodes: Iterable[Node]) -> dict[str, int]:
    """By type: the most GPUs that the job could have. A job has GPUs of one type only."""
    total: Counter[str] = Counter()
    by_rack: Counter[tuple[str, str]] = Counter()
    within = job.topology.within if job.topology.required else Spread.ANY
    for node in nodes:
        one = min(limit(job, node) for limit, _ in _LIMITS)
        one -= one % job.gpus_per_replica
        by_rack[node.gpu_type, node.rack] += one
        if within is Spread.NODE:
            total[node.gpu_type] = max(total[node.gpu_type], one)
        else:
            total[node.gpu_type] += one
    if within is Spread.RACK:
        total.clear()
        for (kind, _), gpus in by_rack.items():
            total[kind] = max(total[kind], gpus)
    return total


def _too_much(job: Job, nodes: Sequence[Node], most: int) -> tuple[str, str]:
    """The first thing that no node has enough of, else the whole."""
    each = job.gpus_per_replica
    if all(min(limit(job, node) for limit, _ in _LIMITS) < each for node in nodes):
        for limit, say in _LIMITS:
            if all(limit(job, node) < each for node in nodes):
                return say(job, nodes)
        return (
            "no single node has all that one replica needs",
            "ask for less CPU, memory or fewer GPUs per node",
        )
    kinds = " or ".join(name for name, _ in job.gpu_types) or "any type"
    if job.topology.required and job.topology.within is not Spread.ANY:
        part = job.topology.within.value
        message = f"needs at least {job.min} GPUs in one {part}; the best {part} gives {most}"
        return (message, f"gpu.topology: prefer-{part}, or fewer nodes")
    return (
        f"needs at least {job.min} GPUs of {kinds}; the cluster gives {most}",
        "fewer nodes, or a smaller min_nodes",
    )


def _gpus(job: Job, node: Node) -> int:
    return node.gpus


def _of_one_numa(job: Job, node: Node) -> int:
    if not job.topology.single_numa or not node.numa:
        return node.gpus
    return max(Counter(node.numa).values())


def _beside_cpus(job: Job, node: Node) -> int:
    each = job.cpus_milli_per_gpu
    return node.cpus_milli // each if each and node.cpus_milli else node.gpus


def _beside_memory(job: Job, node: Node) -> int:
    each = job.memory_mib_per_gpu
    return node.memory_mib // each if each and node.memory_mib else node.gpus


def _large_cards(job: Job, node: Node) -> int:
    return 0 if job.share is not None and job.share.memory_mib > node.gpu_memory_mib else node.gpus


def _say_gpus(job: Job, nodes: Sequence[Node]) -> tuple[str, str]:
    most = max(node.gpus for node in nodes)
    return (
        f"needs {job.gpus_per_replica} GPUs on each node; the largest node has {most}",
        "fewer GPUs, more nodes",
    )


def _say_numa(job: Job, nodes: Sequence[Node]) -> tuple[str, str]:
    most = max(_of_one_numa(job, node) for node in nodes)
    return f"needs {job.gpus_per_replica} GPUs of one NUMA node; the largest has {most}", "gpu.numa: any"


def _say_cpus(job: Job, nodes: Sequence[Node]) -> tuple[str, str]:
    need = job.cpus_milli_per_gpu * job.gpus_per_replica / 1000
    most = max(node.cpus_milli for node in nodes) / 1000
    return f"needs {need:g} CPUs on each node; the largest node has {most:g}", "resources.cpus"


def _say_memory(job: Job, nodes: Sequence[Node]) -> tuple[str, str]:
    need = job.memory_mib_per_gpu * job.gpus_per_replica / 1024
    most = max(node.memory_mib for node in nodes) / 1024
    return f"needs {need:.4g} GiB of memory on each node; the largest node has {most:.4g}", "resources.memory"


def _say_cards(job: Job, nodes: Sequence[Node]) -> tuple[str, str]:
    need = job.share.memory_mib if job.share is not None else 0
    most = max(node.gpu_memory_mib for node in nodes)
    return f"needs {need} MiB on one GPU; the largest GPU has {most}", "gpu.memory"


_LIMITS: tuple[tuple[Callable[[Job, Node], int], Callable[[Job, Sequence[Node]], tuple[str, str]]], ...] = (
    (_gpus, _say_gpus),
    (_large_cards, _say_cards),
    (_of_one_numa, _say_numa),
    (_beside_cpus, _say_cpus),
    (_beside_memory, _say_memory),
)
"""How many GPUs of a node a job can use, as far as one thing is concerned; and what to say if that is it."""
