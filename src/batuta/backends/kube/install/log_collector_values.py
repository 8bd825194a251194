"""The chart's values of the log collector: a DaemonSet of an OpenTelemetry collector that feeds a Loki."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from batuta.backends.kube.install.value_types import Amount, OptionalName, Raw, Strings
from batuta.backends.kube.settings import Settings


class CollectedPods(StrEnum):
    """Whose output is kept."""

    JOBS = "jobs"
    ALL = "all"


class KernelLog(StrEnum):
    """Where a node's kernel log is."""

    JOURNAL = "journal"
    FILES = "files"
    NONE = "none"


class CollectorImage(Settings):
    """The collector's image."""

    repository: Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\s@]+$")] = Field(
        default="otel/opentelemetry-collector-k8s", description="where the image is"
    )
    tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")] = Field(
        default="0.151.0", description="its tag; the configuration was checked with this one"
    )
    digest: Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")] = Field(
        default="", description="its digest, as in sha256:…; wins over the tag"
    )


class LokiSecret(Settings):
    """The Secret with a token for Loki."""

    name: OptionalName = Field(default="", description="its name; empty means that Loki wants no token")
    key: Annotated[str, StringConstraints(pattern=r"^[-._A-Za-z0-9]+$")] = Field(
        default="token", description="the key below which the token stands"
    )


class CollectorResources(Settings):
    """What a collector asks for."""

    requests: dict[str, Amount] = Field(
        default={"cpu": "20m", "memory": "128Mi"}, description="what it is given for sure"
    )
    limits: dict[str, Amount] = Field(default={"memory": "512Mi"}, description="what it never gets more of")


class LogCollector(Settings):
    """Logs of jobs and the kernel's, for a Loki."""

    enabled: bool = Field(
        default=False,
        description="run an OpenTelemetry collector on every node; it reads the node's log files as root, so "
        "the namespace must allow privileged pods",
    )
    loki_url: Annotated[str, StringConstraints(pattern=r"^(https?://[^\s?#]+[^\s?#/])?$")] = Field(
        default="", description="the Loki that takes them, as in http://loki-gateway.loki.svc"
    )
    tenant: Annotated[str, StringConstraints(pattern=r"^[-A-Za-z0-9!_.*'()]*$", max_length=150)] = Field(
        default="", description="whose logs they are, where that Loki keeps several tenants'"
    )
    token_secret: LokiSecret = Field(default=LokiSecret(), description="a token for it")
    pods: CollectedPods = Field(
        default=CollectedPods.JOBS,
        strict=False,
        description="whose output is kept: jobs (UnifiedJobs and Batuta itself), or all pods",
    )
    kernel_log: KernelLog = Field(
        default=KernelLog.JOURNAL,
        strict=False,
        description="where nodes have their kernel log: journal (systemd's; mounts the node's root folder to "
        "read), files (/var/log/kern.log or messages), or none",
    )
    image: CollectorImage = Field(default=CollectorImage(), description="the collector's image")
    node_selector: Strings = Field(
        default_factory=dict, description="labels of the nodes that have a collector"
    )
    tolerations: list[Raw] = Field(
        default=[{"operator": "Exists"}], description="tolerations of the collectors: by default any taint"
    )
    priority_class_name: OptionalName = Field(default="", description="priority class of the collectors")
    resources: CollectorResources = Field(
        default=CollectorResources(), description="what a collector asks for"
    )
