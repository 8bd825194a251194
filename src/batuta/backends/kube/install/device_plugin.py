"""The device plugin on the nodes that share their GPUs: its account, its rights, its DaemonSet."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.backends.kube.install.operator import RBAC, image
from batuta.backends.kube.install.release import Manifest, Release, filled
from batuta.backends.kube.install.values import ShareMode

COMPONENT = "device-plugin"
KUBELET_FOLDER = "/var/lib/kubelet/device-plugins"
STATE_FOLDER = "/var/lib/batuta/share"
RULES: Sequence[Manifest] = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch", "patch"]},
)
"""Which pods wait on its node; which of the node's GPUs are out of service; and how they are, which it writes
on the node."""


def device_plugin(release: Release) -> list[Manifest]:
    """All objects of it."""
    name = _name(release)
    account = {"kind": "ServiceAccount", "name": name, "namespace": release.namespace}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": _metadata(release),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": _metadata(release, everywhere=True),
            "rules": [dict(rule) for rule in RULES],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": _metadata(release, everywhere=True),
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [account],
        },
        _daemon_set(release),
    ]


def _name(release: Release) -> str:
    return f"{release.fullname}-{COMPONENT}"


def _labels(release: Release) -> dict[str, str]:
    return {"app.kubernetes.io/component": COMPONENT}


def _metadata(release: Release, *, everywhere: bool = False) -> Manifest:
    return release.metadata(_name(release), namespace=None if everywhere else "", labels=_labels(release))


def _daemon_set(release: Release) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(release),
        "spec": {
            "selector": {"matchLabels": release.selector | _labels(release)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": release.labels | _labels(release)},
                "spec": _pod(release),
            },
        },
    }


def _pod(release: Release) -> Manifest:
    values = release.values.device_plugin
    return {
        "serviceAccountName": _name(release),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 10,
        # What its node cannot do without is not evicted for something less important.
        "priorityClassName": "system-node-critical",
        "containers": [_container(release)],
        "volumes": [
            _host_folder("kubelet", KUBELET_FOLDER),
            _host_folder("state", STATE_FOLDER),
            *_mps_volumes(release),
        ],
    } | filled(
        hostIPC=_by_driver(release) or None,
        imagePullSecrets=[secret.model_dump() for secret in release.values.image_pull_secrets],
        runtimeClassName=values.runtime_class_name,
        nodeSelector=values.node_selector,
        tolerations=values.tolerations,
    )


def _container(release: Release) -> Manifest:
    values = release.values.device_plugin
    words = [
        COMPONENT,
        "--mode",
        values.mode.value,
        "--memory",
        str(values.memory_percent),
        "--compute",
        str(values.compute_percent),
    ]
    return {
        "name": COMPONENT,
        "image": image(release),
        "imagePullPolicy": release.values.image.pull_policy.value,
        "args": [
            *words,
            *(["--library", values.library] if values.library else []),
            *(["--pass-device-files"] if values.pass_device_files else []),
        ],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {
                "name": "NVIDIA_DRIVER_CAPABILITIES",
                "value": "compute,utility" if _by_driver(release) else "utility",
            },
        ],
        "securityContext": _security(release),
        "volumeMounts": [
            {"name": "kubelet", "mountPath": KUBELET_FOLDER},
            {"name": "state", "mountPath": STATE_FOLDER},
            *({"name": one["name"], "mountPath": one["hostPath"]["path"]} for one in _mps_volumes(release)),
        ],
    } | filled(resources=filled(requests=values.resources.requests, limits=values.resources.limits))


def _security(release: Release) -> Manifest:
    """Root, because the kubelet's folder is root's; and no more than that, unless MPS or cgroups are used."""
    if _by_driver(release):
        return {"runAsUser": 0, "privileged": True}
    return {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _by_driver(release: Release) -> bool:
    """Whether the driver's own means hold shares, which takes rights over the node."""
    return release.values.device_plugin.mode in (ShareMode.MPS, ShareMode.DMEM)


def _mps_volumes(release: Release) -> list[Manifest]:
    if not _by_driver(release):
        return []
    return [
        {"name": "shm", "hostPath": {"path": "/dev/shm", "type": "Directory"}},
        {"name": "cgroups", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
    ]


def _host_folder(name: str, path: str) -> Manifest:
    return {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
