"""The pod template within a UnifiedJob: what of it the CRD's schema knows.

A whole pod's schema would be ten thousand lines of the API server's memory in every cluster, and would refuse
fields of the next Kubernetes. So unknown fields are kept, and the API server checks the pods when they are
created. What makes every template useless is refused at once. It is not an `embedded-resource`: that is for
whole objects with apiVersion and kind, which a template has not.
"""

from __future__ import annotations

from typing import Any, Final

MOST_CONTAINERS: Final = 32
_KEEP: Final = {"x-kubernetes-preserve-unknown-fields": True}
_STRINGS: Final = {"type": "object", "additionalProperties": {"type": "string"}}

_CONTAINER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 63},
        "image": {"type": "string", "maxLength": 1024},
    },
    **_KEEP,
}

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods.",
            "properties": {"labels": _STRINGS, "annotations": _STRINGS},
            **_KEEP,
        },
        "spec": {
            "type": "object",
            "description": "A PodSpec. Everything that a pod may have is kept.",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_CONTAINERS,
                    "items": _CONTAINER,
                    "description": "The first one is the training process: it is given the GPUs and the "
                    "environment.",
                },
                "restartPolicy": {
                    "type": "string",
                    "enum": ["Never", "OnFailure"],
                    "description": "Never by default: Batuta starts all replicas again together. OnFailure "
                    "only for the types Job and MPIJob.",
                },
            },
            **_KEEP,
        },
    },
    **_KEEP,
}
