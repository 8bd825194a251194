"""Build the CustomResourceDefinition of a kind from its model and its rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import yaml

from batuta.backends.kube import names
from batuta.backends.kube.unified_job.schema import Schema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """A CEL rule at a place of the schema; `holds` says the same in Python (None: about a change)."""

    at: str
    """The object that `self` is; empty for the whole object."""
    cel: str
    message: str
    field: str = ""
    """The field to blame, below `at`."""
    holds: Callable[[T], bool] | None = None

    @property
    def path(self) -> str:
        return ".".join(part for part in (self.at, self.field) if part)


def broken(rules: Sequence[Rule[T]], value: T) -> list[str]:
    """The messages of the rules that an object breaks, each with its field."""
    return [
        f"{rule.path or 'metadata.name'}: {rule.message}"
        for rule in rules
        if rule.holds is not None and not rule.holds(value)
    ]


class Column(NamedTuple):
    """What `kubectl get` shows of an object."""

    name: str
    type: str
    path: str
    is_wide: bool = False
    """Only with `-o wide`."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind, as the API server is told of it."""

    kind: str
    plural: str
    short: str
    description: str
    spec: Schema
    status: Schema
    columns: Sequence[Column]
    rules: Sequence[Rule[Any]]
    module: str
    """Who makes the file, and whose neighbour `model.py` is where the fields are declared."""
    subresources: Mapping[str, Any] = field(default_factory=dict)
    """Beside the status."""

    def build(self) -> dict[str, Any]:
        """The CustomResourceDefinition as it is applied."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{names.GROUP}"},
            "spec": {
                "group": names.GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short],
                    "categories": ["all"],
                },
                "versions": [self._version()],
            },
        }

    def to_yaml(self) -> str:
        """The file in the Helm chart."""
        model = "/".join(self.module.split(".")[:-1])
        head = f"# Made by: python -m {self.module}\n# The source of truth is src/{model}/model.py\n"
        return head + yaml.dump(
            self.build(),
            Dumper=_NoAliases,
            sort_keys=False,
            width=110,
            allow_unicode=True,
            default_flow_style=False,
        )

    def _version(self) -> dict[str, Any]:
        return {
            "name": names.VERSION,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": self._schema()},
            "subresources": {"status": {}, **self.subresources},
            "additionalPrinterColumns": [
                {"name": one.name, "type": one.type, "jsonPath": one.path} | ({"priority": 1} if one.is_wide else {})
                for one in self.columns
            ],
        }

    def _schema(self) -> Schema:
        root: Schema = {
            "type": "object",
            "description": self.description,
            "required": ["spec"],
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"type": "object"},
                "spec": self.spec,
                "status": self.status,
            },
        }
        for rule in self.rules:
            put_rule(root, rule)
        return root


def put_rule(root: Schema, rule: Rule[Any]) -> None:
    """Writes a rule to its place below a schema."""
    place = root
    for key in filter(None, rule.at.split(".")):
        place = place["properties"][key]
    said = {"rule": rule.cel, "message": rule.message}
    if rule.field:
        said["fieldPath"] = f".{rule.field}"
    place.setdefault("x-kubernetes-validations", []).append(said)


class _NoAliases(yaml.SafeDumper):
    """Parts of the schema are used more than once; a reader wants to see them each time."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
