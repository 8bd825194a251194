"""The node agent: a DaemonSet, its account, and the few rights that it has.

It reads pods, to know whose processes are on its GPUs, and writes annotations of pods and nodes. It needs no
capability and no privileged container: it sees the node's processes (hostPID), asks NVML, and asks the
kubelet who has which GPU. Only to read the kernel's own log device it must be privileged: no device of the
host is in a container otherwise.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from batuta.backends.kube.install.monitoring import MONITORING_API
from batuta.backends.kube.install.operator import image
from batuta.backends.kube.install.release import Manifest, Release, filled
from batuta.backends.kube.install.values import Agent

POD_RESOURCES: Final = "/var/lib/kubelet/pod-resources"
KMSG: Final = "/dev/kmsg"
_RBAC: Final = "rbac.authorization.k8s.io"
_PORT: Final = "metrics"


def agent(release: Release) -> list[Manifest]:
    """All objects of the agent, in the order in which they are applied."""
    values = release.values
    return [
        _account(release),
        *(_rights(release) if values.rbac.create else ()),
        _service(release),
        _daemon_set(release),
        *([_monitor(release)] if values.service_monitor.enabled else ()),
    ]


def _rights(release: Release) -> list[Manifest]:
    """Its role, in the whole cluster, and the binding."""
    name = release.agent
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": release.agent_metadata(namespaced=False),
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch"]},
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": release.agent_metadata(namespaced=False),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": release.namespace}],
        },
    ]


def _account(release: Release) -> Manifest:
    """Only the agent's pods get a token, because their spec asks for one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": release.agent_metadata(),
        "automountServiceAccountToken": False,
    }


def _service(release: Release) -> Manifest:
    """No address: it names the agents, so that each of them is scraped."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.agent_metadata(),
        "spec": {
            "clusterIP": "None",
            "selector": release.agent_selector,
            "ports": [
                {
                    "name": _PORT,
                    "port": release.values.agent.metrics_port,
                    "targetPort": _PORT,
                    "protocol": "TCP",
                }
            ],
        },
    }


def _monitor(release: Release) -> Manifest:
    chosen = release.values.service_monitor
    return {
        "apiVersion": MONITORING_API,
        "kind": "ServiceMonitor",
        "metadata": release.agent_metadata(labels=chosen.labels),
        "spec": {
            "selector": {"matchLabels": release.agent_selector},
            "endpoints": [
                {
                    "port": _PORT,
                    "path": "/metrics",
                    # Jobs and pods in the series are those on the GPUs, and not the agent itself.
                    "honorLabels": True,
                    "interval": chosen.interval,
                    "scrapeTimeout": chosen.scrape_timeout,
                }
            ],
        },
    }


def _daemon_set(release: Release) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": release.agent_metadata(),
        "spec": {
            "selector": {"matchLabels": release.agent_selector},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": release.agent_labels}, "spec": _pod(release)},
        },
    }


def _pod(release: Release) -> Manifest:
    values = release.values.agent
    return {
        "serviceAccountName": release.agent,
        "automountServiceAccountToken": True,
        "hostPID": True,
        "terminationGracePeriodSeconds": 10,
        # Root without rights: the kubelet lets only root ask.
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(release)],
        "volumes": [
            {
                "name": "pod-resources",
                "hostPath": {"path": POD_RESOURCES, "type": "DirectoryOrCreate"},
            },
            {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
            *_health_volumes(values),
        ],
    } | filled(
        runtimeClassName=values.runtime_class_name,
        priorityClassName=values.priority_class_name,
        imagePullSecrets=[secret.model_dump() for secret in release.values.image_pull_secrets],
        nodeSelector=values.node_selector,
        tolerations=values.tolerations,
    )


def _container(release: Release) -> Manifest:
    values = release.values.agent
    probe = {
        "httpGet": {"path": "/healthz", "port": _PORT},
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
    return {
        "name": "agent",
        "image": image(release),
        "imagePullPolicy": release.values.image.pull_policy.value,
        "args": _words(release),
        "env": [
            _from_field("NODE_NAME", "spec.nodeName"),
            _from_field("HOST_IP", "status.hostIP"),
            # All of the node's GPUs, to look at and not to compute on.
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "ports": [{"name": _PORT, "containerPort": values.metrics_port, "protocol": "TCP"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": _security(values),
        "volumeMounts": [
            {"name": "pod-resources", "mountPath": POD_RESOURCES, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *_health_mounts(values),
        ],
    } | filled(resources=filled(requests=values.resources.requests, limits=values.resources.limits))


def _security(values: Agent) -> Manifest:
    if values.kernel_log == KMSG:
        return {"privileged": True, "readOnlyRootFilesystem": True}
    capabilities = {"drop": ["ALL"]} | ({"add": ["SYS_PTRACE"]} if values.disk_counters else {})
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def _health_volumes(values: Agent) -> list[Manifest]:
    """Where it remembers how far it has read, and the folder of a log that is a file."""
    if not values.kernel_log:
        return []
    state = {"name": "state", "hostPath": {"path": values.state_dir, "type": "DirectoryOrCreate"}}
    log = {"name": "kernel-log", "hostPath": {"path": _folder(values), "type": "Directory"}}
    return [state] if values.kernel_log == KMSG else [state, log]


def _health_mounts(values: Agent) -> list[Manifest]:
    if not values.kernel_log:
        return []
    state = {"name": "state", "mountPath": values.state_dir}
    # The folder and not the file: a log that is rotated is another file.
    log = {"name": "kernel-log", "mountPath": _folder(values), "readOnly": True}
    return [state] if values.kernel_log == KMSG else [state, log]


def _folder(values: Agent) -> str:
    return str(PurePosixPath(values.kernel_log).parent)


def _words(release: Release) -> list[str]:
    values = release.values.agent
    words = [
        "agent",
        f"--interval={values.interval_seconds}",
        f"--report-every={values.report_every_seconds}",
        f"--metrics-port={values.metrics_port}",
    ]
    if values.kernel_log:
        words += [f"--kernel-log={values.kernel_log}", f"--state={values.state_dir}"]
    return [*words, *([f"--dcgm={values.dcgm_url}"] if values.dcgm_url else [])]


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
