"""Which nodes a pod template accepts, in the words of the core: labels, terms, tolerations, GPU types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from batuta.backends.kube.names import GPU_PRODUCT_LABELS
from batuta.backends.kube.objects import Affinity, Expression, NodeSelectorTerm, Toleration
from batuta.backends.kube.unified_job.reading import read_tolerantly
from batuta.core.fit import EVERYTHING, NodeTerm, Operator, Requirement

NODE_NAME_FIELD: Final = "metadata.name"
"""What `matchFields` names; nodes of the World carry their name as a label with this key."""
_OPERATORS: Final = {operator.value: operator for operator in Operator}
_PATH: Final = "spec.replicaSpec.template.spec"


@dataclass(frozen=True, slots=True)
class NodeWishes:
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


def node_wishes(pod: Mapping[str, Any]) -> NodeWishes:
    """What the template's selector, required node affinity and tolerations say."""
    part, unreadable = read_tolerantly(dict(pod), _Part, _PATH)
    faults = list(unreadable)
    labels = tuple(sorted(part.node_selector.items()))
    terms = _terms(part.affinity, faults)
    return NodeWishes(
        labels=labels,
        terms=terms,
        tolerations=tuple(
            dict.fromkeys(text for one in part.tolerations if (text := _toleration(one)) is not None)
        ),
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
        [
            value
            for one in term
            if one.key in GPU_PRODUCT_LABELS and one.operator is Operator.IN
            for value in one.values
        ]
        for term in terms
    ]
    return tuple(dict.fromkeys(value for values in named for value in values)) if all(named) else ()
