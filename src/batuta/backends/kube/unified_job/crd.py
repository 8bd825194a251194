"""The CustomResourceDefinition of UnifiedJob, made of its model and its validation rules.

python -m batuta.backends.kube.unified_job.crd > deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml
"""

from __future__ import annotations

import sys
from typing import Final

from batuta.backends.kube import names
from batuta.backends.kube.crd import Column, Definition, schema_of
from batuta.backends.kube.unified_job.model import RULES, Spec, Status

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


DEFINITION: Final = Definition(
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


if __name__ == "__main__":
    sys.stdout.write(DEFINITION.to_yaml())
