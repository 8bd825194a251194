"""The CustomResourceDefinition of UnifiedJob, made of its model and its rules.

python -m batuta.backends.kube.unified_job.crd > deploy/helm/batuta/crds/unifiedjobs.batuta.dev.yaml
"""

from __future__ import annotations

import sys
from typing import Any, Final

import yaml

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.model import Spec, Status
from batuta.backends.kube.unified_job.rules import RULES
from batuta.backends.kube.unified_job.schema import Schema, schema_of

_HEAD: Final = (
    "# Made by: python -m batuta.backends.kube.unified_job.crd\n"
    "# The source of truth is src/batuta/backends/kube/unified_job/model.py\n"
)
_COLUMNS: Final = (
    ("Queue", "string", ".spec.queueName", 0),
    ("State", "string", ".status.state", 0),
    ("GPUs", "integer", ".status.gpus", 0),
    ("Min", "integer", ".spec.replicaSpec.minReplicas", 0),
    ("Max", "integer", ".spec.replicaSpec.maxReplicas", 0),
    ("Progress", "string", ".status.progress", 0),
    ("ETA", "string", ".status.eta", 0),
    ("Nodes", "string", ".status.nodes", 1),
    ("Priority", "string", ".spec.priorityClassName", 1),
    ("Restarts", "integer", ".status.restarts", 1),
    ("Reason", "string", ".status.reason", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def build_crd() -> dict[str, Any]:
    """The CustomResourceDefinition as it is applied."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["uj"],
                "categories": ["all"],
            },
            "versions": [_version()],
        },
    }


def crd_yaml() -> str:
    """The file in the Helm chart."""
    body = yaml.dump(
        build_crd(),
        Dumper=_NoAliases,
        sort_keys=False,
        width=110,
        allow_unicode=True,
        default_flow_style=False,
    )
    return _HEAD + body


def _version() -> dict[str, Any]:
    return {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicaSpec.targetReplicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}
            for name, kind, path, priority in _COLUMNS
        ],
    }


def _schema() -> Schema:
    root: Schema = {
        "type": "object",
        "description": "A training job that may grow and shrink while it runs.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": schema_of(Spec, defaults=True),
            "status": schema_of(Status, defaults=False),
        },
    }
    for rule in RULES:
        place = root
        for key in filter(None, rule.at.split(".")):
            place = place["properties"][key]
        said = {"rule": rule.cel, "message": rule.message}
        if rule.field:
            said["fieldPath"] = f".{rule.field}"
        place.setdefault("x-kubernetes-validations", []).append(said)
    return root


class _NoAliases(yaml.SafeDumper):
    """Parts of the schema are used more than once; a reader wants to see them each time."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    sys.stdout.write(crd_yaml())
