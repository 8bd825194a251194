"""Job types: which objects a UnifiedJob becomes at a given size, and the registry of the types.

A package adds its own with an entry point of the group `batuta.job_types`: a `JobType`, under the name that
users write as `spec.jobType`, with a domain (`example.com/Ray`). One that cannot be loaded harms no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from batuta.backends.kube.jobtypes.job_type import JobType
from batuta.backends.kube.jobtypes.mpi import ELASTIC_HOROVOD, MPI
from batuta.backends.kube.jobtypes.pods import INDEXED_JOB, PODS, TORCH_ELASTIC

GROUP: Final = "batuta.job_types"
BUILT_IN: Final[Mapping[str, JobType]] = {
    "Job": INDEXED_JOB,
    "TorchElastic": TORCH_ELASTIC,
    "ElasticHorovod": ELASTIC_HOROVOD,
    "MPIJob": MPI,
    "Pods": PODS,
}


@dataclass(frozen=True, slots=True)
class JobTypes:
    """Job types by `spec.jobType`, and a sentence about each that could not be loaded."""

    found: Mapping[str, JobType]
    broken: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> JobType | None:
        return self.found.get(name)

    def why_not(self, name: str) -> str:
        """Why there is no such type, for the owner of a job that wants it."""
        return self.broken.get(name) or (f"the operator has no job type {name!r}; it has {', '.join(self.found)}")


def load_job_types() -> JobTypes:
    """All of them. A built-in name cannot be taken over."""
    found: dict[str, JobType] = dict(BUILT_IN)
    broken: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        if point.name in found:
            continue
        try:
            found[point.name] = _load(point)
        except Exception as error:  # foreign code: whatever it raises
            broken[point.name] = f"job type {point.name!r} from {point.value!r} cannot be loaded: {error}"
    return JobTypes(found, broken)


def _load(point: EntryPoint) -> JobType:
    loaded = point.load()
    kind: JobType = loaded() if isinstance(loaded, type) else loaded
    needed = ("name", "watches", "change", "children", "follow", "status", "replica_of")
    missing = [member for member in needed if not hasattr(kind, member)]
    if missing:
        raise TypeError(f"it has no {', '.join(missing)}")
    return kind
