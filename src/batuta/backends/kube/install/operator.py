"""The operator's objects: account, RBAC, configuration, volume, Deployment, Service, network policy.

The operator reads pods of all namespaces even where it may write in a few only: pods of others use up nodes
too. It reads the logs of pods where jobs are, for the progress that they report. It may not read Secrets, and
may change nodes only where it is to look after their health. No rule has a wildcard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from batuta.backends.kube import names
from batuta.backends.kube.install.release import Manifest, Release, filled
from batuta.backends.kube.install.values import JournalType
from batuta.backends.kube.kueue import kinds as kueue
from batuta.backends.kube.operator_config import (
    JOURNAL_URL_VARIABLE,
    Admission,
    Api,
    OperatorConfig,
    Scheduling,
)

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


def service(release: Release) -> Manifest:
    """API and metrics have one port."""
    chosen = release.values.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": release.metadata(release.fullname, annotations=chosen.annotations),
        "spec": {
            "type": chosen.type.value,
            "selector": release.selector,
            "ports": [{"name": "http", "port": chosen.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def network_policy(release: Release) -> Manifest:
    rules = release.values.network_policy
    # Operators that do not lead pass questions on to the one that does.
    own = {"podSelector": {"matchLabels": release.selector}}
    peers = [*rules.ingress_from, own] if rules.ingress_from else []
    ingress = {"ports": [{"port": "http", "protocol": "TCP"}]} | filled(**{"from": peers})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": release.metadata(release.operator),
        "spec": {
            "podSelector": {"matchLabels": release.selector},
            "policyTypes": ["Ingress", *(["Egress"] if rules.egress else [])],
            "ingress": [ingress],
        }
        | filled(egress=rules.egress),
    }


def disruption_budget(release: Release) -> Manifest:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": release.metadata(release.operator),
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": release.selector},
            # A replica that does not work needs no protection.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


READ = ("get", "list", "watch")
WRITE = ("create", "delete", "patch")
RBAC = "rbac.authorization.k8s.io"

KNOWN_CRDS = (
    f"{names.PLURAL}.{names.GROUP}",
    f"{names.TRIAL_PLURAL}.{names.GROUP}",
    "jobsets.jobset.x-k8s.io",
    "mpijobs.kubeflow.org",
    "noderesourcetopologies.topology.node.k8s.io",
    "podgroups.scheduling.x-k8s.io",
)
"""Whether these are served decides what the operator looks after."""


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], only: Sequence[str] = ()) -> Manifest:
    rule: Manifest = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return rule | ({"resourceNames": list(only)} if only else {})


EVENTS = (
    _rule("", ("events",), ("create", "patch")),
    _rule("events.k8s.io", ("events",), ("create", "patch")),
)

CLUSTER_RULES = (
    _rule("", ("nodes", "namespaces", "pods"), READ),
    _rule("scheduling.k8s.io", ("priorityclasses",), READ),
    _rule("topology.node.k8s.io", ("noderesourcetopologies",), READ),
    _rule("apiextensions.k8s.io", ("customresourcedefinitions",), ("get",), KNOWN_CRDS),
    # Who asks its API something, and what they may see: the cluster says it.
    _rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    _rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
)
"""Needed in the whole cluster, wherever jobs may be."""

JOB_RULES = (
    # It makes them too, for trials: each size that is tried out is a UnifiedJob.
    _rule(names.GROUP, (names.PLURAL,), (*READ, "create", "delete", "patch", "update")),
    _rule(names.GROUP, (f"{names.PLURAL}/status",), ("get", "patch", "update")),
    _rule(names.GROUP, (f"{names.PLURAL}/finalizers", f"{names.TRIAL_PLURAL}/finalizers"), ("update",)),
    _rule(names.GROUP, (names.TRIAL_PLURAL,), (*READ, "create", "delete")),
    _rule(names.GROUP, (f"{names.TRIAL_PLURAL}/status",), ("get", "patch")),
    _rule("", ("pods", "services", "configmaps"), WRITE),
    _rule("", ("pods/binding", "pods/eviction"), ("create",)),
    _rule("", ("pods/status",), ("patch",)),
    _rule("", ("pods/log",), ("get",)),
    _rule("", ("persistentvolumeclaims",), READ),
    _rule("batch", ("jobs",), (*READ, *WRITE)),
    _rule("kubeflow.org", ("mpijobs",), (*READ, *WRITE)),
    _rule("jobset.x-k8s.io", ("jobsets",), READ),
    _rule("scheduling.x-k8s.io", ("podgroups",), READ),
    _rule("scheduling.k8s.io", ("workloads", "podgroups"), READ),
    *EVENTS,
)
"""Needed where jobs are."""


def queue_rules(config: Scheduling) -> list[Manifest]:
    """In the whole cluster, for what of Kueue the configuration switches on."""
    if config.admission is Admission.KUEUE:
        return [_rule(kueue.GROUP, ("resourceflavors", "workloadpriorityclasses"), READ)]
    if not config.kueue.read_quota:
        return []
    settings = [kind.plural for kind in kueue.SETTINGS if not kind.namespaced]
    status = [_rule(kueue.GROUP, ("clusterqueues/status",), ("get", "patch"))]
    return [_rule(kueue.GROUP, settings, READ), *(status if config.kueue.show_workloads else ())]


def health_rules(config: Scheduling) -> list[Manifest]:
    """In the whole cluster, where health is looked after; events about nodes are in `default`."""
    if not config.health.enabled:
        return []
    return [_rule("", ("nodes", "nodes/status"), ("patch",)), *EVENTS]


def workload_rules(config: Scheduling) -> list[Manifest]:
    """The same where jobs are."""
    decides = config.admission is Admission.BATUTA
    if decides and not config.kueue.read_quota:
        return []
    local = [_rule(kueue.GROUP, ("localqueues",), READ)] if decides else []
    if decides and not config.kueue.show_workloads:
        return local
    if decides:
        local.append(_rule(kueue.GROUP, ("localqueues/status",), ("get", "patch")))
    return [
        *local,
        _rule(kueue.GROUP, ("workloads",), (*READ, *WRITE)),
        _rule(kueue.GROUP, ("workloads/status",), ("get", "patch")),
    ]


def operator_rights(release: Release) -> list[Manifest]:
    """The operator's roles and bindings: for the whole cluster, or for the namespaces that were named."""
    everywhere = not release.values.namespaces
    config = release.values.config
    job_rules = [*JOB_RULES, *workload_rules(config)]
    rules = [
        *CLUSTER_RULES,
        *queue_rules(config),
        *health_rules(config),
        *(job_rules if everywhere else ()),
    ]
    found = [
        _role(release, release.operator, None, rules),
        _binding(release, release.operator, None),
        _role(release, release.operator, release.namespace, own_rules(release)),
        _binding(release, release.operator, release.namespace),
    ]
    for namespace in release.values.namespaces:
        name = f"{release.fullname}-jobs"
        found += [_role(release, name, namespace, job_rules), _binding(release, name, namespace)]
    return found


