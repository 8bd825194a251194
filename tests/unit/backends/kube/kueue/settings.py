"""Objects of Kueue as informers show them."""

from typing import Any

import msgspec

from batuta.backends.kube.client.informer import Change, ChangeType
from batuta.backends.kube.kueue.kinds import KueueObject

GPU = "nvidia.com/gpu"


def setting(name: str, spec: dict[str, Any], namespace: str = "", **more: Any) -> KueueObject:
    """An object of which the API server has seen one generation."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-of-{namespace}-{name}", "generation": 1}
    meta |= more.pop("metadata", {})
    return msgspec.convert({"metadata": meta, "spec": spec, **more}, KueueObject)


def queue_spec(gpus: int, **more: Any) -> dict[str, Any]:
    """Of a ClusterQueue with so many GPUs of the flavor `gpus`, for all namespaces."""
    quota = {"name": "gpus", "resources": [{"name": GPU, "nominalQuota": str(gpus)}]}
    groups = [{"coveredResources": [GPU], "flavors": [quota]}]
    return {"namespaceSelector": {}, "resourceGroups": groups, **more}


def came(found: Any, old: Any = None) -> Change[Any]:
    return Change(ChangeType.ADDED if old is None else ChangeType.MODIFIED, found, old)


def went(found: Any) -> Change[Any]:
    return Change(ChangeType.DELETED, found, found)
