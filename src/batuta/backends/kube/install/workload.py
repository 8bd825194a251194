"""The operator itself: its account, configuration, volume and Deployment."""

from __future__ import annotations

import hashlib
import json

from batuta.backends.kube.install.release import Manifest, Release, filled
from batuta.backends.kube.install.values import JournalType
from batuta.backends.kube.operator_config import JOURNAL_URL_VARIABLE, Api, OperatorConfig

CONFIG_FILE = "config.yaml"
CONFIG_FOLDER = "/etc/batuta"
STATE_FOLDER = "/var/lib/batuta"
PORT = Api().port
USER_ID = 65532
"""Of the image's user; any other number but 0 works as well."""


def service_account(release: Release) -> Manifest:
    """Only the operator's pods get a token, because their spec asks for one."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": release.metadata(
            release.service_account, annotations=release.values.service_account.annotations
        ),
        "automountServiceAccountToken": False,
    }


def operator_config(release: Release) -> Manifest:
    """What `batuta operator` reads: the administrator's choices, and where it runs."""
    values = release.values
    chosen = values.config.model_dump(mode="json", by_alias=True)
    burn_in = chosen["health"]["burnIn"]
    burn_in["image"] = burn_in["image"] or image(release)
    place = {
        "namespaces": list(values.namespaces),
        "stateDir": STATE_FOLDER,
        "leaseName": release.operator,
        "queueFiles": release.queue_files,
        "healthMemory": release.health_memory,
        "api": {
            "listen": "0.0.0.0",
            "port": PORT,
            "openMetrics": values.open_metrics,
            "metricsPerJob": values.metrics_per_job,
        },
        "telemetry": values.telemetry.model_dump(mode="json", by_alias=True),
    }
    # Checked here, so that the operator never finds what it would refuse.
    return OperatorConfig.model_validate(chosen | place).model_dump(mode="json", by_alias=True)


def config_map(release: Release) -> Manifest:
    import yaml

    text = yaml.safe_dump(operator_config(release), sort_keys=True, allow_unicode=True)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": release.metadata(f"{release.fullname}-config"),
        "data": {CONFIG_FILE: text},
    }


def queue_files(release: Release) -> Manifest:
    """Queues as files. The operator sees a change of them at once, without another start."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": release.metadata(release.queue_files),
        "data": dict(release.values.queues),
    }


def claim(release: Release) -> Manifest:
    """The journal's volume. It outlives the release: history is not thrown away by an uninstall."""
    volume = release.values.journal.persistent_volume_claim
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": release.metadata(
            f"{release.fullname}-journal", annotations={"helm.sh/resource-policy": "keep"}
        ),
        "spec": {
            "accessModes": [volume.access_mode.value],
            "resources": {"requests": {"storage": volume.size}},
        }
        | filled(storageClassName=volume.storage_class_name),
    }


def deployment(release: Release) -> Manifest:
    values = release.values
    # Two operators may not have the volume at once; elsewhere a new one is ready before an old one leaves.
    surge: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    single = values.journal.type is JournalType.VOLUME
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": release.metadata(release.operator),
        "spec": {
            "replicas": values.replicas,
            "revisionHistoryLimit": 3,
            "strategy": {"type": "Recreate"} if single else surge,
            "selector": {"matchLabels": release.selector},
            "template": {
                "metadata": {
                    "labels": values.pod_labels | release.labels,
                    "annotations": values.pod_annotations | {"checksum/config": _checksum(release)},
                },
                "spec": _pod(release),
            },
        },
    }


def _checksum(release: Release) -> str:
    """Changes with the configuration, so that a new one starts new pods."""
    text = json.dumps(operator_config(release), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _pod(release: Release) -> Manifest:
    values = release.values
    spread = values.topology_spread
    return {
        "serviceAccountName": release.service_account,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": spread.topology_key,
                "whenUnsatisfiable": spread.when_unsatisfiable.value,
                "labelSelector": {"matchLabels": release.selector},
                "matchLabelKeys": ["pod-template-hash"],
            }
        ],
        "containers": [_container(release)],
        "volumes": [
            {"name": "config", "configMap": {"name": f"{release.fullname}-config"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
            {"name": "state"} | _state_volume(release),
        ],
    } | filled(
        imagePullSecrets=[secret.model_dump() for secret in values.image_pull_secrets],
        priorityClassName=values.priority_class_name,
        nodeSelector=values.node_selector,
        tolerations=values.tolerations,
        affinity=values.affinity,
    )


def _container(release: Release) -> Manifest:
    values = release.values
    return {
        "name": "operator",
        "image": image(release),
        "imagePullPolicy": values.image.pull_policy.value,
        "args": ["operator", "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}"],
        "env": _environment(release),
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        # A long start (recovery of a large journal) is not a hang.
        "startupProbe": _probe("/healthz", period_s=2, failures=60),
        "livenessProbe": _probe("/healthz", period_s=10, failures=3),
        "readinessProbe": _probe("/readyz", period_s=5, failures=3),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "state", "mountPath": STATE_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    } | filled(resources=filled(requests=values.resources.requests, limits=values.resources.limits))


def image(release: Release) -> str:
    chosen = release.values.image
    if chosen.digest:
        return f"{chosen.repository}@{chosen.digest}"
    return f"{chosen.repository}:{chosen.tag or release.version}"


def _environment(release: Release) -> list[Manifest]:
    values = release.values
    found: list[Manifest] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    if values.journal.type is JournalType.POSTGRES:
        secret = values.journal.postgres
        reference = {"name": secret.secret_name, "key": secret.secret_key}
        found.append({"name": JOURNAL_URL_VARIABLE, "valueFrom": {"secretKeyRef": reference}})
    return found + list(values.extra_env)


def _probe(path: str, *, period_s: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _state_volume(release: Release) -> Manifest:
    journal = release.values.journal
    if journal.type is JournalType.VOLUME:
        name = journal.persistent_volume_claim.existing_claim or f"{release.fullname}-journal"
        return {"persistentVolumeClaim": {"claimName": name}}
    return {"emptyDir": {"sizeLimit": journal.size_limit}}
