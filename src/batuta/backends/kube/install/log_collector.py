"""The log collector: a DaemonSet that reads log files of its node, its files, its account and its one right.

It reads pods of its node, to know whose lines they are. It is root, because log files are root's, without any
capability; only to run the node's own journalctl it may change its root folder.
"""

from __future__ import annotations

from typing import Final

from batuta.backends.kube.install import log_collector_config as config
from batuta.backends.kube.install.release import Manifest, Release, filled
from batuta.backends.kube.install.values import CollectedPods, KernelLog

COMPONENT: Final = "log-collector"
CONFIG_FOLDER: Final = "/etc/otelcol"
HOST_STATE: Final = "/var/lib/batuta/log-collector"
_RBAC: Final = "rbac.authorization.k8s.io"


def log_collector(release: Release) -> list[Manifest]:
    """All objects of the collector, in the order in which they are applied."""
    return [
        _account(release),
        *(_rights(release) if release.values.rbac.create else ()),
        _config_map(release),
        _daemon_set(release),
    ]


def _name(release: Release) -> str:
    return f"{release.fullname}-{COMPONENT}"


def _selector(release: Release) -> dict[str, str]:
    return release.selector | {"app.kubernetes.io/component": COMPONENT}


def _metadata(release: Release, *, namespaced: bool = True) -> Manifest:
    namespace = "" if namespaced else None
    return release.metadata(_name(release), namespace=namespace, labels=_selector(release))


def _account(release: Release) -> Manifest:
    """Only the collector's pods get a token, because their spec asks for one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(release),
        "automountServiceAccountToken": False,
    }


def _rights(release: Release) -> list[Manifest]:
    name = _name(release)
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _metadata(release, namespaced=False),
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _metadata(release, namespaced=False),
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": release.namespace}],
        },
    ]


def _config_map(release: Release) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(release),
        "data": config.files(),
    }


def _daemon_set(release: Release) -> Manifest:
    selector = _selector(release)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(release),
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": release.labels | selector}, "spec": _pod(release)},
        },
    }


def _pod(release: Release) -> Manifest:
    values = release.values.log_collector
    return {
        "serviceAccountName": _name(release),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(release)],
        "volumes": [
            {"name": "config", "configMap": {"name": _name(release)}},
            {"name": "state", "hostPath": {"path": HOST_STATE, "type": "DirectoryOrCreate"}},
            {"name": "logs", "hostPath": {"path": "/var/log", "type": "Directory"}},
            *(
                [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}]
                if _by_journal(release)
                else ()
            ),
        ],
    } | filled(
        priorityClassName=values.priority_class_name,
        imagePullSecrets=[secret.model_dump() for secret in release.values.image_pull_secrets],
        nodeSelector=values.node_selector,
        tolerations=values.tolerations,
    )


def _container(release: Release) -> Manifest:
    values = release.values.log_collector
    capabilities = {"drop": ["ALL"]} | ({"add": ["SYS_CHROOT"]} if _by_journal(release) else {})
    probe = {
        "httpGet": {"path": "/", "port": "health"},
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }
    host = {"name": "host", "mountPath": config.HOST_ROOT, "readOnly": True}
    return {
        "name": config.CONTAINER,
        "image": _image(release),
        "imagePullPolicy": release.values.image.pull_policy.value,
        "args": [f"--config={CONFIG_FOLDER}/{name}" for name in _files(release)],
        "env": _environment(release),
        "ports": [{"name": "health", "containerPort": config.HEALTH_PORT, "protocol": "TCP"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": capabilities,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "state", "mountPath": config.STATE},
            {"name": "logs", "mountPath": "/var/log", "readOnly": True},
            *([host] if _by_journal(release) else ()),
        ],
    } | filled(resources=filled(requests=values.resources.requests, limits=values.resources.limits))


def _files(release: Release) -> list[str]:
    """Those that were chosen; a later one is laid over those before it."""
    values = release.values.log_collector
    kernel = {KernelLog.JOURNAL: [config.JOURNAL], KernelLog.FILES: [config.KERNEL_FILES], KernelLog.NONE: []}
    return [
        config.BASE,
        *([config.ALL_PODS] if values.pods is CollectedPods.ALL else ()),
        *kernel[values.kernel_log],
        *([config.TENANT] if values.tenant else ()),
        *([config.TOKEN] if values.token_secret.name else ()),
    ]


def _environment(release: Release) -> list[Manifest]:
    values = release.values.log_collector
    found: list[Manifest] = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LOKI_URL", "value": values.loki_url},
    ]
    if values.tenant:
        found.append({"name": "LOKI_TENANT", "value": values.tenant})
    if values.token_secret.name:
        reference = {"name": values.token_secret.name, "key": values.token_secret.key}
        found.append({"name": "LOKI_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return found


def _image(release: Release) -> str:
    chosen = release.values.log_collector.image
    return f"{chosen.repository}@{chosen.digest}" if chosen.digest else f"{chosen.repository}:{chosen.tag}"


def _by_journal(release: Release) -> bool:
    return release.values.log_collector.kernel_log is KernelLog.JOURNAL
