"""One installation: its values, its namespace, and the names and labels of its objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from batuta.backends.kube.install.values import Values

Manifest: TypeAlias = dict[str, Any]

CHART = "batuta"
LONGEST_NAME = 50
"""Of the common part of names; `-operator` and the like follow."""


@dataclass(frozen=True, slots=True)
class Release:
    """What `helm install NAME --namespace NAMESPACE --values …` says."""

    values: Values
    namespace: str
    version: str
    name: str = CHART
    managed_by: str = CHART

    @property
    def fullname(self) -> str:
        """The chart's usual rule: the release's name, with the chart's unless it is in there."""
        if self.values.fullname_override:
            return self.values.fullname_override
        chart = self.chart_name
        full = self.name if chart in self.name else f"{self.name}-{chart}"
        return full[:LONGEST_NAME].rstrip("-")

    @property
    def chart_name(self) -> str:
        return self.values.name_override or CHART

    @property
    def operator(self) -> str:
        return f"{self.fullname}-operator"

    @property
    def queue_files(self) -> str:
        """The ConfigMap with files of queues."""
        return f"{self.fullname}-queues"

    @property
    def health_memory(self) -> str:
        """The ConfigMap that keeps what is known of the health of nodes."""
        return f"{self.fullname}-health"

    @property
    def service_account(self) -> str:
        return self.values.service_account.name or self.operator

    @property
    def selector(self) -> dict[str, str]:
        """Labels that never change, so that an upgrade finds the same pods."""
        return {
            "app.kubernetes.io/name": self.chart_name,
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/component": "operator",
        }

    @property
    def agent(self) -> str:
        return f"{self.fullname}-agent"

    @property
    def agent_selector(self) -> dict[str, str]:
        return self.selector | {"app.kubernetes.io/component": "agent"}

    @property
    def agent_labels(self) -> dict[str, str]:
        return self.labels | self.agent_selector

    def agent_metadata(self, *, namespaced: bool = True, labels: dict[str, str] | None = None) -> Manifest:
        """Metadata of the agent's objects, which are all called alike."""
        namespace = "" if namespaced else None
        return self.metadata(self.agent, namespace=namespace, labels=self.agent_selector | (labels or {}))

    @property
    def labels(self) -> dict[str, str]:
        return self.selector | {
            "app.kubernetes.io/part-of": CHART,
            "app.kubernetes.io/version": self.version,
            "app.kubernetes.io/managed-by": self.managed_by,
        }

    def metadata(
        self,
        name: str,
        *,
        namespace: str | None = "",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> Manifest:
        """Metadata in the release's namespace; None for an object of the whole cluster."""
        found: Manifest = {"name": name}
        if namespace is not None:
            found["namespace"] = namespace or self.namespace
        found["labels"] = self.labels | (labels or {})
        if annotations:
            found["annotations"] = dict(annotations)
        return found


def filled(**fields: Any) -> Manifest:
    """The fields that hold something: an empty list or mapping is left out, as the templates do."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}
