"""Pods that are all alike → one rigid job of the World."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from batuta.backends.kube import names, objects
from batuta.backends.kube.binder.pod_class import NodeTerm, PodClass, Tolerance
from batuta.backends.kube.binder.selector import Requirement
from batuta.core import fit
from batuta.core.curve import linear_curve
from batuta.core.job import NO_RESTART_S, Job, JobId, Share
from batuta.core.node_table import OFFERS_SHARES

_OPERATORS: Final = {operator.value: operator for operator in fit.Operator}
_NOWHERE: Final = (fit.Requirement("", fit.Operator.IN),)
"""No node meets this."""
_MIB: Final = 1 << 20


def job_of(job: JobId, pod: objects.Pod, cls: PodClass, members: int, sequence: int = 0) -> Job:
    """So many pods like this one, which start together or not at all."""
    each = max(cls.gpus, 1)
    gpus = each * members
    asked = dict(cls.requests)
    return Job(
        id=job,
        submit_s=seconds(pod.metadata.creation_timestamp),
        size=gpus,
        min=gpus,
        max=gpus,
        gpus_per_replica=each,
        sequence=sequence,
        name=pod.metadata.name,
        application=pod.metadata.labels.get(names.APPLICATION, ""),
        user=pod.metadata.namespace,
        queue=queue_of(pod.metadata.labels),
        namespace=pod.metadata.namespace,
        priority=pod.spec.priority,
        share=None if cls.share is None else Share(*cls.share),
        cpus_milli_per_gpu=-(-asked.get("cpu", 0) // each),
        memory_mib_per_gpu=-(-asked.get("memory", 0) // (_MIB * each)),
        node_labels=() if cls.share is None else (OFFERS_SHARES,),
        node_terms=node_terms(cls.selector, cls.required),
        tolerations=(
            *map(toleration, cls.tolerations),
            *(() if cls.share is None else (names.SHARES_ONLY,)),
        ),
        curve=linear_curve(1),
        # A pod that is moved is killed, and nobody has promised that it can go on: that never pays.
        restart_s=NO_RESTART_S,
        checkpoint_interval_s=NO_RESTART_S,
    )


def queue_of(labels: dict[str, str]) -> str:
    return labels.get(names.QUEUE_NAME) or labels.get(names.KUEUE_QUEUE_NAME) or "default"


def node_terms(
    selector: tuple[Requirement, ...], required: tuple[NodeTerm, ...] | None
) -> tuple[fit.NodeTerm, ...]:
    """`nodeSelector` and required affinity together, as terms of which a node must meet one."""
    own = tuple(map(_requirement, selector))
    if required is None:
        return (own,) if own else ()
    if not required:
        return (_NOWHERE,)
    return tuple(own + tuple(map(_requirement, (*term.labels, *term.fields))) for term in required)


def _requirement(requirement: Requirement) -> fit.Requirement:
    operator = _OPERATORS.get(requirement.operator)
    if operator is None:
        return _NOWHERE[0]
    return fit.Requirement(requirement.key, operator, requirement.values)


def toleration(tolerance: Tolerance) -> str:
    """As the World writes it."""
    key = tolerance.key or fit.EVERYTHING
    said = key if tolerance.operator == "Exists" else f"{key}={tolerance.value}"
    return f"{said}:{tolerance.effect}" if tolerance.effect else said


def seconds(timestamp: str) -> float:
    """Unix seconds of a time as the API server writes it; 0 for none, and for what is no time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0