def own_rules(release: Release) -> list[Manifest]:
    """In its own namespace: its Lease, its queues, what it remembers of health and burn-ins, events about it.

    A create cannot ask for a name.
    """
    group = "coordination.k8s.io"
    files = [_rule("", ("configmaps",), READ, (release.queue_files,))]
    health = [
        _rule("", ("configmaps", "pods"), ("create",)),
        _rule("", ("configmaps",), ("get", "update"), (release.health_memory,)),
        _rule("", ("pods",), ("delete",)),
    ]
    return [
        _rule(group, ("leases",), ("create",)),
        _rule(group, ("leases",), ("get", "patch", "update"), (release.operator,)),
        *(files if release.values.config.admission is Admission.BATUTA else ()),
        *(health if release.values.config.health.enabled else ()),
        *EVENTS,
    ]


def user_roles(release: Release) -> list[Manifest]:
    """Who may view or edit a namespace may view or edit jobs and trials in it; who edits sees them too."""
    jobs, trials, scale = names.PLURAL, names.TRIAL_PLURAL, f"{names.PLURAL}/scale"
    view = [
        _rule(names.GROUP, (jobs, trials), READ),
        _rule(names.GROUP, (f"{jobs}/status", scale, f"{trials}/status"), ("get",)),
    ]
    edit = [
        *view,
        _rule(names.GROUP, (jobs, trials), ("create", "delete", "deletecollection", "patch", "update")),
        _rule(names.GROUP, (scale,), ("patch", "update")),
    ]
    return [_user_role(release, "view", view), _user_role(release, "edit", edit)]


def _user_role(release: Release, kind: str, rules: Sequence[Manifest]) -> Manifest:
    role = _role(release, f"{release.fullname}-{kind}", None, rules)
    role["metadata"]["labels"][f"{RBAC}/aggregate-to-{kind}"] = "true"
    return role


def _role(release: Release, name: str, namespace: str | None, rules: Sequence[Manifest]) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole" if namespace is None else "Role",
        "metadata": release.metadata(name, namespace=namespace),
        "rules": [dict(rule) for rule in rules],
    }


def _binding(release: Release, name: str, namespace: str | None) -> Manifest:
    kind = "ClusterRole" if namespace is None else "Role"
    account = {"kind": "ServiceAccount", "name": release.service_account, "namespace": release.namespace}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": release.metadata(name, namespace=namespace),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [account],
    }
