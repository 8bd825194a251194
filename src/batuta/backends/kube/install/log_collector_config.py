"""What the log collector reads and where it sends it: files for an OpenTelemetry collector.

One file for each choice: a collector reads several and lays them over each other. Addresses and names of an
installation come from the environment, so the files are the same everywhere, and can be checked as they are.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import yaml

from batuta.backends.kube import names

Json: TypeAlias = dict[str, Any]

HOST_ROOT: Final = "/host"
"""Where the collector sees the node's own files, for its kernel log."""
STATE: Final = "/var/lib/otelcol"
"""Where it notes how far it has read, and keeps what Loki does not take yet."""
HEALTH_PORT: Final = 13133
CONTAINER: Final = "log-collector"
BASE, ALL_PODS = "collector.yaml", "all-pods.yaml"
JOURNAL, KERNEL_FILES = "kernel-journal.yaml", "kernel-files.yaml"
TENANT, TOKEN = "tenant.yaml", "token.yaml"

_STORAGE: Final = "file_storage"
_LOKI: Final = "otlp_http/loki"
_INDEXES: Final = (
    names.REPLICA_INDEX,
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
)
"""Labels by which pods of the kinds of jobs say which replica they are."""
_HEAD: Final = """\
# Made from batuta.backends.kube.install.log_collector_config by
#   python -m batuta.backends.kube.install.chart_files deploy/helm/batuta
"""


def files() -> dict[str, str]:
    """Text by name of file."""
    found = {
        BASE: _base(),
        ALL_PODS: _pipeline("logs/pods", ["filelog/pods"], ["memory_limiter", "k8sattributes", "transform"]),
        JOURNAL: _kernel("journald/kernel", _journal()),
        KERNEL_FILES: _kernel("filelog/kernel", _kernel_files()),
        TENANT: _headers({"X-Scope-OrgID": "${env:LOKI_TENANT}"}),
        TOKEN: _headers({"Authorization": "Bearer ${env:LOKI_TOKEN}"}),
    }
    return {
        name: _HEAD + yaml.safe_dump(config, sort_keys=False, width=1_000) for name, config in found.items()
    }


def _base() -> Json:
    """Pods of jobs and of Batuta itself, to Loki; nothing is dropped while Loki is away."""
    pods = _pipeline(
        "logs/pods", ["filelog/pods"], ["memory_limiter", "k8sattributes", "filter/jobs", "transform"]
    )
    return {
        "extensions": {
            "health_check": {"endpoint": f"${{env:POD_IP}}:{HEALTH_PORT}"},
            _STORAGE: {"directory": STATE, "create_directory": True},
        },
        "receivers": {"filelog/pods": _pods()},
        "processors": {
            "memory_limiter": {"check_interval": "1s", "limit_percentage": 80, "spike_limit_percentage": 20},
            "k8sattributes": _attributes(),
            "filter/jobs": {
                "error_mode": "ignore",
                "log_conditions": [
                    'resource.attributes["batuta.job"] == nil '
                    'and resource.attributes["batuta.part"] != "batuta"'
                ],
            },
            "transform": {"error_mode": "ignore", "log_statements": _renamed()},
        },
        "exporters": {
            _LOKI: {
                "endpoint": "${env:LOKI_URL}/otlp",
                # Tried until it is taken. When the queue is full nothing more is read, and files wait.
                "retry_on_failure": {"max_elapsed_time": 0},
                "sending_queue": {
                    "storage": _STORAGE,
                    "sizer": "items",
                    "queue_size": 100_000,
                    "block_on_overflow": True,
                    "batch": {"flush_timeout": "1s", "min_size": 1_000, "max_size": 5_000},
                },
            }
        },
        "service": {"extensions": ["health_check", _STORAGE], **pods["service"]},
    }


def _pods() -> Json:
    return {
        "include": ["/var/log/pods/*/*/*.log"],
        # Its own lines would feed on themselves.
        "exclude": [f"/var/log/pods/*/{CONTAINER}/*.log"],
        # A job may be over before its files are found.
        "start_at": "beginning",
        "include_file_path": True,
        "storage": _STORAGE,
        "retry_on_failure": {"enabled": True, "max_elapsed_time": 0},
        "operators": [{"type": "container"}],
    }


def _attributes() -> Json:
    """Whose line it is. Only pods of the own node are looked at."""
    labels = [
        {"tag_name": "batuta.job", "key": names.JOB_NAME, "from": "pod"},
        *({"tag_name": "batuta.replica", "key": key, "from": "pod"} for key in _INDEXES),
        {"tag_name": "batuta.role", "key": names.ROLE, "from": "pod"},
        {"tag_name": "batuta.start", "key": names.START, "from": "pod"},
        {"tag_name": "batuta.part", "key": "app.kubernetes.io/part-of", "from": "pod"},
    ]
    return {
        "auth_type": "serviceAccount",
        "filter": {"node_from_env_var": "NODE_NAME"},
        "wait_for_metadata": True,
        "wait_for_metadata_timeout": "30s",
        "pod_association": [{"sources": [{"from": "resource_attribute", "name": "k8s.pod.uid"}]}],
        "extract": {
            "metadata": ["k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.node.name"],
            "labels": labels,
        },
    }


def _renamed() -> list[Json]:
    """`service.name` and `k8s.namespace.name` are labels in every Loki; the replica stands beside a line."""
    return [
        {
            "context": "resource",
            "statements": [
                'set(attributes["service.name"], attributes["k8s.container.name"])',
                'set(attributes["service.name"], attributes["batuta.job"]) '
                'where attributes["batuta.job"] != nil',
                'set(attributes["batuta.replica"], "launcher") where attributes["batuta.role"] == "launcher"',
                'delete_key(attributes, "batuta.job")',
                'delete_key(attributes, "batuta.part")',
                'delete_key(attributes, "k8s.pod.uid")',
            ],
        },
        {
            "context": "log",
            "statements": [
                'delete_key(attributes, "log.file.path")',
                'delete_key(attributes, "logtag")',
                'delete_key(attributes, "time")',
            ],
        },
    ]


def _kernel(name: str, receiver: Json) -> Json:
    """The node's kernel log, as `{service_name="kernel"}`."""
    pipeline = _pipeline("logs/kernel", [name], ["memory_limiter", "resource/kernel"])
    attributes = [
        {"key": "service.name", "value": "kernel", "action": "upsert"},
        {"key": "k8s.node.name", "value": "${env:NODE_NAME}", "action": "upsert"},
    ]
    processors = {"resource/kernel": {"attributes": attributes}}
    return {"receivers": {name: receiver}, "processors": processors, **pipeline}


def _journal() -> Json:
    """By the node's own journalctl: the collector's image has none."""
    return {
        "root_path": HOST_ROOT,
        "journalctl_path": "/usr/bin/journalctl",
        "matches": [{"_TRANSPORT": "kernel"}],
        "priority": "debug",
        "storage": _STORAGE,
        "operators": [{"type": "move", "from": "body.MESSAGE", "to": "body"}],
    }


def _kernel_files() -> Json:
    """Where syslog writes it to a file."""
    return {
        "include": ["/var/log/kern.log", "/var/log/messages"],
        "storage": _STORAGE,
        "operators": [{"type": "filter", "expr": 'not (body matches " kernel: ")'}],
    }


def _pipeline(name: str, receivers: list[str], processors: list[str]) -> Json:
    pipeline = {"receivers": receivers, "processors": processors, "exporters": [_LOKI]}
    return {"service": {"pipelines": {name: pipeline}}}


def _headers(headers: dict[str, str]) -> Json:
    return {"exporters": {_LOKI: {"headers": headers}}}
