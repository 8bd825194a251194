"""The operator's configuration file: the chart writes it into a ConfigMap, `batuta operator` reads it.

The docstring of a field is its description in the chart; one that takes more than a line is given to `Field`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StringConstraints, model_validator

from batuta.backends.kube import names
from batuta.backends.kube.settings import Settings, YamlSource, validated
from batuta.telemetry import LogFormat


class BurnIn(Settings):
    """The pod that proves that a node or GPU works again."""

    image: str = Field(default="", pattern=r"^\S*$", max_length=500)
    """the image of burn-ins; empty means the operator's own"""
    command: list[str] = Field(default=["python", "-m", "batuta.gpu.health.burn_in", "--gpu", "0"], min_length=1)
    """what tests the first GPU that it sees, and ends with 0 if that works"""
    runtime_class_name: str = Field(default="nvidia", pattern=r"^[-a-z0-9.]*$", max_length=253)
    """the RuntimeClass that brings NVIDIA's library; empty means none"""
    timeout_seconds: int = Field(default=1800, ge=1, le=86_400)
    """a burn-in that takes longer has failed"""


class HealthConfig(Settings):
    """Detect, act, prove, return."""

    enabled: bool = Field(
        default=False,
        description="take GPUs and nodes that are ill out of service, and back when they have proved "
        "themselves; the operator may change nodes then",
    )
    rules: str = ""
    """text of a file of rules, as `batuta health rules` prints it; empty means Batuta's own"""
    pool_label: str = Field(
        default="",
        pattern=r"^[-A-Za-z0-9_./]*$",
        max_length=316,
        description="the node label that tells pools apart, of which only a share is taken out of service; "
        "empty means that nodes with the same GPUs are a pool",
    )
    burn_in: BurnIn = BurnIn()
    """the pod that proves that something works again"""


class TelemetryConfig(Settings):
    """Traces and logs."""

    otlp_url: str = Field(default="", pattern=r"^(https?://[^/\s]+(/\S*)?)?$", max_length=2048)
    """where traces go over OTLP/HTTP, as in http://collector:4318; empty means nowhere"""
    log_format: LogFormat = Field(default=LogFormat.JSON, strict=False)
    """json is one object per line, with the ids of cycle and job; text is for people"""


DnsLabel: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
ResourceName: TypeAlias = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=316
    ),
]
HostName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[-a-zA-Z0-9.:]+$", max_length=253)]
QueueName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$")]

JOURNAL_URL_VARIABLE = "BATUTA_JOURNAL_URL"
"""Where it is set, the journal is in PostgreSQL and not in the state directory. A URL has a password in it,
so it comes from a Secret and not from the file."""


class Queue(Settings):
    """Where jobs wait, and how many GPUs those that left it may have."""

    name: QueueName
    """what jobs say in spec.queueName"""
    quota: dict[str, Annotated[int, Field(ge=0, le=10_000_000)]] = Field(default_factory=dict)
    """GPUs by type, "*" for all together; empty means no limit"""
    cohort: str = ""
    """queues of one cohort lend to each other"""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """its share among others"""
    held: bool = False
    """nothing new starts while it is held"""


class Admission(StrEnum):
    """Who decides which jobs get quota."""

    BATUTA = "batuta"
    KUEUE = "kueue"


class Kueue(Settings):
    """What Batuta has to do with the objects of Kueue, where the cluster has them."""

    read_quota: bool = Field(
        default=True,
        description="with admission batuta: where the cluster has Kueue's definitions, quota comes from its "
        "ClusterQueues, LocalQueues and so on, and no longer from `queues`",
    )
    show_workloads: bool = Field(
        default=False,
        description="with admission batuta: show jobs as Workloads, and their numbers in the status of "
        "queues; only where no Kueue runs",
    )


class ShareOrder(StrEnum):
    """Which cards shares of GPUs go to."""

    BIN_PACK = "bin-pack"
    SPREAD = "spread"


class Placement(Settings):
    """How the binder compares nodes."""

    weights: dict[str, Annotated[float, Field(ge=0, le=100)]] = Field(default_factory=dict)
    """weight by name of a binder plugin, 0 to 100; others keep their own"""
    shares: ShareOrder = Field(default=ShareOrder.BIN_PACK, strict=False)
    """shares of GPUs fill cards one after another (bin-pack), or go to the emptiest (spread)"""
    busiest: float = Field(default=0.7, ge=0, le=1)
    """a GPU is shared further while all on it together are not busier than this"""


class LeaderElection(Settings):
    """How fast another replica takes over."""

    lease_duration_seconds: int = Field(default=15, ge=3, le=3600)
    """others wait this long after the leader was last heard of"""
    renew_deadline_seconds: int = Field(default=10, ge=2, le=3600)
    """a leader that cannot renew its Lease for this long steps down"""
    retry_period_seconds: int = Field(default=2, ge=1, le=600)
    """time between two attempts"""

    @model_validator(mode="after")
    def _in_order(self) -> LeaderElection:
        if not self.retry_period_seconds < self.renew_deadline_seconds < self.lease_duration_seconds:
            raise ValueError("retryPeriodSeconds < renewDeadlineSeconds < leaseDurationSeconds must hold")
        return self


