"""The chart's values: names, defaults and bounds.

values.yaml, values.schema.json and the table in the chart's README are made from these classes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from batuta.backends.kube.operator_config import AUDIENCE, Audience, DnsLabel, HostName, Scheduling, TelemetryConfig
from batuta.backends.kube.settings import Settings

_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
Quantity: TypeAlias = Annotated[str, StringConstraints(pattern=_QUANTITY)]
PrometheusDuration: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[0-9]+(ms|s|m|h)$")]
# A name of several labels joined by dots, or nothing.
OptionalName: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)
]
# Short enough for `-operator` and the like to follow.
Prefix: TypeAlias = Annotated[str, StringConstraints(pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=50)]
Repository: TypeAlias = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\s@]+$")]
Digest: TypeAlias = Annotated[str, StringConstraints(pattern=r"^(sha256:[0-9a-f]{64})?$")]
SecretKey: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[-._A-Za-z0-9]+$")]
# It stands in an expression, in quotes.
UserName: TypeAlias = Annotated[str, StringConstraints(pattern=r"""^[^'"\\\s]+$""", max_length=253)]
NonEmpty: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]
Strings: TypeAlias = dict[str, str]
Raw: TypeAlias = dict[str, Any]
ANY_TAINT: Final[list[Raw]] = [{"operator": "Exists"}]


def _check_amount(amount: str | int | float) -> str | int | float:
    if not re.match(_QUANTITY, str(amount)):
        raise ValueError(f"{amount!r} is not an amount, as in 500m, 2 or 4Gi")
    return amount


# A quantity that may also be a plain number, as people write CPUs.
Amount: TypeAlias = Annotated[
    str | int | float,
    AfterValidator(_check_amount),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _QUANTITY}, {"type": "number", "minimum": 0}]}),
]


class Resources(Settings):
    """What a container asks for."""

    requests: dict[str, Amount] = Field(default={}, description="what it is given for sure")
    limits: dict[str, Amount] = Field(
        default={}, description="what it never gets more of; a CPU limit would slow it down"
    )


def _resources(cpu: str, memory: str, most_memory: str) -> Resources:
    return Resources(requests={"cpu": cpu, "memory": memory}, limits={"memory": most_memory})


class Agent(Settings):
    """The node agent."""

    enabled: bool = Field(
        default=False,
        description="run an agent on every node with GPUs; it sees the node's processes (hostPID), so the "
        "namespace must allow privileged pods",
    )
    interval_seconds: int = Field(default=1, ge=1, le=60, description="time between looks at the GPUs")
    report_every_seconds: int = Field(
        default=30, ge=5, le=60, description="time between reports; the binder forgets one after 90 s"
    )
    metrics_port: Port = Field(default=9477, description="port of its metrics and probes")
    dcgm_url: Annotated[str, StringConstraints(pattern=r"^(https?://\S+)?$")] = Field(
        default="", description="where DCGM exporter's series are on each node, as in http://$(HOST_IP):9400/metrics"
    )
    kernel_log: Annotated[str, StringConstraints(pattern=r"^(/\S+)?$")] = Field(
        default="",
        description="the node's kernel log, as in /dev/kmsg or /var/log/kern.log, where errors of GPUs are "
        "looked for; empty means none; for /dev/kmsg the agent is privileged",
    )
    state_dir: Annotated[str, StringConstraints(pattern=r"^/\S+$")] = Field(
        default="/var/lib/batuta/agent", description="folder of the node that keeps how far the kernel log was read"
    )
    runtime_class_name: OptionalName = Field(
        default="nvidia", description="the RuntimeClass that brings NVIDIA's library; empty means none"
    )
    disk_counters: bool = Field(
        default=False,
        description="see how much jobs read and write, which tells input bottlenecks and checkpoints; "
        "takes the capability SYS_PTRACE",
    )
    node_selector: Strings = Field(
        default={"nvidia.com/gpu.present": "true"}, description="labels of the nodes that have an agent"
    )
    tolerations: list[Raw] = Field(default=ANY_TAINT, description="tolerations of the agents")
    priority_class_name: OptionalName = Field(default="", description="priority class of the agents")
    resources: Resources = Field(default=_resources("20m", "96Mi", "256Mi"), description="what an agent asks for")


