"""What a pod template requires of a node: resource requests, labels, affinity terms, tolerations, GPU types.

Templates are not checked by the API server, so quantities may be numbers or strings, and may be invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import msgspec

from batuta.backends.kube.binder import requests as binder
from batuta.backends.kube.binder.requests import amount
from batuta.backends.kube.names import GPU_PRODUCT_LABELS, GPU_RESOURCES, SHARE_COMPUTE, SHARE_MEMORY
from batuta.backends.kube.objects import (
    Affinity,
    Container,
    Expression,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    Resources,
    Toleration,
)
from batuta.backends.kube.unified_job.model import read_tolerantly
from batuta.core.cluster import EVERYTHING, NodeTerm, Operator, Requirement

NODE_NAME_FIELD: Final = "metadata.name"
"""What `matchFields` names; nodes of the World carry their name as a label with this key."""
_OPERATORS: Final = {operator.value: operator for operator in Operator}
_PATH: Final = "spec.replicaSpec.template.spec"


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What a node must be like, and what in the template cannot be read."""

    labels: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] = ()
    tolerations: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    """Empty accepts all."""
    faults: tuple[str, ...] = ()


class _Part(msgspec.Struct, rename="camel"):
    """The part of a PodSpec that is about nodes."""

    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []


def node_requirements(pod: Mapping[str, Any]) -> NodeRequirements:
    """What the template's selector, required node affinity and tolerations say."""
    part, unreadable = read_tolerantly(dict(pod), _Part, _PATH)
    faults = list(unreadable)
    labels = tuple(sorted(part.node_selector.items()))
    terms = _terms(part.affinity, faults)
    return NodeRequirements(
        labels=labels,
        terms=terms,
        tolerations=tuple(dict.fromkeys(text for one in part.tolerations if (text := _toleration(one)) is not None)),
        gpu_types=_gpu_types(labels, terms),
        faults=tuple(faults),
    )


def _terms(affinity: Affinity | None, faults: list[str]) -> tuple[NodeTerm, ...]:
    node = affinity.node_affinity if affinity is not None else None
    required = node.required_during_scheduling_ignored_during_execution if node is not None else None
    if required is None:
        return ()
    path = f"{_PATH}.affinity.nodeAffinity"
    found = tuple(term for one in required.node_selector_terms if (term := _term(one, path, faults)))
    if not found and not faults:
        faults.append(f"{path}: a term without expressions matches no node; name a label")
    return found


def _term(term: NodeSelectorTerm, path: str, faults: list[str]) -> NodeTerm:
    listed = (*term.match_expressions, *term.match_fields)
    return tuple(one for each in listed if (one := _requirement(each, path, faults)) is not None)


def _requirement(expression: Expression, path: str, faults: list[str]) -> Requirement | None:
    operator = _OPERATORS.get(expression.operator)
    if operator is None:
        known = ", ".join(_OPERATORS)
        faults.append(f"{path}: {expression.operator!r} is not an operator; known: {known}")
        return None
    return Requirement(expression.key, operator, tuple(expression.values))


def _toleration(toleration: Toleration) -> str | None:
    """As the core writes it; None for one that the core cannot compare, and so does not count on."""
    effect = f":{toleration.effect}" if toleration.effect else ""
    if toleration.operator == "Exists":
        return (toleration.key or EVERYTHING) + effect
    if toleration.operator in ("", "Equal") and toleration.key:
        return f"{toleration.key}={toleration.value}{effect}"
    return None


def _gpu_types(labels: tuple[tuple[str, str], ...], terms: tuple[NodeTerm, ...]) -> tuple[str, ...]:
    """The products that the template names, where every way to meet it names some."""
    selected = [value for key, value in labels if key in GPU_PRODUCT_LABELS]
    if selected:
        return tuple(selected[:1])
    named = [
        [value for one in term if one.key in GPU_PRODUCT_LABELS and one.operator is Operator.IN for value in one.values]
        for term in terms
    ]
    return tuple(dict.fromkeys(value for values in named for value in values)) if all(named) else ()


_ZERO: Final = re.compile(r"[+-]?0+\.?0*(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?")


def parse_quantity(value: Any) -> Fraction | None:
    """The exact amount; None when it is none, or below zero."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 64:
        return None
    text = str(value)
    found = amount(text)
    return found if found > 0 or _ZERO.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class PodRequests:
    """The sums for one pod, and what in the template cannot be read."""

    amounts: Mapping[str, int]
    """CPUs in thousandths, memory in bytes."""
    faults: tuple[str, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """Whole GPUs by resource, those that are asked for."""
        return {name: self.amounts[name] for name in GPU_RESOURCES if name in self.amounts}

    @property
    def shares(self) -> bool:
        return any(name in self.amounts for name in (SHARE_MEMORY, SHARE_COMPUTE))


def pod_requests(pod: Mapping[str, Any]) -> PodRequests:
    """What the binder will count for a pod of this template."""
    faults: list[str] = []
    spec = PodSpec(
        containers=_containers(pod, "containers", faults),
        init_containers=_containers(pod, "initContainers", faults),
        overhead=_amounts(pod.get("overhead"), f"{_PATH}.overhead", faults),
        resources=_resources(pod, _PATH, faults),
    )
    return PodRequests(binder.pod_requests(Pod(spec=spec)), tuple(faults))


def _containers(pod: Mapping[str, Any], key: str, faults: list[str]) -> list[Container]:
    listed = pod.get(key)
    return [
        Container(
            name=str(one.get("name", "")),
            resources=_resources(one, f"{_PATH}.{key}[{index}]", faults),
            restart_policy=str(one.get("restartPolicy", "")),
        )
        for index, one in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(one, dict)
    ]


def _resources(holder: Mapping[str, Any], path: str, faults: list[str]) -> Resources:
    """A limit without a request is the request: so the API server fills it in."""
    written = holder.get("resources")
    if not isinstance(written, dict):
        return Resources()
    limits = _amounts(written.get("limits"), f"{path}.resources.limits", faults)
    requests = _amounts(written.get("requests"), f"{path}.resources.requests", faults)
    return Resources(limits=limits, requests=limits | requests)


def _amounts(listed: Any, path: str, faults: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in (listed if isinstance(listed, dict) else {}).items():
        if parse_quantity(value) is None:
            faults.append(f"{path}.{name}: {str(value)[:60]!r} is not an amount, for example 4, 500m or 16Gi")
        else:
            found[str(name)] = str(value)
    return found