class Retention(Settings):
    """How long the operator keeps jobs in mind that are over; their objects stay as they are."""

    jobs: int = Field(default=1000, ge=0, le=100_000)
    """how many jobs that are over the operator keeps in mind"""
    days: float = Field(default=7, gt=0, le=3650)
    """how long it keeps them in mind"""


class Scheduling(Settings):
    """What an administrator chooses about decisions."""

    policy: str = Field(default="rent", min_length=1, max_length=253)
    """who decides how many GPUs each job gets; `batuta policies` lists them"""
    gpu_resources: list[ResourceName] = Field(default=list(names.GPU_RESOURCES), min_length=1)
    """resources that stand for whole GPUs, in the order in which a node is asked for them"""
    gang_timeout_seconds: int = Field(default=300, ge=1, le=86_400)
    """how long binding a gang may take before its reservations are freed"""
    restart_backoff_seconds: int = Field(default=10, ge=1, le=3600)
    """pause before a job that failed starts again; it doubles with each failure, to 6 minutes"""
    placement: Placement = Placement()
    """how the binder compares nodes"""
    queues: list[Queue] = Field(default_factory=list)
    """queues with name, quota, cohort, weight and held, as `batuta queues apply` takes them"""
    admission: Admission = Field(default=Admission.BATUTA, strict=False)
    """who decides which UnifiedJobs get quota: batuta, or kueue where a Kueue runs"""
    fair_sharing: bool = False
    """with admission batuta: queues that borrow more than their share give back to others"""
    kueue: Kueue = Kueue()
    """what Batuta has to do with the objects of Kueue"""
    retention: Retention = Retention()
    """how long the operator keeps jobs in mind that are over"""
    health: HealthConfig = HealthConfig()
    """how the health of nodes and GPUs is looked after"""
    leader_election: LeaderElection = LeaderElection()
    """how fast another replica takes over"""

    @model_validator(mode="after")
    def _each_queue_once(self) -> Scheduling:
        known = [queue.name for queue in self.queues]
        twice = sorted({name for name in known if known.count(name) > 1})
        if twice:
            raise ValueError(f"queue {', '.join(twice)} appears twice")
        return self


AUDIENCE = "batuta"
"""Whom tokens are made for that callers show to the operator: `kubectl create token NAME --audience batuta`."""
Audience: TypeAlias = Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=512)]


class TlsMode(StrEnum):
    """Where the certificate of the API comes from."""

    AUTO = "auto"
    FILES = "files"
    OFF = "off"


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")  # what port-forward makes of every name


class OperatorTls(Settings):
    """How connections to the API are encrypted."""

    mode: TlsMode = Field(default=TlsMode.OFF, strict=False)
    """auto: a certificate that operators make, renew and share; files: one of yours; off: plain HTTP."""
    folder: str = Field(default="", max_length=4096)
    """With files: the folder of tls.crt, tls.key and ca.crt. They are read again when they change."""
    secret: DnsLabel = "batuta-tls"
    """With auto: the Secret in its own namespace that keeps the certificate. It has to be there, be it empty."""
    config_map: DnsLabel = "batuta-ca"
    """With auto: the ConfigMap in its own namespace that tells clients the authority, as ca.crt."""
    names: list[HostName] = Field(default=list(LOOPBACK_NAMES), min_length=1)
    """Names and addresses of the API. Operators know each other by the first one."""
    refresh_seconds: int = Field(default=300, ge=1, le=86_400)
    """How often the certificate is read again."""

    @model_validator(mode="after")
    def _has_files(self) -> OperatorTls:
        if self.mode is TlsMode.FILES and not self.folder:
            raise ValueError("mode files needs folder")
        return self


class Api(Settings):
    """Where the API, the metrics and the probes are."""

    listen: str = "127.0.0.1"
    """Without TLS, whoever reaches this address can read the tokens of callers on their way."""
    port: int = Field(default=7077, ge=1, le=65535)
    open_metrics: bool = True
    """Prometheus may read /metrics without a token."""
    metrics_per_job: int = Field(default=50, ge=0)
    """How many jobs have metrics of their own."""
    audiences: list[Audience] = Field(default=[AUDIENCE])
    """Tokens have to be made for one of them; without any, for the API server itself."""
    tls: OperatorTls = OperatorTls()
    """How connections are encrypted."""


class OperatorConfig(Scheduling):
    """The whole file."""

    namespaces: list[DnsLabel] = Field(default_factory=list)
    """Where jobs may be; empty means everywhere."""
    state_dir: str = "/var/lib/batuta"
    config_map: DnsLabel | Literal[""] = ""
    """The ConfigMap in its own namespace that has this file. The leader watches it; empty: the file is read once."""
    lease_name: DnsLabel = "batuta-operator"
    queue_files: DnsLabel = "batuta-queues"
    """The ConfigMap in its own namespace whose keys are files with queues."""
    health_memory: DnsLabel = "batuta-health"
    """The ConfigMap in its own namespace that keeps what is known of the health of nodes."""
    api: Api = Api()
    telemetry: TelemetryConfig = TelemetryConfig()


CONFIG_FILE: Final = "config.yaml"
"""The key of the ConfigMap that has the file."""


def read_operator_config(path: Path) -> OperatorConfig:
    """The file's configuration, or all its problems with line and column."""
    return config_from(YamlSource.read(path))


def config_from(source: YamlSource) -> OperatorConfig:
    """The configuration that a file says, or all its problems with line and column."""
    return validated(OperatorConfig, source.value, source.nearest)
