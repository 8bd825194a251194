"""The CustomResourceDefinition of UnifiedJob, made of its model and its validation rules.

python -m batuta.backends.kube.unified_job.crd > deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml

A rule is CEL for the API server, which refuses what breaks it, and Python for Batuta, which checks objects
that got past the API server. A rule about a change (`oldSelf`) is the API server's alone: only it sees both
sides.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from batuta.backends.kube import names
from batuta.backends.kube.crd import Column, Definition, Rule, broken
from batuta.backends.kube.unified_job.model import (
    JOB_TYPES,
    LONGEST_NAME,
    NAME_PATTERN,
    Spec,
    Status,
    UnifiedJob,
)
from batuta.backends.kube.unified_job.schema import schema_of

_KNOWN: Final = ", ".join(JOB_TYPES)
_RESTARTS_ITSELF: Final = ("Job", "MPIJob")
"""Types whose own controller copes with a container that starts again in its pod."""
_RUNS: Final = "(has(self.status) && has(self.status.replicas) && self.status.replicas > 0)"


def broken_rules(job: UnifiedJob) -> list[str]:
    """The messages of the rules that a job breaks, each with its field."""
    return broken(RULES, job)


def _sound_name(job: UnifiedJob) -> bool:
    name = job.metadata.name
    return (
        len(name) <= LONGEST_NAME
        and name[:1].isalpha()
        and name[-1:].isalnum()
        and name.replace("-", "a").isalnum()
        and name.isascii()
        and name == name.lower()
    )


def _ascends(job: UnifiedJob) -> bool:
    sizes = job.spec.replica_spec.sizes
    return sizes is None or sizes == sorted(sizes)


def _begins_and_ends(job: UnifiedJob) -> bool:
    spec = job.spec.replica_spec
    return not spec.sizes or (spec.sizes[0] == spec.min_replicas and spec.sizes[-1] == spec.largest)


def _target_within(job: UnifiedJob) -> bool:
    spec = job.spec.replica_spec
    target = spec.target_replicas
    return not target or spec.min_replicas <= target <= spec.largest


def _target_is_size(job: UnifiedJob) -> bool:
    spec = job.spec.replica_spec
    return not spec.target_replicas or spec.sizes is None or spec.target_replicas in spec.sizes


def _shares_one(job: UnifiedJob) -> bool:
    spec = job.spec.replica_spec
    return job.spec.sharing is None or (spec.min_replicas, spec.largest, spec.gpus_per_replica) == (1, 1, 1)


def _one_size_on_cpu(job: UnifiedJob) -> bool:
    spec = job.spec.replica_spec
    return not spec.cpu_only or (spec.largest == spec.min_replicas and spec.sizes is None)


def _numa_of_gpus(job: UnifiedJob) -> bool:
    topology = job.spec.topology
    return not job.spec.replica_spec.cpu_only or topology is None or topology.numa == "Any"


def _restarts_soundly(job: UnifiedJob) -> bool:
    return job.spec.job_type in _RESTARTS_ITSELF or _restart_policy(job.spec) != "OnFailure"


def _restart_policy(spec: Spec) -> str:
    pod = spec.replica_spec.template.get("spec")
    return str(pod.get("restartPolicy", "Never")) if isinstance(pod, dict) else "Never"


def _while_running(field: str, path: str) -> Rule[UnifiedJob]:
    new, old = f"self.spec.{path}", f"oldSelf.spec.{path}"
    same = f"(has({new}) == has({old}) && (!has({new}) || {new} == {old}))"
    return Rule(
        "",
        f"!{_RUNS} || {same}",
        f"{field} cannot be changed while the job runs: set suspend first",
        field=f"spec.{path}",
    )


RULES: Final[tuple[Rule[UnifiedJob], ...]] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {LONGEST_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
        f"the name becomes part of host names: at most {LONGEST_NAME} letters, digits and dashes, "
        "beginning with a letter",
        holds=_sound_name,
    ),
    Rule(
        "spec",
        f"self.jobType in [{', '.join(repr(name) for name in JOB_TYPES)}] || self.jobType.contains('/')",
        f"jobType is one of {_KNOWN}, or one of your own with a domain, as example.com/Ray",
        field="jobType",
        holds=lambda job: job.spec.job_type in JOB_TYPES or "/" in job.spec.job_type,
    ),
    Rule(
        "spec",
        "self.jobType == oldSelf.jobType",
        "jobType cannot be changed: delete the job and create it anew",
        field="jobType",
    ),
    Rule(
        "spec",
        "self.managedBy == oldSelf.managedBy",
        "managedBy cannot be changed: two operators would look after one job",
        field="managedBy",
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas must be at most maxReplicas",
        field="minReplicas",
        holds=lambda job: job.spec.replica_spec.min_replicas <= job.spec.replica_spec.largest,
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.sizes) || self.sizes.isSorted()",
        "sizes must ascend",
        field="sizes",
        holds=_ascends,
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.sizes) || size(self.sizes) == 0 || (self.sizes[0] == self.minReplicas && "
        "self.sizes[size(self.sizes) - 1] == (has(self.maxReplicas) ? self.maxReplicas : self.minReplicas))",
        "sizes must begin with minReplicas and end with maxReplicas",
        field="sizes",
        holds=_begins_and_ends,
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.targetReplicas) || self.targetReplicas == 0 || (self.targetReplicas >= self.minReplicas "
        "&& self.targetReplicas <= (has(self.maxReplicas) ? self.maxReplicas : self.minReplicas))",
        "targetReplicas must be within minReplicas..maxReplicas, or 0 for none now",
        field="targetReplicas",
        holds=_target_within,
    ),
    Rule(
        "spec.replicaSpec",
        "!has(self.targetReplicas) || self.targetReplicas == 0 || !has(self.sizes) || "
        "self.targetReplicas in self.sizes",
        "targetReplicas must be one of sizes, or 0 for none now",
        field="targetReplicas",
        holds=_target_is_size,
    ),
    Rule(
        "spec",
        "!has(self.sharing) || (self.replicaSpec.gpusPerReplica == 1 && self.replicaSpec.minReplicas == 1 && "
        "(!has(self.replicaSpec.maxReplicas) || self.replicaSpec.maxReplicas == 1))",
        "a share is of one GPU: gpusPerReplica, minReplicas and maxReplicas must be 1",
        field="sharing",
        holds=_shares_one,
    ),
    Rule(
        "spec.replicaSpec",
        "self.gpusPerReplica > 0 || (!has(self.sizes) && "
        "(!has(self.maxReplicas) || self.maxReplicas == self.minReplicas))",
        "a job without GPUs has one size: leave maxReplicas and sizes out, or set gpusPerReplica to at least 1",
        field="gpusPerReplica",
        holds=_one_size_on_cpu,
    ),
    Rule(
        "spec",
        "self.replicaSpec.gpusPerReplica > 0 || !has(self.topology) || !has(self.topology.numa) || "
        "self.topology.numa == 'Any'",
        "numa is about GPUs: leave it out, or set gpusPerReplica to at least 1",
        field="topology.numa",
        holds=_numa_of_gpus,
    ),
    Rule(
        "spec.sharing",
        "has(self.gpuMemory) || has(self.gpuCompute)",
        "a share needs gpuMemory, gpuCompute or both",
        holds=lambda job: (
            (share := job.spec.sharing) is None or share.gpu_memory is not None or share.gpu_compute is not None
        ),
    ),
    Rule(
        "spec",
        f"self.jobType in [{', '.join(repr(name) for name in _RESTARTS_ITSELF)}] || "
        "!has(self.replicaSpec.template.spec.restartPolicy) || "
        "self.replicaSpec.template.spec.restartPolicy == 'Never'",
        "restartPolicy must be Never for this jobType: one member that starts again alone hangs the others",
        field="replicaSpec.template.spec.restartPolicy",
        holds=_restarts_soundly,
    ),
    _while_running("queueName", "queueName"),
    _while_running("gpusPerReplica", "replicaSpec.gpusPerReplica"),
    _while_running("sharing", "sharing"),
)


_COLUMNS: Final = (
    Column("Queue", "string", ".spec.queueName"),
    Column("State", "string", ".status.state"),
    Column("GPUs", "integer", ".status.gpus"),
    Column("Min", "integer", ".spec.replicaSpec.minReplicas"),
    Column("Max", "integer", ".spec.replicaSpec.maxReplicas"),
    Column("Progress", "string", ".status.progress"),
    Column("ETA", "string", ".status.eta"),
    Column("Nodes", "string", ".status.nodes", is_wide=True),
    Column("Priority", "string", ".spec.priorityClassName", is_wide=True),
    Column("Restarts", "integer", ".status.restarts", is_wide=True),
    Column("Reason", "string", ".status.reason", is_wide=True),
    Column("Age", "date", ".metadata.creationTimestamp"),
)
_SCALE: Final = {
    "specReplicasPath": ".spec.replicaSpec.targetReplicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def _definition() -> Definition:
    return Definition(
        kind=names.KIND,
        plural=names.PLURAL,
        short="uj",
        description="A training job that may grow and shrink while it runs.",
        spec=schema_of(Spec, defaults=True),
        status=schema_of(Status, defaults=False),
        columns=_COLUMNS,
        rules=RULES,
        module="batuta.backends.kube.unified_job.crd",
        subresources={"scale": _SCALE},
    )


def build_crd() -> dict[str, Any]:
    """The CustomResourceDefinition as it is applied."""
    return _definition().build()


def crd_yaml() -> str:
    """The file in the Helm chart."""
    return _definition().to_yaml()


if __name__ == "__main__":
    sys.stdout.write(crd_yaml())