class DevicePlugin(Settings):
    """Shares of GPUs on nodes."""

    enabled: bool = Field(
        default=False, description="run the device plugin; it needs root, so the namespace must allow privileged pods"
    )
    mode: Literal["auto", "dmem", "mps", "preload"] = Field(
        default="preload",
        description="who holds containers to their shares: preload (a library), mps, dmem (the kernel and "
        "MPS v3) or auto; mps and dmem run privileged",
    )
    memory_percent: int = Field(
        default=100,
        ge=100,
        le=1000,
        description="how much of each GPU's memory is given out; beyond 100 is over-allocation",
    )
    compute_percent: int = Field(default=100, ge=100, le=1000, description="the same for compute")
    library: str = Field(
        default="/usr/local/lib/batuta/libbatuta-share.so",
        description="the share library in the image; empty compiles it, which takes a compiler there",
    )
    pass_device_files: bool = Field(
        default=False, description="give containers /dev/nvidia*, where NVIDIA's container runtime does not"
    )
    runtime_class_name: OptionalName = Field(
        default="", description="runtime class with which its pods see the GPUs, as in nvidia"
    )
    node_selector: Strings = Field(
        default={"batuta.dev/gpu-sharing": "true"}, description="labels of the nodes that share their GPUs"
    )
    tolerations: list[Raw] = Field(default=ANY_TAINT, description="tolerations of its pods: by default any taint")
    resources: Resources = Field(
        default=_resources("10m", "64Mi", "256Mi"), description="what each of its pods asks for"
    )


class CollectorImage(Settings):
    """The collector's image."""

    repository: Repository = Field(default="otel/opentelemetry-collector-k8s", description="where the image is")
    tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")] = Field(
        default="0.151.0", description="its tag; the configuration was checked with this one"
    )
    digest: Digest = Field(default="", description="its digest, as in sha256:…; wins over the tag")


class LokiSecret(Settings):
    """The Secret with a token for Loki."""

    name: OptionalName = Field(default="", description="its name; empty means that Loki wants no token")
    key: SecretKey = Field(default="token", description="the key below which the token stands")


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
    pods: Literal["jobs", "all"] = Field(
        default="jobs", description="whose output is kept: jobs (UnifiedJobs and Batuta itself), or all pods"
    )
    kernel_log: Literal["journal", "files", "none"] = Field(
        default="journal",
        description="where nodes have their kernel log: journal (systemd's; mounts the node's root folder to "
        "read), files (/var/log/kern.log or messages), or none",
    )
    image: CollectorImage = Field(default=CollectorImage(), description="the collector's image")
    node_selector: Strings = Field(default={}, description="labels of the nodes that have a collector")
    tolerations: list[Raw] = Field(default=ANY_TAINT, description="tolerations of the collectors: by default any taint")
    priority_class_name: OptionalName = Field(default="", description="priority class of the collectors")
    resources: Resources = Field(default=_resources("20m", "128Mi", "512Mi"), description="what a collector asks for")


class Image(Settings):
    """The operator's image."""

    repository: Repository = Field(default="batuta/operator", description="where the image is")
    tag: Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")] = Field(
        default="", description="its tag; empty means the chart's appVersion"
    )
    digest: Digest = Field(default="", description="its digest, as in sha256:…; wins over the tag")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="when a node fetches it"
    )


class NamedObject(Settings):
    """A reference by name."""

    name: NonEmpty


class ServiceAccount(Settings):
    """Who the operator is."""

    create: bool = Field(default=True, description="make a ServiceAccount")
    name: OptionalName = Field(default="", description="its name; empty means one made from the release's")
    annotations: Strings = Field(default={}, description="annotations of it")


class Rbac(Settings):
    """What the operator and people may do."""

    create: bool = Field(default=True, description="make the operator's roles and bindings")
    user_roles: bool = Field(
        default=True, description="let every user with view or edit rights see or change UnifiedJobs"
    )


class ClaimedVolume(Settings):
    """The volume of the journal."""

    existing_claim: OptionalName = Field(default="", description="a claim of yours; empty makes one")
    size: Quantity = Field(default="10Gi", description="size of the claim that is made")
    storage_class_name: OptionalName = Field(default="", description="its class; empty means the default one")
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = Field(
        default="ReadWriteOnce", description="who may mount it: one operator does"
    )


class Postgres(Settings):
    """A PostgreSQL server that keeps the journal."""

    secret_name: OptionalName = Field(default="", description="the Secret that has the server's URL")
    secret_key: SecretKey = Field(default="url", description="the key below which it stands: postgresql://…")


