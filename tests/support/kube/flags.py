"""The command lines of a control plane's programs: what is not said here is the programs' own default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kube.access import Access
from tests.support.kube.catalog import MODULES

LOOPBACK = "127.0.0.1"
FAKE_NODE = ("kwok.x-k8s.io/node", "fake")
"""The annotation that makes a node KWOK's."""


_FOR_REAL_NODES = (
    *("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "ttl-controller"),
    *("persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"),
    *("ephemeral-volume-controller", "horizontal-pod-autoscaler-controller", "cronjob-controller"),
)
"""Controllers whose work nobody sees where all nodes are fake: they ask much whenever a pod changes."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a control plane consists of. The default is the least: etcd, API server, KWOK for fake nodes."""

    kwok: bool = True
    controllers: bool = False
    """kube-controller-manager: Jobs, garbage collection, namespaces that can be deleted, ServiceAccounts."""
    scheduler: bool = False
    """kube-scheduler, for the pods that name no other one."""
    node_lifecycle: bool = False
    """Heartbeats of every fake node, and taints on a node that has none; needs the controllers."""
    fsync: bool = False
    """etcd writes through to the disk: for tests of durability, and as slow as the disk."""
    audit: bool = True
    """Keep a line about every request: what `ControlPlane.requests` reads."""
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    """For the API server, the controllers and the scheduler alike."""
    runtime_config: Sequence[str] = ()
    """APIs that are not served by default: `scheduling.k8s.io/v1alpha2=true`."""
    address: str = LOOPBACK
    """Where the API server listens; a real node's pods need one that is not the loopback."""
    api_server_flags: Sequence[str] = ()
    controller_flags: Sequence[str] = ()
    scheduler_flags: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.node_lifecycle and not self.controllers:
            raise ValueError("node_lifecycle is the work of a controller: controllers=True as well")


GANG_SCHEDULING = Options(
    scheduler=True,
    feature_gates={"GenericWorkload": True, "GangScheduling": True},
    runtime_config=["scheduling.k8s.io/v1alpha2=true"],
)
"""kube-scheduler with its own gangs: alpha in Kubernetes 1.36."""


def etcd_flags(options: Options, folder: Path, client_port: int, peer_port: int) -> list[str]:
    client, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--unsafe-no-fsync={str(not options.fsync).lower()}",
        f"--quota-backend-bytes={8 * 2**30}",
        "--log-level=warn",
    ]


def api_server_flags(options: Options, access: Access, etcd_port: int, audit_log: Path) -> list[str]:
    flags = [
        f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
        f"--bind-address={options.address}",
        f"--advertise-address={options.address}",
        f"--secure-port={access.port}",
        f"--tls-cert-file={access.server.certificate}",
        f"--tls-private-key-file={access.server.key}",
        f"--client-ca-file={access.ca}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={access.tokens.certificate}",
        f"--service-account-signing-key-file={access.tokens.key}",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--kubelet-preferred-address-types=InternalIP",
        # The `kubernetes` Service would point to a loopback address, which is not allowed in an Endpoints.
        "--endpoint-reconciler-type=none",
        *_gates(options),
    ]
    if options.runtime_config:
        flags.append(f"--runtime-config={','.join(options.runtime_config)}")
    if not options.node_lifecycle:
        # It taints every new node as not ready, and only the node lifecycle controller takes that away.
        flags.append("--disable-admission-plugins=TaintNodesByCondition")
    if options.audit:
        flags += [f"--audit-policy-file={MODULES / 'audit.yaml'}", f"--audit-log-path={audit_log}"]
    return [*flags, *options.api_server_flags]


def controller_flags(options: Options, access: Access, port: int) -> list[str]:
    unwanted = [] if options.node_lifecycle else ["node-lifecycle-controller"]
    if options.kwok and not options.scheduler:  # with a scheduler it is for people, who may try anything
        unwanted += _FOR_REAL_NODES
    return [
        *_client_flags(access.kubeconfig("system:kube-controller-manager"), port),
        f"--controllers={','.join(['*', *(f'-{name}' for name in unwanted)])}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={access.tokens.key}",
        f"--root-ca-file={access.ca}",
        f"--cluster-signing-cert-file={access.ca}",
        f"--cluster-signing-key-file={access.ca_key}",
        *_gates(options),
        *options.controller_flags,
    ]


def scheduler_flags(options: Options, access: Access, port: int) -> list[str]:
    kubeconfig = access.kubeconfig("system:kube-scheduler")
    return [*_client_flags(kubeconfig, port), *_gates(options), *options.scheduler_flags]


def kwok_flags(options: Options, kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={MODULES / 'stages.yaml'}",
        f"--manage-nodes-with-annotation-selector={'='.join(FAKE_NODE)}",
        f"--server-address={LOOPBACK}:{port}",
        # A tenth of a request per node and second, for nothing where no controller looks at heartbeats.
        f"--node-lease-duration-seconds={40 if options.node_lifecycle else 0}",
    ]


def _client_flags(kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        "--leader-elect=false",
    ]


def _gates(options: Options) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in options.feature_gates.items())
    return [f"--feature-gates={gates}"] if gates else []
