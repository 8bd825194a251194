"""A UnifiedJob whose pods tolerate more than their template says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batuta.backends.kube.unified_job.model import UnifiedJob


def tolerating(job: UnifiedJob, more: Iterable[Mapping[str, Any]]) -> UnifiedJob:
    """The same job with these tolerations added. What cannot be read of it stays as it is."""
    spec = _copy(job.raw_spec)
    replicas = spec["replicaSpec"] = _copy(spec.get("replicaSpec"))
    template = replicas["template"] = _copy(replicas.get("template"))
    pod = template["spec"] = _copy(template.get("spec"))
    own = pod.get("tolerations")
    tolerated = [*own] if isinstance(own, list) else []
    tolerated += [dict(one) for one in more if one not in tolerated]
    pod["tolerations"] = tolerated
    return UnifiedJob(metadata=job.metadata, raw_spec=spec, raw_status=job.raw_status)


def _copy(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}