class AdmissionPolicy(Settings):
    """What the API server refuses to all but Batuta."""

    enabled: bool = Field(
        default=True,
        description="make ValidatingAdmissionPolicies, which reserve what Batuta writes on pods for its own accounts; "
        "needs Kubernetes 1.30",
    )
    exempt_namespaces: list[DnsLabel] = Field(
        default=["kube-system", "gpu-operator"],
        min_length=1,
        description="namespaces in which all may be written, such as those of drivers that test GPUs node by node",
    )
    controllers: list[UserName] = Field(
        default=[
            "system:kube-controller-manager",
            "system:serviceaccount:kube-system:job-controller",
            "system:serviceaccount:mpi-operator:mpi-operator",
        ],
        description="users that make pods from the templates of Jobs and MPIJobs",
    )
    users: list[UserName] = Field(default=[], description="further users who may write all of it")


class Journal(Settings):
    """Where events and plans are kept."""

    type: Literal["emptyDir", "persistentVolumeClaim", "postgres"] = Field(
        default="emptyDir",
        description="emptyDir (history goes with the pod, jobs do not), persistentVolumeClaim or postgres",
    )
    size_limit: Quantity = Field(default="2Gi", description="how large an emptyDir may become")
    persistent_volume_claim: ClaimedVolume = Field(
        default=ClaimedVolume(), description="with type persistentVolumeClaim"
    )
    postgres: Postgres = Field(default=Postgres(), description="with type postgres")


class Service(Settings):
    """How the API and the metrics can be reached."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(
        default="ClusterIP", description="type of the Service"
    )
    port: Port = Field(default=7077, description="its port")
    annotations: Strings = Field(default={}, description="annotations of it")


class OperatorApi(Settings):
    """Who may ask the operator."""

    audiences: list[Audience] = Field(
        default=[AUDIENCE],
        description="tokens have to be made for one of these audiences, as in `kubectl create token NAME "
        "--audience batuta`; an empty list takes tokens for the API server, which the operator could use itself",
    )


class Tls(Settings):
    """How connections to the operator are encrypted."""

    mode: Literal["auto", "secret", "off"] = Field(
        default="auto",
        description="auto (operators make a certificate, renew it and share it; the ConfigMap …-ca has its authority), "
        "secret (one of yours, as cert-manager makes it) or off (plain HTTP, for a mesh that encrypts)",
    )
    secret_name: OptionalName = Field(
        default="",
        description="with mode secret: the Secret with tls.crt, tls.key and ca.crt, for the name "
        "SERVICE.NAMESPACE.svc at least",
    )
    names: list[HostName] = Field(
        default=[], description="further names and addresses of the API, as those of a load balancer"
    )


class Spread(Settings):
    """How replicas keep apart."""

    topology_key: NonEmpty = Field(
        default="kubernetes.io/hostname", description="replicas spread over values of this node label"
    )
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = Field(
        default="ScheduleAnyway", description="if they cannot"
    )


class DisruptionBudget(Settings):
    """What a drain leaves alone."""

    enabled: bool = Field(default=True, description="keep one replica during drains; only with two replicas or more")


class NetworkRules(Settings):
    """Who may talk to the operator."""

    enabled: bool = Field(
        default=True, description="make NetworkPolicies; false lets everything in the cluster reach operator and agents"
    )
    ingress_from: list[Raw] = Field(
        default=[],
        description="NetworkPolicy peers that may reach API and metrics; pods of the release's namespace always may",
    )
    egress: list[Raw] = Field(
        default=[],
        description="egress rules; empty leaves egress open (the operator needs DNS, the API server and, "
        "with it, PostgreSQL)",
    )


class ServiceMonitor(Settings):
    """How the Prometheus operator finds the metrics."""

    enabled: bool = Field(default=False, description="make a ServiceMonitor; needs the Prometheus operator's CRDs")
    interval: PrometheusDuration = Field(default="30s", description="time between scrapes")
    scrape_timeout: PrometheusDuration = Field(default="10s", description="longest scrape")
    labels: Strings = Field(default={}, description="labels that your Prometheus selects by")
    token_file: Annotated[str, StringConstraints(pattern=r"^/\S+$")] = Field(
        default="/var/run/secrets/batuta/token",
        description="the file in Prometheus's container that has its token, made for one of `api.audiences`; "
        "unused with `openMetrics`",
    )


class PrometheusRule(Settings):
    """Alerts."""

    enabled: bool = Field(default=False, description="make a PrometheusRule; needs the Prometheus operator's CRDs")
    labels: Strings = Field(default={}, description="labels that your Prometheus selects by")


class GrafanaDashboards(Settings):
    """Dashboards."""

    enabled: bool = Field(default=False, description="make a ConfigMap with dashboards for Grafana")
    labels: Strings = Field(default={"grafana_dashboard": "1"}, description="labels that Grafana's sidecar selects by")


class Values(Settings):
    """All values."""

    name_override: Prefix = Field(default="", description="stands for `batuta` in names")
    fullname_override: Prefix = Field(default="", description="stands for release and chart name in names")
    image: Image = Field(default=Image(), description="the operator's image")
    image_pull_secrets: list[NamedObject] = Field(
        default=[], description="Secrets to fetch the image with, as {name: …}"
    )
    replicas: int = Field(default=2, ge=0, le=9, description="one leads, the others wait for its Lease; 0 parks Batuta")
    namespaces: list[DnsLabel] = Field(
        default=[], description="where jobs may be, and where the operator may write; empty means everywhere"
    )
    config: Scheduling = Field(default=Scheduling(), description="what the operator reads")
    queues: Strings = Field(
        default={},
        description="files with queues by name, as texts: Kueue's objects or the short form; used where the "
        "cluster has no definitions of Kueue",
    )
    service_account: ServiceAccount = Field(default=ServiceAccount(), description="who the operator is")
    rbac: Rbac = Field(default=Rbac(), description="what the operator and people may do")
    admission_policy: AdmissionPolicy = Field(
        default=AdmissionPolicy(), description="what the API server refuses to all but Batuta"
    )
    journal: Journal = Field(default=Journal(), description="where events and plans are kept")
    service: Service = Field(default=Service(), description="how API and metrics can be reached")
    api: OperatorApi = Field(default=OperatorApi(), description="who may ask the operator")
    tls: Tls = Field(default=Tls(), description="how connections to the operator are encrypted")
    open_metrics: bool = Field(
        default=False, description="/metrics needs no token; else it needs that of a user who may list UnifiedJobs"
    )
    metrics_per_job: int = Field(default=50, ge=0, description="how many jobs have metrics of their own; 0 for none")
    telemetry: TelemetryConfig = Field(default=TelemetryConfig(), description="what the operator tells of itself")
    resources: Resources = Field(default=_resources("500m", "512Mi", "2Gi"), description="what a replica asks for")
    priority_class_name: OptionalName = Field(default="", description="priority class of the replicas")
    node_selector: Strings = Field(default={}, description="labels of the nodes that may run it")
    tolerations: list[Raw] = Field(default=[], description="tolerations of the replicas")
    affinity: Raw = Field(default={}, description="affinity of the replicas")
    topology_spread: Spread = Field(default=Spread(), description="how replicas keep apart")
    pod_annotations: Strings = Field(default={}, description="annotations of the replicas")
    pod_labels: Strings = Field(default={}, description="further labels of the replicas")
    extra_env: list[Raw] = Field(default=[], description="further variables, as in a container's env (a proxy, say)")
    pod_disruption_budget: DisruptionBudget = Field(default=DisruptionBudget(), description="what a drain leaves alone")
    network_policy: NetworkRules = Field(default=NetworkRules(), description="who may talk to the operator")
    service_monitor: ServiceMonitor = Field(
        default=ServiceMonitor(), description="how the Prometheus operator finds the metrics"
    )
    prometheus_rule: PrometheusRule = Field(default=PrometheusRule(), description="alerts")
    grafana_dashboards: GrafanaDashboards = Field(default=GrafanaDashboards(), description="dashboards for Grafana")
    agent: Agent = Field(default=Agent(), description="the node agent, which tells how GPUs are really used")
    device_plugin: DevicePlugin = Field(default=DevicePlugin(), description="shares of GPUs on nodes")
    log_collector: LogCollector = Field(default=LogCollector(), description="logs of jobs and of kernels, for a Loki")
    global_: Raw = Field(default={}, alias="global", description="set by a parent chart; not used here")

    @model_validator(mode="after")
    def _fits_together(self) -> Values:
        """The chart's templates refuse the same with the same words (templates/_checks.tpl)."""
        if self.journal.type == "persistentVolumeClaim" and self.replicas > 1:
            raise ValueError(
                "journal.type persistentVolumeClaim takes replicas: 1, because one process writes the "
                "volume; for several replicas use postgres or emptyDir"
            )
        if self.journal.type == "postgres" and not self.journal.postgres.secret_name:
            raise ValueError("journal.type postgres needs journal.postgres.secretName")
        if not self.service_account.create and not self.service_account.name:
            raise ValueError("serviceAccount.create: false needs serviceAccount.name")
        if self.tls.mode == "secret" and not self.tls.secret_name:
            raise ValueError("tls.mode secret needs tls.secretName")
        if self.log_collector.enabled and not self.log_collector.loki_url:
            raise ValueError("logCollector.enabled needs logCollector.lokiUrl")
        return self
